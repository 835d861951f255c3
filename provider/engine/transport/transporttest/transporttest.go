// Package transporttest has the contract of package transport as tests, to be run over every
// implementation, and blocking helpers for other tests.
package transporttest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// Harness is a Network under test.
type Harness struct {
	Network  transport.Network
	Local    netip.AddrPort // a local address with port 0
	NotLocal netip.Addr     // an address that is nobody's
	NoRoute  netip.Addr     // an address that no route leads to; invalid if there is none
}

// Run runs the contract's tests. run makes a harness for each test and calls the test with it, in a
// synctest bubble if it wants.
func Run(t *testing.T, run func(t *testing.T, test func(t *testing.T, h Harness))) {
	for _, tc := range []struct {
		name string
		test func(t *testing.T, h Harness)
	}{
		{"bytes arrive in order through any cut", testStream},
		{"bytes arrive in order in any records", testRecords},
		{"an idle stream would block", testIdle},
		{"CloseWrite ends one direction", testCloseWrite},
		{"Close ends both", testClose},
		{"Close with bytes unread resets", testCloseUnread},
		{"Abort resets", testAbort},
		{"methods of a closed stream", testClosedStream},
		{"a full stream becomes writable", testFull},
		{"WantRead", testWantRead},
		{"Remove and Close take streams out", testRemove},
		{"Add refuses", testAddRefuses},
		{"Wait, Wake and the context", testWait},
		{"a closed poller", testClosedPoller},
		{"nobody listens", testRefused},
		{"port taken", testInUse},
		{"addresses that are not ours", testNotLocal},
		{"no route", testNoRoute},
		{"Bind reserves a port", testBind},
		{"Accept ends", testAcceptEnds},
		{"Dial ends with its context", testDialContext},
		{"route", testRoute},
		{"many streams in one poller", testMany},
		{"MSS", testMSS},
	} {
		t.Run(tc.name, func(t *testing.T) { run(t, tc.test) })
	}
}

func testStream(t *testing.T, h Harness) {
	p := NewPair(t, h)
	rnd := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, 100_000)
	for i := range want {
		want[i] = byte(rnd.Uint32())
	}
	var got []byte
	rest := want
	for len(got) < len(want) {
		if len(rest) > 0 {
			n, err := p.Dialed.Writev(cut(rest, rnd))
			if err != nil && !errors.Is(err, transport.ErrWouldBlock) {
				t.Fatalf("Writev: %v", err)
			}
			rest = rest[n:]
		}
		bufs := cut(make([]byte, 1+rnd.IntN(3000)), rnd)
		n, err := p.Accepted.Read(bufs...)
		if err != nil {
			t.Fatalf("Readv: %v", err)
		}
		got = append(got, bytes.Join(bufs, nil)[:n]...)
	}
	if !bytes.Equal(got, want) {
		t.Error("the bytes received are not those sent")
	}
}

// testRecords writes records that begin and end anywhere in the buffers, with more of both than one
// system call takes.
func testRecords(t *testing.T, h Harness) {
	p := NewPair(t, h)
	w, ok := p.Dialed.Conn.(transport.RecordWriter)
	if !ok {
		t.Fatalf("%T has no WriteRecords", p.Dialed.Conn)
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	buf := make([]byte, 100_000)
	for round, longest := range []int{1, 8, 100, 4000, 70_000} {
		want := make([]byte, 5000+longest)
		for i := range want {
			want[i] = byte(rnd.Uint32())
		}
		got := make([]byte, 0, len(want))
		for rest := want; len(got) < len(want); {
			if len(rest) > 0 {
				offer := rest
				if rnd.IntN(50) > 0 { // a full window takes few bytes, and cutting all of them takes long
					offer = rest[:min(len(rest), 500)]
				}
				n, err := w.WriteRecords(cutAll(offer, rnd), lengths(len(offer), longest, rnd))
				if err != nil && !errors.Is(err, transport.ErrWouldBlock) {
					t.Fatalf("WriteRecords: %v", err)
				}
				rest = rest[n:]
			}
			n, err := p.Accepted.Read(buf[:1+rnd.IntN(len(buf))])
			if err != nil {
				t.Fatalf("Readv: %v", err)
			}
			got = append(got, buf[:n]...)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("round %d: the bytes received are not those sent", round)
		}
	}
	if n, err := w.WriteRecords(nil, nil); n != 0 || err != nil {
		t.Errorf("WriteRecords of nothing: %d, %v", n, err)
	}
	if n, err := w.WriteRecords([][]byte{{}, {}}, []int{0}); n != 0 || err != nil {
		t.Errorf("WriteRecords of an empty record: %d, %v", n, err)
	}
	testkit.OK(t, p.Dialed.Close())
	if _, err := w.WriteRecords([][]byte{{0}}, []int{1}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("WriteRecords after Close: %v", err)
	}
}

// cutAll cuts all of b into pieces, some of them empty.
func cutAll(b []byte, rnd *rand.Rand) [][]byte {
	var bufs [][]byte
	for most := max(1<<rnd.IntN(12), len(b)/2000); len(b) > 0; {
		n := min(len(b), rnd.IntN(most+1))
		bufs = append(bufs, b[:n])
		b = b[n:]
	}
	return bufs
}

// lengths cuts n bytes into records of at most longest.
func lengths(n, longest int, rnd *rand.Rand) []int {
	var records []int
	for n > 0 {
		r := min(n, 1+rnd.IntN(longest))
		records = append(records, r)
		n -= r
	}
	return records
}

// cut cuts b into up to 40 pieces, some of them empty.
func cut(b []byte, rnd *rand.Rand) [][]byte {
	var bufs [][]byte
	for range 1 + rnd.IntN(40) {
		n := min(len(b), rnd.IntN(500))
		bufs = append(bufs, b[:n])
		b = b[n:]
	}
	return append(bufs, b)
}

func testIdle(t *testing.T, h Harness) {
	p := NewPair(t, h)
	if n, err := p.Dialed.Readv([][]byte{make([]byte, 10)}); n != 0 || !errors.Is(err, transport.ErrWouldBlock) {
		t.Errorf("Readv of an idle stream: %d, %v; want 0, ErrWouldBlock", n, err)
	}
	for _, bufs := range [][][]byte{nil, {}, {nil}, {{}, {}}} {
		if n, err := p.Dialed.Readv(bufs); n != 0 || err != nil {
			t.Errorf("Readv into nothing: %d, %v", n, err)
		}
		if n, err := p.Dialed.Writev(bufs); n != 0 || err != nil {
			t.Errorf("Writev of nothing: %d, %v", n, err)
		}
	}
	if p.Dialed.LocalAddr() != p.Accepted.RemoteAddr() || p.Dialed.RemoteAddr() != p.Accepted.LocalAddr() {
		t.Errorf("addresses: %s to %s seen from one end, %s to %s from the other",
			p.Dialed.LocalAddr(), p.Dialed.RemoteAddr(), p.Accepted.LocalAddr(), p.Accepted.RemoteAddr())
	}
	if p.Accepted.LocalAddr() != p.Listener.Addr() {
		t.Errorf("accepted on %s, listening on %s", p.Accepted.LocalAddr(), p.Listener.Addr())
	}
}

func testCloseWrite(t *testing.T, h Harness) {
	p := NewPair(t, h)
	p.Dialed.Send([]byte("last words"))
	if err := p.Dialed.CloseWrite(); err != nil {
		t.Fatalf("CloseWrite: %v", err)
	}
	if got := p.Accepted.Receive(10); string(got) != "last words" {
		t.Errorf("received %q", got)
	}
	p.Accepted.WantEOF("after the last byte")
	p.Accepted.WantEOF("for ever after")
	p.Accepted.Send([]byte("answer"))
	if got := p.Dialed.Receive(6); string(got) != "answer" {
		t.Errorf("the other direction carried %q", got)
	}
	if _, err := p.Dialed.Writev([][]byte{{1}}); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("Writev after CloseWrite: %v, want EPIPE", err)
	}
}

func testClose(t *testing.T, h Harness) {
	p := NewPair(t, h)
	p.Dialed.Send([]byte("x"))
	_ = p.Dialed.Close()
	p.Accepted.Receive(1)
	p.Accepted.WantEOF("after Close")
	// The first write after it may succeed: only the answer to it says that nobody is there.
	for {
		_, err := p.Accepted.Writev([][]byte{{1}})
		if err == nil || errors.Is(err, transport.ErrWouldBlock) {
			time.Sleep(time.Millisecond)
			continue
		}
		if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Writev to a closed peer: %v, want EPIPE or ECONNRESET", err)
		}
		return
	}
}

func testCloseUnread(t *testing.T, h Harness) {
	p := NewPair(t, h)
	p.Accepted.Send([]byte("never read"))
	p.Dialed.await(true)
	_ = p.Dialed.Close()
	if err := p.Accepted.ReadError(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("peer reads %v, want ECONNRESET", err)
	}
}

func testAbort(t *testing.T, h Harness) {
	p := NewPair(t, h)
	if err := p.Dialed.Abort(); err != nil {
		t.Fatalf("Abort: %v", err)
	}
	if err := p.Accepted.ReadError(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("peer reads %v, want ECONNRESET", err)
	}
	if _, err := p.Accepted.Writev([][]byte{{1}}); !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("peer writes: %v, want EPIPE or ECONNRESET", err)
	}
}

func testClosedStream(t *testing.T, h Harness) {
	p := NewPair(t, h)
	c := p.Dialed.Conn
	for range 2 {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if err := c.Abort(); err != nil {
		t.Errorf("Abort after Close: %v", err)
	}
	if _, err := c.Readv([][]byte{{0}}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Readv: %v", err)
	}
	if _, err := c.Writev([][]byte{{0}}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Writev: %v", err)
	}
	if err := c.CloseWrite(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("CloseWrite: %v", err)
	}
	if err := p.Poller.Add(c, p.Dialed); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Add: %v", err)
	}
	if c.MSS() <= 0 || !c.LocalAddr().IsValid() || !c.RemoteAddr().IsValid() {
		t.Errorf("MSS %d, addresses %s, %s", c.MSS(), c.LocalAddr(), c.RemoteAddr())
	}
	p.Poller.Remove(c)
}

func testFull(t *testing.T, h Harness) {
	p := NewPair(t, h)
	chunk := make([]byte, 64<<10)
	total := 0
	for {
		n, err := p.Dialed.Writev([][]byte{chunk, chunk})
		if errors.Is(err, transport.ErrWouldBlock) {
			break
		}
		if err != nil {
			t.Fatalf("Writev: %v", err)
		}
		total += n
		if total > 1<<30 {
			t.Fatal("a stream that nobody reads takes a gigabyte")
		}
	}
	if err := p.Poller.WantWrite(p.Dialed.Conn, true); err != nil {
		t.Fatalf("WantWrite: %v", err)
	}
	for left := total; !p.Dialed.take(false); {
		if left == 0 {
			p.Dialed.await(false)
			break
		}
		n, err := p.Accepted.Read(make([]byte, min(left, 1<<20)))
		if err != nil {
			t.Fatalf("Readv: %v", err)
		}
		left -= n
	}
	if n, err := p.Dialed.Writev([][]byte{chunk[:1]}); n != 1 || err != nil {
		t.Errorf("Writev of a stream reported writable: %d, %v", n, err)
	}
}

func testMSS(t *testing.T, h Harness) {
	p := NewPair(t, h)
	if d, a := p.Dialed.MSS(), p.Accepted.MSS(); d < 536 || a < 536 || d > 65535 || a > 65535 {
		t.Errorf("MSS %d and %d", d, a)
	}
}

func testRefused(t *testing.T, h Harness) {
	b, err := h.Network.Bind(h.Local)
	if err != nil {
		t.Fatalf("Bind: %v", err)
	}
	defer func() { _ = b.Close() }()
	_, err = h.Network.Dial(t.Context(), h.Local, b.Addr()) // bound, so nobody else listens there
	if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), b.Addr().String()) {
		t.Errorf("Dial: %v, want ECONNREFUSED of %s", err, b.Addr())
	}
}

func testInUse(t *testing.T, h Harness) {
	l, err := h.Network.Listen(h.Local, 1)
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	_, err = h.Network.Listen(l.Addr(), 1)
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("second Listen: %v, want EADDRINUSE of %s", err, l.Addr())
	}
	_ = l.Close()
	l, err = h.Network.Listen(l.Addr(), 1)
	if err != nil {
		t.Fatalf("Listen after Close: %v", err)
	}
	_ = l.Close()
}

func testNotLocal(t *testing.T, h Harness) {
	foreign := netip.AddrPortFrom(h.NotLocal, 0)
	if _, err := h.Network.Listen(foreign, 1); !errors.Is(err, syscall.EADDRNOTAVAIL) || !strings.Contains(err.Error(), h.NotLocal.String()) {
		t.Errorf("Listen: %v, want EADDRNOTAVAIL of %s", err, h.NotLocal)
	}
	if _, err := h.Network.Dial(t.Context(), foreign, netip.AddrPortFrom(h.Local.Addr(), 1)); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("Dial: %v, want EADDRNOTAVAIL", err)
	}
}

func testNoRoute(t *testing.T, h Harness) {
	_, err := h.Network.Dial(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(h.NoRoute, 1))
	if !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("Dial: %v, want ENETUNREACH", err)
	}
}

func testBind(t *testing.T, h Harness) {
	b, err := h.Network.Bind(h.Local)
	if err != nil {
		t.Fatalf("Bind: %v", err)
	}
	if b.Addr().Addr() != h.Local.Addr() || b.Addr().Port() == 0 {
		t.Fatalf("bound to %s", b.Addr())
	}
	l, err := b.Listen(0)
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	defer func() { _ = l.Close() }()
	if l.Addr() != b.Addr() {
		t.Errorf("listening on %s, bound to %s", l.Addr(), b.Addr())
	}
	if _, err := b.Listen(0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second Listen: %v, want ErrClosed", err)
	}
	_ = b.Close()

	src, err := h.Network.Bind(h.Local)
	if err != nil {
		t.Fatalf("Bind: %v", err)
	}
	c, err := src.Dial(t.Context(), l.Addr())
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	defer func() { _ = c.Close() }()
	if c.LocalAddr() != src.Addr() {
		t.Errorf("connected from %s, bound to %s", c.LocalAddr(), src.Addr())
	}
	if _, err := src.Dial(t.Context(), l.Addr()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second Dial: %v, want ErrClosed", err)
	}
	a, err := l.Accept(t.Context())
	if err != nil {
		t.Fatalf("Accept: %v", err)
	}
	_ = a.Close()
}

func testAcceptEnds(t *testing.T, h Harness) {
	l, err := h.Network.Listen(h.Local, 1)
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	accept := func(ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := l.Accept(ctx)
			done <- err
		}()
		return done
	}
	first, second := accept(ctx), accept(t.Context())
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("Accept with its context cancelled: %v", err)
	}
	if err := <-accept(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Accept with its context cancelled before: %v", err)
	}
	_ = l.Close()
	_ = l.Close()
	if err := <-second; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Accept of another context, then Close: %v, want ErrClosed", err)
	}
}

func testDialContext(t *testing.T, h Harness) {
	l, err := h.Network.Listen(h.Local, 1)
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.Network.Dial(ctx, h.Local, l.Addr()); !errors.Is(err, context.Canceled) {
		t.Errorf("Dial: %v, want the context's error", err)
	}
}

func testRoute(t *testing.T, h Harness) {
	got, err := h.Network.Route(h.Local.Addr())
	if err != nil || got != h.Local.Addr() {
		t.Errorf("Route(%s) = %s, %v; want itself", h.Local.Addr(), got, err)
	}
	for _, dst := range []netip.Addr{{}, netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if _, err := h.Network.Route(dst); !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("Route(%s): %v, want EADDRNOTAVAIL", dst, err)
		}
	}
	if _, err := h.Network.Route(h.NoRoute); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("Route(%s): %v, want ENETUNREACH", h.NoRoute, err)
	}
}
