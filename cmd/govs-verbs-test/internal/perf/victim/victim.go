// Package victim measures what one peer does to another: the round trips of one
// well-behaved connection, the victim, beside N connections of hostile peers of a
// kind, over the same beside N connections that are idle.
//
// # What is measured
//
// There are three processes. The server has one device of the engine, which serves the
// victim and the hostile peers. The victim's client has a device of its own. The hostile
// peers are plain TCP sockets that speak MPA, DDP and RDMAP by hand, so that what is
// measured is the server's engine, not the one of the process that loads it.
//
// The server has a CPU to itself. The victim's client and the hostile peers share
// another one, unless there is a third: the client there sleeps while it waits, and the
// peers have the scheduler's lowest policy (SCHED_IDLE), so that the client has the CPU
// as soon as there is something for it to do, and the peers have all of the rest. The
// peers so work at the same time as the server, which is what makes a turn of the
// server's long, and they do not take the CPU from either end of the victim. How long
// threads of the two waited for a CPU nevertheless is measured and told (/proc, schedstat):
// what is not in there is the engine's own making.
//
// Beside idle connections the process of the hostile peers keeps its CPU awake: else
// the victim's client would be woken from a halted CPU there, which costs more, and
// ratios would be better than they are.
//
// # Round trips
//
// The client sends a message of 64 octets, and the server answers it with one. The time
// runs from before the post to the answer's completion. The server puts the time at
// which it answers into its message, so that the request's part, in which the wait for
// the turns of others is, is known by itself: it has no wake-up of the client in it.
//
// Requests are due at even intervals, one at a time. Those that fall due while one is
// under way are not sent, but count as if they had been and had been answered together
// with that one. Without them a stall of a second would be a single round trip among
// many, and p99 would know nothing of it.
package victim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

// A Kind is what hostile peers do.
type Kind string

// The kinds. Idle is what the others are compared with.
const (
	Idle      Kind = "idle"
	Reader    Kind = "reader"
	Slow      Kind = "slow"
	Dribble   Kind = "dribble"
	Connect   Kind = "connect"
	Terminate Kind = "terminate"
	Zero      Kind = "zero"
	Tiny      Kind = "tiny"
)

// meaning says what each kind does, in the order in which they are told.
var meaning = []struct {
	kind Kind
	what string
}{
	{Reader, "fast reader: keeps as many RDMA Reads of 16 MiB outstanding as the IRD allows, and takes the responses as fast as it can"},
	{Slow, "slow link: asks for as much, into a small receive buffer; every other peer takes 1 KiB each 20 ms, the others nothing"},
	{Dribble, "sends RDMA Writes of 32 KiB, the last 4 KiB of each FPDU one octet at a time"},
	{Connect, "connection flood: connects and resets, by turns without a Request, after the Request, and after the Reply"},
	{Terminate, "Terminate flood: connects and ends the connection with a Terminate, by turns the server's (a Write to no region) and its own"},
	{Zero, "sends RDMA Writes of no octets, FPDUs of 20 octets, 3,276 of them in a write"},
	{Tiny, "tiny segments: an MSS of 88; RDMA Reads as the fast reader has them, and RDMA Writes of 40 octets, one in a segment"},
}

// Kinds are the hostile ones.
func Kinds() []Kind {
	var list []Kind
	for _, m := range meaning {
		list = append(list, m.kind)
	}
	return list
}

// Meanings are the lines of a help text, one for each kind.
func Meanings() string {
	var b strings.Builder
	for _, m := range meaning {
		fmt.Fprintf(&b, "    %-10s %s\n", m.kind, m.what)
	}
	return b.String()
}

// MaxPeers is how many hostile peers there can be: all of them have a socket in one
// process.
const MaxPeers = 4096

// limit is what the ratio of p99 may be beside so many peers, 0 if that is not said.
func limit(peers int) float64 {
	switch {
	case peers == 1:
		return 3
	case peers <= 64:
		return 10
	}
	return 0
}

// Config says what is measured, and how.
type Config struct {
	Kinds  []Kind
	Peers  []int
	Polls  []load.Poll // how the server's end of the victim waits
	Rounds int
	Time   time.Duration // of one measurement
	Every  time.Duration // a request is due; 0: as soon as the one before is answered

	ServerCPU, ClientCPU, HostileCPU int

	CRC    bool
	Cong   string // congestion control, empty for the system's
	Normal bool   // the peers have the scheduler's usual policy: for tests on a machine that is busy

	Worker []string                         // command of a process that calls Serve; its role follows
	Say    func(format string, args ...any) // tells how far it is
}

// Check says what is impossible of a Config.
func (c *Config) Check() error {
	for _, k := range c.Kinds {
		if !slices.Contains(Kinds(), k) {
			return fmt.Errorf("kind %q: there are %v", k, Kinds())
		}
	}
	for _, n := range c.Peers {
		if n < 1 || n > MaxPeers {
			return fmt.Errorf("%d peers: has to be 1 to %d", n, MaxPeers)
		}
	}
	switch {
	case len(c.Kinds) == 0 || len(c.Peers) == 0 || len(c.Polls) == 0:
		return fmt.Errorf("nothing to measure: at least one kind, number of peers and way to wait is needed")
	case c.Rounds < 1:
		return fmt.Errorf("%d rounds: at least 1 is needed", c.Rounds)
	case c.Time < time.Millisecond:
		return fmt.Errorf("%v for a measurement: at least 1ms is needed", c.Time)
	case c.Every < 0:
		return fmt.Errorf("a request every %v: at least 0s is needed", c.Every)
	case c.ServerCPU == c.ClientCPU || c.ServerCPU == c.HostileCPU:
		return fmt.Errorf("CPU %d: the server needs one to itself", c.ServerCPU)
	}
	return nil
}

// shared reports whether the victim's client has to leave its CPU to the peers while it
// waits.
func (c *Config) shared() bool { return c.ClientCPU == c.HostileCPU }

// spins reports whether the victim's client spins, as the server's end does. It can't
// where it would keep the peers from their CPU.
func (c *Config) spins(poll load.Poll) bool { return poll == load.Spin && !c.shared() }
