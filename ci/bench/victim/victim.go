// Package victim measures the effect of peers on another peer: the round trips of one well-behaved
// connection, the victim, beside N connections of hostile peers of one kind, compared with its
// round trips beside N idle connections.
//
// # What is measured
//
// There are three processes. The server has one device of the engine, which serves the
// victim and the hostile peers. The victim's client has a device of its own. The hostile
// peers are plain TCP sockets that speak MPA, DDP and RDMAP by hand, so that the measurement
// covers the server's engine, not the engine of the process that loads it.
//
// The server has a CPU to itself. The victim's client and the hostile peers share
// another one, unless there is a third. The peers have the scheduler's lowest policy
// (SCHED_IDLE), and a client that shares their CPU sleeps while it waits: it gets the CPU
// as soon as there is something for it to do, and the peers have the rest. So the peers
// work at the same time as the server, which makes a pass of the server's loop long, but they do
// not take the CPU from either end of the victim's connection. The report still has the time for
// which threads of client and server waited for a CPU (/proc, schedstat).
//
// The script run keeps all CPUs awake. Otherwise the client's would be halted while it sleeps
// beside idle connections, its wake-up would take longer than beside busy peers, and ratios
// would be too low.
//
// # Round trips
//
// The client sends a message of 64 bytes, and the server answers it with another. The
// time runs from before the post to the answer's completion.
//
// Requests are due at even intervals, one at a time. Requests that fall due while another one is
// under way are not sent. They count as if they had been sent and answered together with that
// one, because otherwise a stall of a second would be a single round trip among many, and p99
// would not show it.
package victim

import (
	"fmt"
	"slices"
	"time"

	"github.com/govs-rdma/govs/ci/bench/load"
)

// A Kind is what hostile peers do.
type Kind string

// The kinds. The others are compared with Idle.
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

// meaning describes what each kind does, in the order of reports.
var meaning = []struct {
	kind Kind
	what string
}{
	{Reader, "keeps as many RDMA Reads of 16 MiB outstanding as the IRD allows, and takes the responses " +
		"as fast as it can"},
	{Slow, "requests as many Reads, with a small receive buffer; every other peer takes 1 KiB " +
		"each 20 ms, the rest take nothing"},
	{Dribble, "sends RDMA Writes of 32 KiB, the last 4 KiB of each FPDU one byte at a time"},
	{Connect, "connects and resets, by turns before the Request, after it, and after the Reply"},
	{Terminate, "ends connections with a Terminate: by turns its own, and the server's, " +
		"which answers a Write to a region that does not exist"},
	{Zero, "sends RDMA Writes without payload, FPDUs of 20 bytes, 3,276 of them in one system call"},
	{Tiny, "has an MSS of 88; requests RDMA Reads as reader does, and sends RDMA Writes of 40 bytes, each in " +
		"a segment of its own"},
}

// Kinds are the hostile kinds.
func Kinds() []Kind {
	var list []Kind
	for _, m := range meaning {
		list = append(list, m.kind)
	}
	return list
}

// MaxPeers limits the hostile peers, because their sockets are all in one process.
const MaxPeers = 4096

// limit returns the limit of the ratio of p99 beside this number of peers, or 0 for no limit.
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
	Every  time.Duration // the interval of requests; 0: as soon as the previous one is answered

	ServerCPU, ClientCPU, HostileCPU int

	Normal bool // the peers have the scheduler's usual policy: for tests on a busy machine

	Worker []string                         // command that calls Serve; the role is appended
	Say    func(format string, args ...any) // reports progress
}

// Check returns an error if the configuration is impossible.
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
	for _, p := range c.Polls {
		if p != load.Spin && p != load.Block {
			return fmt.Errorf("poll %q: spin or block", p)
		}
	}
	switch {
	case len(c.Kinds) == 0 || len(c.Peers) == 0 || len(c.Polls) == 0:
		return fmt.Errorf("nothing to measure: at least one kind, one number of peers and one way to wait are needed")
	case c.Rounds < 1:
		return fmt.Errorf("--rounds %d: at least 1 is needed", c.Rounds)
	case c.Time < time.Millisecond:
		return fmt.Errorf("%v for a measurement: at least 1ms is needed", c.Time)
	case c.Every < 0:
		return fmt.Errorf("a request every %v: at least 0s is needed", c.Every)
	case c.ServerCPU == c.ClientCPU || c.ServerCPU == c.HostileCPU:
		return fmt.Errorf("CPU %d: the server needs one to itself", c.ServerCPU)
	}
	return nil
}

// shared reports whether the victim's client shares its CPU with the peers.
func (c *Config) shared() bool { return c.ClientCPU == c.HostileCPU }

// spins reports whether the victim's client spins. It spins if the server's end spins, unless the
// client shares its CPU with the peers.
func (c *Config) spins(poll load.Poll) bool { return poll == load.Spin && !c.shared() }
