package victim

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/bench/load"
	"github.com/govs-rdma/govs/ci/testkit"
)

// world has a server and the victim's client in this process.
type world struct {
	server *server
	client *echo
}

func newWorld(t *testing.T, poll load.Poll) *world {
	t.Helper()
	ctx := context.Background()
	at, err := device(0)
	testkit.OK(t, err)
	t.Cleanup(func() { testkit.OK(t, at.Close()) })
	s, err := serve(ctx, at, poll)
	testkit.OK(t, err)
	t.Cleanup(func() { testkit.OK(t, s.close()) })
	from, err := device(-1)
	testkit.OK(t, err)
	t.Cleanup(func() { testkit.OK(t, from.Close()) })
	client, err := dial(ctx, from, s.victim.Addr(), false)
	testkit.OK(t, err)
	t.Cleanup(func() { testkit.OK(t, client.close()) })
	return &world{s, client}
}

// until waits until done reports true; what names the condition.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after a minute", what)
		}
	}
}

// did has what peers of each kind must have done after a while: what their kind does, and nothing
// else.
var did = map[Kind]func(c Counts) error{
	Idle: func(c Counts) error {
		return want(c.Connections == 2 && c.FPDUs == 0 && c.Received == 0, "two connections and nothing on them")
	},
	Reader: func(c Counts) error {
		return want(c.Reads > 0 && c.Received >= c.Reads*readSize &&
			c.Requests == 2*maxDepth+c.Reads && c.FPDUs == c.Requests,
			"Reads answered in full, and another Read requested in place of each")
	},
	Slow: func(c Counts) error {
		return want(c.Requests == 2*maxDepth && c.Reads == 0 && c.Received >= 10<<10,
			"as many Reads requested as the IRD allows, and 10 KiB taken")
	},
	Dribble: func(c Counts) error {
		return want(c.FPDUs > 0 && c.Writes >= c.FPDUs*dribbleTail, "a write for each of the last bytes of each FPDU")
	},
	Connect: func(c Counts) error {
		return want(c.Connections > 1 && c.TCP > 2*c.Connections, "a Reply to some of the connections")
	},
	Terminate: func(c Counts) error {
		return want(c.TermSeen > 1 && c.TermSent > 1 && c.Connections >= c.TermSeen+c.TermSent,
			"Terminates of both sides, each on a connection of its own")
	},
	Zero: func(c Counts) error {
		return want(c.FPDUs >= 300_000 && c.Sent >= 20*c.FPDUs && c.Sent <= 20*c.FPDUs+2*drainSize,
			"FPDUs of 20 bytes")
	},
	Tiny: func(c Counts) error {
		return want(c.FPDUs > c.Requests && c.Received > 1<<16, "Reads, and Writes besides")
	},
}

func want(is bool, what string) error {
	if !is {
		return fmt.Errorf("want %s", what)
	}
	return nil
}

// TestKinds: peers of each kind act as their kind, the server does not end their connections for
// that, and the victim still gets answers.
func TestKinds(t *testing.T) {
	for _, poll := range []load.Poll{load.Block, load.Spin} {
		for _, kind := range slices.Concat([]Kind{Idle}, Kinds()) {
			t.Run(fmt.Sprintf("%s %s", poll, kind), func(t *testing.T) {
				ctx := t.Context()
				w := newWorld(t, poll)
				began := time.Now()
				h, err := begin(ctx, w.server.others.Addr(), kind, 2)
				testkit.OK(t, err)
				p, err := w.client.pings(ctx, 50*time.Millisecond, time.Millisecond)
				testkit.OK(t, err)
				if p.N == 0 || p.RTT.Median <= 0 {
					t.Errorf("round trips %+v", p)
				}
				// The counts are not read at the same time, so they may fit only after a while.
				until(t, string(kind), func() bool { return did[kind](h.counts.now()) == nil })
				if took := time.Since(began); kind == Slow && took < 180*time.Millisecond {
					t.Errorf("10 KiB were taken in %v; want 1 KiB each 20 ms, by one of the two", took)
				}
				h.end()
				if n := h.counts.cut.Load(); n != 0 {
					t.Errorf("%d connections cut short, the first by: %v", n, *h.first.Load())
				}
				until(t, "the server has got rid of them", func() bool { return w.server.live.Load() == 0 })
			})
		}
	}
}

// TestPeersComeAgain: a peer whose connection the server closes connects again, and is counted.
func TestPeersComeAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.OK(t, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	h := &hostile{addr: l.Addr().(*net.TCPAddr).AddrPort()}
	ctx, cancel := context.WithCancel(t.Context())
	h.cancel = cancel
	h.atWork.Add(1)
	h.tasks.Go(func() { h.peer(ctx, Zero, 0) })
	until(t, "three attempts", func() bool { return h.counts.cut.Load() >= 3 })
	h.end()
	testkit.OK(t, l.Close())
	if n := h.counts.connections.Load(); n != 0 {
		t.Errorf("%d connections count as established, and none had a Reply", n)
	}
	if h.first.Load() == nil {
		t.Error("the first error was not kept")
	}
}

// TestTinySegments: segments that a peer sends as tiny ones arrive as tiny ones at the server.
func TestTinySegments(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.OK(t, err)
	defer func() { _ = l.Close() }()
	h := &hostile{addr: l.Addr().(*net.TCPAddr).AddrPort()}
	c, err := h.connect(t.Context(), socketOf(Tiny))
	testkit.OK(t, err)
	defer func() { _ = c.Close() }()
	s, err := l.Accept()
	testkit.OK(t, err)
	defer func() { _ = s.Close() }()
	raw, err := s.(*net.TCPConn).SyscallConn()
	testkit.OK(t, err)
	testkit.OK(t, raw.Control(func(fd uintptr) {
		if mss, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG); err != nil || mss > 88 {
			t.Errorf("the server's MSS is %d, %v; want at most 88", mss, err)
		}
	}))
}
