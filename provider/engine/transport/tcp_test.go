//go:build linux

package transport_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/engine/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func harness(addr string, opts *transport.TCPOptions) transporttest.Harness {
	local := netip.AddrPortFrom(netip.MustParseAddr(addr), 0)
	h := transporttest.Harness{Network: transport.NewTCP(opts), Local: local}
	h.NotLocal = netip.MustParseAddr("192.0.2.77")     // TEST-NET-1 (RFC 5737)
	h.NoRoute = netip.MustParseAddr("255.255.255.255") // not for TCP
	if local.Addr().Is6() {
		h.NotLocal = netip.MustParseAddr("2001:db8::77") // documentation (RFC 3849)
	}
	return h
}

func TestContract(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		t.Run(addr, func(t *testing.T) {
			transporttest.Run(t, func(t *testing.T, test func(*testing.T, transporttest.Harness)) {
				noMore := transporttest.NoMoreFDs(t)
				t.Run("tcp", func(t *testing.T) { test(t, harness(addr, nil)) })
				noMore()
			})
		})
	}
}

func TestDualStackListenerReportsIPv4AsIPv4(t *testing.T) {
	for _, any := range []netip.AddrPort{{}, netip.MustParseAddrPort("[::]:0")} {
		h := harness("127.0.0.1", nil)
		l := testkit.Must(h.Network.Listen(any, 0))(t)
		defer func() { _ = l.Close() }()
		for _, dst := range []string{"127.0.0.1", "::1"} {
			to := netip.AddrPortFrom(netip.MustParseAddr(dst), l.Addr().Port())
			c := testkit.Must(h.Network.Dial(t.Context(), netip.AddrPort{}, to))(t)
			a := testkit.Must(l.Accept(t.Context()))(t)
			if a.LocalAddr() != to || a.RemoteAddr() != c.LocalAddr() {
				t.Errorf("dialled %s from %s, accepted on %s from %s", to, c.LocalAddr(), a.LocalAddr(), a.RemoteAddr())
			}
			_, _ = c.Close(), a.Close()
		}
	}
}

func TestFileDescriptorsRunOut(t *testing.T) {
	h := harness("127.0.0.1", nil)
	l := testkit.Must(h.Network.Listen(h.Local, 0))(t)
	defer func() { _ = l.Close() }()
	waiting := testkit.Must(h.Network.Dial(t.Context(), h.Local, l.Addr()))(t) // stays in the backlog
	defer func() { _ = waiting.Close() }()

	restore := exhaustFDs(t)
	_, acceptErr := l.Accept(t.Context())
	_, dialErr := h.Network.Dial(t.Context(), h.Local, l.Addr())
	_, listenErr := h.Network.Listen(h.Local, 0)
	_, pollerErr := h.Network.NewPoller()
	_, routeErr := h.Network.Route(h.Local.Addr())
	restore()

	for name, err := range map[string]error{"Accept": acceptErr, "Dial": dialErr, "Listen": listenErr, "NewPoller": pollerErr, "Route": routeErr} {
		if !errors.Is(err, syscall.EMFILE) {
			t.Errorf("%s without file descriptors: %v, want EMFILE", name, err)
		}
	}
	c, err := l.Accept(t.Context())
	if err != nil {
		t.Fatalf("Accept with file descriptors again: %v", err)
	}
	_ = c.Close()
}

// exhaustFDs lowers the limit to what is open.
func exhaustFDs(t *testing.T) (restore func()) {
	t.Helper()
	var old unix.Rlimit
	testkit.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	low := old
	low.Cur = 0
	testkit.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	return func() {
		testkit.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	}
}

func TestDialToAFullBacklogEndsWithItsContext(t *testing.T) {
	h := harness("127.0.0.1", nil)
	l := testkit.Must(h.Network.Listen(h.Local, 1))(t)
	defer func() { _ = l.Close() }()
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		c, err := h.Network.Dial(ctx, h.Local, l.Addr())
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return
		}
		if err != nil {
			t.Fatalf("Dial: %v, want the context's error", err)
		}
		defer func() { _ = c.Close() }()
	}
	t.Error("a backlog of 1 took ten connections")
}

func TestDialDoesNotConnectToItself(t *testing.T) {
	h := harness("127.0.0.1", nil)
	b := testkit.Must(h.Network.Bind(h.Local))(t)
	if c, err := b.Dial(t.Context(), b.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v, %v; want ECONNREFUSED", c, err)
	}
}

func TestZones(t *testing.T) {
	h := harness("::1", nil)
	_, err := h.Network.Listen(netip.MustParseAddrPort("[fe80::1%nosuchif]:0"), 0)
	if !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), "nosuchif") {
		t.Errorf("unknown zone: %v", err)
	}
	if _, err := h.Network.Listen(netip.MustParseAddrPort("[fe80::1%1]:0"), 0); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("zone by number: %v", err)
	}
}

// recorder keeps the records of a tap, sorted by end.
type recorder struct {
	mu   sync.Mutex
	recs []transport.TapRecord
}

func (r *recorder) Tap(rec transport.TapRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec.Data = append([]byte(nil), rec.Data...)
	r.recs = append(r.recs, rec)
}

// story returns what the end that dialled (or the other) saw.
func (r *recorder) story(dialed bool) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var s []string
	for _, rec := range r.recs {
		if rec.Dialed != dialed {
			continue
		}
		arrow := "<"
		if rec.Sent {
			arrow = ">"
		}
		s = append(s, arrow+rec.Event.String()+string(rec.Data))
	}
	return strings.Join(s, " ")
}

func TestTapSeesBothEnds(t *testing.T) {
	var rec recorder
	p := transporttest.NewPair(t, harness("127.0.0.1", &transport.TCPOptions{Tap: &rec}))
	start := time.Now()
	if _, err := p.Dialed.Writev([][]byte{[]byte(":pi"), []byte("ng")}); err != nil {
		t.Fatal(err)
	}
	if n, err := p.Accepted.Read(make([]byte, 2), make([]byte, 10)); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	_ = p.Accepted.CloseWrite()
	p.Dialed.WantEOF("CloseWrite")
	p.Dialed.WantEOF("again")
	_ = p.Accepted.Close()
	_ = p.Dialed.Abort()
	_ = p.Dialed.Close()
	if got, want := rec.story(true), ">open >data:ping <FIN >reset"; got != want {
		t.Errorf("dialling end: %s\nwant %s", got, want)
	}
	if got, want := rec.story(false), "<open <data:ping >FIN"; got != want {
		t.Errorf("accepting end: %s\nwant %s", got, want)
	}
	for _, r := range rec.recs {
		if r.Event == transport.TapData && (r.Time.Before(start) || time.Since(r.Time) > time.Minute) {
			t.Errorf("time %s", r.Time)
		}
		if !r.Local.IsValid() || !r.Remote.IsValid() || r.Local == r.Remote || r.Conn == 0 {
			t.Errorf("record %+v", r)
		}
	}
}

func TestTapSeesReset(t *testing.T) {
	var rec recorder
	p := transporttest.NewPair(t, harness("127.0.0.1", &transport.TCPOptions{Tap: &rec}))
	p.Dialed.Send([]byte(":unread"))
	testkit.OK(t, p.Poller.Wait(t.Context()))
	_ = p.Accepted.Close()
	if err := p.Dialed.ReadError(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %v", err)
	}
	_ = p.Dialed.Close()
	if got, want := rec.story(true), ">open >data:unread <reset"; got != want {
		t.Errorf("dialling end: %s\nwant %s", got, want)
	}
	if got, want := rec.story(false), "<open >reset"; got != want {
		t.Errorf("accepting end: %s\nwant %s", got, want)
	}
}

// TestLimitNotSent: a socket with a limit takes no more while it holds that much which the
// peer's window keeps it from sending, and reports room when the peer takes it.
func TestLimitNotSent(t *testing.T) {
	const limit = 8 << 10
	p := transporttest.NewPair(t, harness("127.0.0.1", &transport.TCPOptions{ReceiveBuffer: 8 << 10}))
	l, ok := p.Dialed.Conn.(transport.NotSentLimiter)
	if !ok {
		t.Fatalf("%T has no LimitNotSent", p.Dialed.Conn)
	}
	testkit.OK(t, l.LimitNotSent(limit))
	fd := socketOf(t, p.Dialed.LocalAddr(), p.Dialed.RemoteAddr())
	record := make([]byte, 1000)
	sent := 0
	for began := time.Now(); ; {
		n, err := p.Dialed.Conn.(transport.RecordWriter).WriteRecords([][]byte{record}, []int{len(record)})
		sent += n
		if err != nil && !errors.Is(err, transport.ErrWouldBlock) || sent > 4<<20 {
			t.Fatalf("after %d bytes: %v", sent, err)
		}
		if err == nil {
			continue
		}
		notSent := testkit.Must(unix.IoctlGetInt(fd, unix.SIOCOUTQNSD))(t)
		if notSent >= limit-len(record) && notSent < limit+len(record) {
			break
		}
		// TCP may have sent more since, for which there is room now.
		if notSent >= limit || time.Since(began) > patience {
			t.Fatalf("%d bytes are not sent; the limit is %d", notSent, limit)
		}
	}
	p.Accepted.Receive(sent)
	p.Dialed.Send(record) // which waits for room
	p.Accepted.Receive(len(record))

	testkit.OK(t, l.LimitNotSent(0))
	if got, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT); got != 0 || err != nil {
		t.Errorf("without a limit TCP_NOTSENT_LOWAT is %d, %v", got, err)
	}
	testkit.OK(t, p.Dialed.Close())
	if err := l.LimitNotSent(limit); !errors.Is(err, os.ErrClosed) {
		t.Errorf("LimitNotSent after Close: %v", err)
	}
}
