package memnet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/engine/transport/transporttest"
)

// bubble runs test on a pair of a network in a bubble.
func bubble(t *testing.T, opts memnet.Options, test func(t *testing.T, p *transporttest.Pair)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, transporttest.NewPair(t, harness(&opts, "192.0.2.1"))) })
}

func TestDelayIsKept(t *testing.T) {
	bubble(t, memnet.Options{MinDelay: 3 * time.Second, MaxDelay: 3 * time.Second}, func(t *testing.T, p *transporttest.Pair) {
		start := time.Now()
		p.Dialed.Send([]byte("x"))
		time.Sleep(time.Second)
		p.Dialed.Send([]byte("y"))
		p.Accepted.Receive(1)
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("the first byte took %s", d)
		}
		p.Accepted.Receive(1)
		if d := time.Since(start); d != 4*time.Second {
			t.Errorf("the second byte arrived after %s", d)
		}
		_ = p.Dialed.Abort()
		if err := p.Accepted.ReadError(); !errors.Is(err, syscall.ECONNRESET) || time.Since(start) != 7*time.Second {
			t.Errorf("%v after %s, want ECONNRESET after 7s", err, time.Since(start))
		}
	})
}

func TestWindow(t *testing.T) {
	bubble(t, memnet.Options{Window: 10, MaxDelay: time.Second}, func(t *testing.T, p *transporttest.Pair) {
		if n, err := p.Dialed.Writev([][]byte{make([]byte, 6), make([]byte, 6)}); n != 10 || err != nil {
			t.Errorf("Writev into a window of 10: %d, %v", n, err)
		}
		if _, err := p.Dialed.Writev([][]byte{{1}}); err != transport.ErrWouldBlock {
			t.Errorf("Writev into a full window: %v", err)
		}
		p.Accepted.Receive(4)
		if n, err := p.Dialed.Writev([][]byte{make([]byte, 9)}); n != 4 || err != nil {
			t.Errorf("Writev after 4 bytes were read: %d, %v", n, err)
		}
	})
}

func TestFilterChangesOctets(t *testing.T) {
	var offsets []string
	opts := memnet.Options{MSS: 4, Filter: func(s *memnet.Segment) memnet.Verdict {
		offsets = append(offsets, fmt.Sprint(s.Conn, s.FromDialer, s.Offset, len(s.Data)))
		if s.Offset == 4 {
			s.Data[1] ^= 0x20
		}
		return memnet.Pass
	}}
	bubble(t, opts, func(t *testing.T, p *transporttest.Pair) {
		p.Dialed.Send([]byte("abcdefghij"))
		if got := p.Accepted.Receive(10); string(got) != "abcdeFghij" {
			t.Errorf("received %q", got)
		}
		if got, want := strings.Join(offsets, ", "), "1 true 0 4, 1 true 4 4, 1 true 8 2"; got != want {
			t.Errorf("filter saw %s, want %s", got, want)
		}
	})
}

func TestFilterResets(t *testing.T) {
	opts := memnet.Options{MSS: 4, MaxDelay: time.Millisecond, Filter: func(s *memnet.Segment) memnet.Verdict {
		if s.Offset >= 8 {
			return memnet.Reset
		}
		return memnet.Pass
	}}
	bubble(t, opts, func(t *testing.T, p *transporttest.Pair) {
		p.Dialed.Send([]byte("abcdefghijklmnop"))
		if got := p.Accepted.Receive(8); string(got) != "abcdefgh" {
			t.Errorf("received %q", got)
		}
		for _, e := range []*transporttest.End{p.Accepted, p.Dialed} {
			if err := e.ReadError(); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read: %v, want ECONNRESET", err)
			}
			if _, err := e.Writev([][]byte{{1}}); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("write: %v, want EPIPE", err)
			}
			if err := e.CloseWrite(); !errors.Is(err, syscall.ENOTCONN) {
				t.Errorf("CloseWrite: %v, want ENOTCONN", err)
			}
		}
	})
}

func TestFilterStalls(t *testing.T) {
	opts := memnet.Options{MSS: 4, Window: 100, Filter: func(s *memnet.Segment) memnet.Verdict {
		if s.Offset >= 4 {
			return memnet.Stall
		}
		return memnet.Pass
	}}
	bubble(t, opts, func(t *testing.T, p *transporttest.Pair) {
		p.Dialed.Send([]byte("abcdefgh"))
		p.Accepted.Receive(4)
		p.Accepted.Send([]byte("zzzz"))
		_ = p.Accepted.CloseWrite()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for p.Poller.Poll() > 0 { // what was ready before
		}
		if err := p.Poller.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait: %v, want nothing for an hour", err)
		}
	})
}

func TestReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(&memnet.Options{MinDelay: time.Millisecond})
		silent, unknown := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")
		n.SetReach(silent, memnet.Silent)
		n.SetReach(unknown, memnet.HostUnknown)
		for _, tc := range []struct {
			addr netip.Addr
			want error
			min  time.Duration
		}{
			{unknown, syscall.EHOSTUNREACH, 0},
			{silent, syscall.ETIMEDOUT, time.Minute},
			{netip.MustParseAddr("198.51.100.3"), syscall.ENETUNREACH, 0},
		} {
			start := time.Now()
			_, err := n.Dial(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(tc.addr, 1))
			if !errors.Is(err, tc.want) || time.Since(start) < tc.min {
				t.Errorf("dialling %s: %v after %s, want %v", tc.addr, err, time.Since(start), tc.want)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := n.Dial(ctx, netip.AddrPort{}, netip.AddrPortFrom(silent, 1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dialling with a deadline: %v", err)
		}
		if local, err := n.Route(silent); err != nil || local != netip.MustParseAddr("192.0.2.1") {
			t.Errorf("route to %s: %s, %v", silent, local, err)
		}
	})
}

func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := memnet.New(nil)
		l := testkit.Must(n.Listen(netip.MustParseAddrPort("[::]:7471"), 1))(t)
		dst := netip.MustParseAddrPort("192.0.2.2:7471")
		first := testkit.Must(n.Dial(t.Context(), netip.AddrPort{}, dst))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := n.Dial(ctx, netip.AddrPort{}, dst); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dialling a full backlog: %v", err)
		}
		if _, err := n.Dial(t.Context(), netip.AddrPort{}, dst); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("dialling a full backlog without a deadline: %v", err)
		}
		refused := make(chan error)
		go func() {
			_, err := n.Dial(t.Context(), netip.AddrPort{}, dst)
			refused <- err
		}()
		synctest.Wait()
		_ = l.Close()
		if err := <-refused; !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the listener closed meanwhile: %v", err)
		}
		if _, err := first.Readv([][]byte{{0}}); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection that nobody accepted reads %v", err)
		}
		_ = first.Close()
	})
}

// log is a tap that writes what it sees down.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Tap(r transport.TapRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(&l.buf, "%s dialed=%v sent=%v %s %x\n", r.Time.Format("05.000000"), r.Dialed, r.Sent, r.Event, r.Data)
}

// byEnd has what the ends saw at the same time end by end: which of them was first is not the
// network's to decide.
func (l *log) byEnd() string {
	lines := strings.SplitAfter(l.buf.String(), "\n")
	slices.SortStableFunc(lines, func(a, b string) int {
		end := func(line string) string { return line[:max(strings.Index(line, " sent="), 0)] }
		return strings.Compare(end(a), end(b))
	})
	return strings.Join(lines, "")
}

// TestSameSeedSameRun runs a conversation twice and compares what the tap saw,
// times included.
func TestSameSeedSameRun(t *testing.T) {
	run := func(seed uint64) string {
		var l log
		opts := memnet.Options{Seed: seed, Cut: true, MaxDelay: 50 * time.Millisecond, Tap: &l}
		bubble(t, opts, func(t *testing.T, p *transporttest.Pair) {
			for i := range 10 {
				p.Dialed.Send(bytes.Repeat([]byte{byte(i)}, 100*i+1))
				p.Accepted.Receive(100*i + 1)
				p.Accepted.Send([]byte{0xff})
				p.Dialed.Receive(1)
			}
			_ = p.Dialed.CloseWrite()
			p.Accepted.WantEOF("at the end")
			_ = p.Accepted.Abort()
			if err := p.Dialed.ReadError(); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read: %v", err)
			}
		})
		return l.byEnd()
	}
	first := run(1)
	if again := run(1); again != first {
		t.Errorf("seed 1 gave\n%s\nand then\n%s", first, again)
	}
	if run(2) == first {
		t.Error("another seed gives the same run")
	}
	for _, want := range []string{"dialed=true sent=true open", "dialed=false sent=false open", "dialed=true sent=true FIN",
		"dialed=false sent=false FIN", "dialed=false sent=true reset", "dialed=true sent=false reset"} {
		if strings.Count(first, want) != 1 {
			t.Errorf("the tap saw %q %d times, want once", want, strings.Count(first, want))
		}
	}
}
