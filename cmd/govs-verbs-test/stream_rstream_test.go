//go:build !race

package main

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/siwhang"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rstream"
)

// An rstreamCase is a run of C's rstream with our stream --bench at the other end.
type rstreamCase struct {
	flags string // of rstream
	ours  string // of stream --bench
	says  string // what rstream prints
	row   string // what ours prints
	six   bool   // over IPv6
	guest bool   // also run with siw

	siw     bool // rstream is over siw
	refused bool // our end is over siw, and may refuse rstream's first message when it dials: see refusedEarly
}

// rstreamCases: -T v makes rstream send what our --verify expects, and verify what we send. Other
// modes choose how rstream waits: -T b in blocking calls, -T n (the default) in non-blocking calls,
// -T a in poll before each call. -T r looks up addresses with rdma_getaddrinfo. -T f and -T s use
// TCP: see TestStreamWithRstreamOverTCP.
var rstreamCases = []rstreamCase{
	{flags: "-T v -T b -S 4096 -C 20 -I 20", ours: "--verify -S 4096 -C 20 -I 20",
		says: "custom    4k      20      20", row: "     4096          800 "},
	{flags: "-T v -T n -S 4096 -C 20 -I 20", ours: "--verify -S 4096 -C 20 -I 20",
		says: "custom    4k      20      20", row: "     4096          800 "},
	{flags: "-T v -T a -S 4096 -C 20 -I 20", ours: "--verify -S 4096 -C 20 -I 20",
		says: "custom    4k      20      20", row: "     4096          800 "},
	{flags: "-T v -T a -T b -S 4096 -C 20 -I 20", ours: "--verify -S 4096 -C 20 -I 20",
		says: "custom    4k      20      20", row: "     4096          800 "},
	{flags: "-T v -T r -S 4096 -C 20 -I 20", ours: "--verify -S 4096 -C 20 -I 20",
		says: "custom    4k      20      20", row: "     4096          800 "},
	{flags: "-T v -T b -S 4096 -C 20 -I 20", ours: "--verify -S 4096 -C 20 -I 20",
		says: "custom    4k      20      20", row: "     4096          800 ", six: true},
	{flags: "-T v -T r -T b -S 4096 -C 20 -I 20", ours: "--verify -S 4096 -C 20 -I 20",
		says: "custom    4k      20      20", row: "     4096          800 ", six: true, guest: true},
	// rstream's defaults.
	{flags: "-T b -I 2", ours: "-I 2",
		says: "custom    1000    1k      2", row: "     1000         4000 "},
	// Round trips.
	{flags: "-T v -T b -S 64 -C 1 -I 300", ours: "--verify -S 64 -C 1 -I 300",
		says: "custom    64      1       300", row: "       64          300 ", guest: true},
	// Sizes around the limits of the protocol.
	{flags: "-T v -T b -S 1 -C 300 -I 2", ours: "--verify -S 1 -C 300 -I 2",
		says: "custom    1       300     2", row: "        1         1200 "},
	{flags: "-T v -T b -S 65536 -C 50 -I 2", ours: "--verify -S 65536 -C 50 -I 2",
		says: "custom    64k     50      2", row: "    65536          200 "},
	{flags: "-T v -T n -S 3000000 -C 3 -I 2", ours: "--verify -S 3000000 -C 3 -I 2",
		says: "custom    2.8m    3       2", row: "  3000000           12 ", guest: true},
	// More transfers than either end has receives; two ends of C fail with these (docs/exec.md).
	{flags: "-T b -S 1024 -C 1000 -I 2", ours: "-S 1024 -C 1000 -I 2",
		says: "custom    1k      1k      2", row: "     1024         4000 ", guest: true},
	// Rings of other sizes than rstream's defaults, and than ours.
	{flags: "-T v -T b -B 8192 -S 50000 -C 10 -I 2",
		ours: "--verify --buffer 4000 -S 50000 -C 10 -I 2",
		says: "custom    48k     10      2", row: "    50000           40 "},
}

func (c rstreamCase) String() string {
	name := "rstream " + c.flags
	if c.six {
		name += ", IPv6"
	}
	return name
}

// mostAttempts is how often both ends are run if siw loses the connection.
const mostAttempts = 4

// refusedEarly reports whether our end over siw has no connection because the accepting end sent
// before it had received anything. A C rsocket does that as soon as its program reads, and siw lets
// it, against RFC 5044 section 7.1.2. If the message comes together with the Reply, siw refuses it
// when it connects (EPROTO). The engine accepts it.
func refusedEarly(ours *command) bool {
	said := ours.stderr.String()
	return strings.Contains(said, "connecting: ") && strings.Contains(said, "protocol error")
}

// lostAtEnd reports whether rstream over siw has done its part, and our end has not received
// rstream's last bytes. siw closes its socket with our bytes in it unread, so TCP resets the
// connection (kernel-notes/siw-close-resets.md).
func (c rstreamCase) lostAtEnd(t *testing.T, ours *command, rstream *program) bool {
	return wasReset(ours.stderr.String()) &&
		rstream.wait(t) == 0 && strings.Contains(rstream.stdout.String(), c.says)
}

// wasReset reports whether an end says last that TCP reset its connection. The error of a
// connection that is lost always ends with the same words. Over the engine the cause precedes them,
// and a FIN or a refusal by the engine may be the engine's fault. siw reports no cause.
func wasReset(said string) bool {
	return reset.MatchString(strings.TrimSpace(said))
}

var reset = regexp.MustCompile(`(rsocket \S+|the TCP connection broke): connection reset by peer$`)

// TestWasReset: runs are repeated only after a reset by TCP, and not after other ends of a
// connection.
func TestWasReset(t *testing.T) {
	const lost = "govs-verbs-test: read rsocket 192.0.2.1:1->192.0.2.1:2: "
	for cause, want := range map[string]bool{
		"":                                      true, // over siw
		"the TCP connection broke: ":            true,
		"the peer closed the connection: EOF: ": false,
		"the peer closed the connection inside an FPDU: unexpected EOF: ": false,
		"this side sent a Terminate: MPA CRC error: ":                     false,
		"the TCP connection broke: connection timed out: ":                false,
	} {
		if got := wasReset("provider: as asked\n" + lost + cause + "connection reset by peer\n"); got != want {
			t.Errorf("after %q: %v, want %v", cause, got, want)
		}
	}
}

// run runs both ends, and again if siw loses the connection. If siwAccepts is true, siw may also
// accept the connection and not read its first bytes, and then both run again, too.
func (c rstreamCase) run(t *testing.T, siwAccepts bool,
	pair func(port uint16) (ours *command, rstream *program)) {
	for attempt := 1; ; attempt++ {
		port := freePort()
		ours, rstream := pair(port)
		if siwAccepts && siwhang.Hung(t, port, ours.done) {
			rstream.kill()
			ours.kill()
			attempt--
			continue
		}
		if c.siw && attempt < mostAttempts && ours.wait(t) != exitPassed {
			if c.refused && refusedEarly(ours) {
				rstream.kill() // it goes on reading
				t.Logf("rstream spoke too early: %s", &ours.stderr)
				continue
			}
			if c.lostAtEnd(t, ours, rstream) {
				t.Logf("siw reset the connection at its end: %s", &ours.stderr)
				continue
			}
		}
		ours.want(t, exitPassed, parts(c.row), nil)
		rstream.want(t, 0, c.says)
		return
	}
}

// weDial makes rstream listen at addr, and our end connect. Our end also gets its answer from siw,
// because package rsocket sends siw more, so that siw reads it.
func (c rstreamCase) weDial(t *testing.T, addr string, rstream launcher, ours ...string) {
	c.run(t, false, func(port uint16) (*command, *program) {
		server := rstream(nil, append([]string{"rstream", "-b", addr, "-p", fmt.Sprint(port)},
			words(c.flags)...)...)
		awaitListener(t, server, port)
		client := start(t, slices.Concat([]string{"stream", "--bench", at(addr, port)},
			words(c.ours), ours)...)
		return client, server
	})
}

// weListen makes our end listen at addr, and rstream connect.
func (c rstreamCase) weListen(t *testing.T, addr string, rstream launcher, ours ...string) {
	c.run(t, c.refused, func(port uint16) (*command, *program) {
		server := start(t, slices.Concat([]string{"stream", "--bench", "--listen", at(addr, port)},
			words(c.ours), ours)...)
		server.stderr.await(t, "listening on ")
		client := rstream(nil, append([]string{"rstream", "-s", addr, "-p", fmt.Sprint(port)},
			words(c.flags)...)...)
		return server, client
	})
}

// at is an address with a port.
func at(addr string, port uint16) string {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port).String()
}

// onEngine are flags of our end over the engine. The congestion control is the one that newBridged
// gives to C programs.
var onEngine = words("--provider engine --cong reno")

// TestStreamWithRstream runs our stream --bench over the engine at one end, and rstream over the
// bridge at the other.
func TestStreamWithRstream(t *testing.T) {
	b := newBridged(t)
	for _, c := range rstreamCases {
		addr := "127.0.0.1"
		if c.six {
			addr = "::1"
		}
		t.Run(c.String()+", we dial", func(t *testing.T) {
			c.weDial(t, addr, b.of(t).launch, onEngine...)
		})
		t.Run(c.String()+", we listen", func(t *testing.T) {
			c.weListen(t, addr, b.of(t).launch, onEngine...)
		})
	}
}

// TestStreamWithRstreamOverTCP: rstream -T s uses TCP sockets, and so does -T f, which forks
// (its child would stay). Our end can't connect to such a server, and says so.
func TestStreamWithRstreamOverTCP(t *testing.T) {
	b := newBridged(t)
	port := freePort()
	server := b.launch(nil, "rstream", "-b", "127.0.0.1", "-p", fmt.Sprint(port), "-T", "s", "-C", "1")
	awaitListener(t, server, port)
	args := slices.Concat(words("stream --bench -C 1 --timeout 2s"), onEngine, []string{
		at("127.0.0.1", port)})
	start(t, args...).want(t, exitFailed, nil, parts("connecting: dial rsocket 127.0.0.1:"))
}

// TestStreamWithRstreamAll makes rstream and our end use all 33 sizes of rstream -S all. rstream
// itself takes a million round trips for that, and no option changes this. So each size has its
// own run: in turns one of round trips, in which our end dials, and one in each direction, in
// which it listens.
func TestStreamWithRstreamAll(t *testing.T) {
	if testing.Short() {
		t.Skip("33 pairs of processes: make check leaves them out")
	}
	b := newBridged(t)
	for i, size := range rstream.Sizes(true) {
		trips := rstreamCase{
			flags: fmt.Sprintf("-T v -T b -S %d -C 1 -I 20", size),
			ours:  fmt.Sprintf("--verify -S %d -C 1 -I 20", size),
			says:  " 1       20", row: fmt.Sprintf("%9d           20 ", size),
		}
		oneWay := rstreamCase{
			flags: fmt.Sprintf("-T v -T b -S %d -C 20 -I 1", size),
			ours:  fmt.Sprintf("--verify -S %d -C 20 -I 1", size),
			says:  " 20      1", row: fmt.Sprintf("%9d           40 ", size),
		}
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			if i%2 == 0 {
				trips.weDial(t, "127.0.0.1", b.of(t).launch, onEngine...)
			} else {
				oneWay.weListen(t, "127.0.0.1", b.of(t).launch, onEngine...)
			}
		})
	}
}

// TestStreamManyTransfers: an rsocket has fewer numbers than the 70,000 messages that go each way.
// rstream's four sizes without options, which are 111,000 round trips and as many messages each
// way, are among those of TestStreamWithRstreamAll.
func TestStreamManyTransfers(t *testing.T) {
	b := newBridged(t)
	c := rstreamCase{flags: "-T v -T b -S 64 -C 70000 -I 1", ours: "--verify -S 64 -C 70000 -I 1",
		says: "custom    64      70k     1", row: "       64       140000 "}
	c.weDial(t, "127.0.0.1", b.of(t).launch, onEngine...)
}
