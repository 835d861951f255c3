package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// descriptors counts the open file descriptors of the process.
func descriptors(t *testing.T) int {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/fd")
	testkit.OK(t, err)
	return len(dir)
}

// settled waits until the number of descriptors comes down to n. The end of a connection takes
// time, because it waits for a Terminate, and on siw for the kernel.
func settled(t *testing.T, n int) {
	t.Helper()
	now := descriptors(t)
	for began := time.Now(); now > n && time.Since(began) < patience; {
		time.Sleep(10 * time.Millisecond)
		now = descriptors(t)
	}
	if now > n {
		t.Errorf("%d descriptors open, %d before", now, n)
	}
}

// serve accepts all connections until the listener is closed, and waits for the end of each. The
// function that it returns waits for all of this.
func serve(t *testing.T, ctx context.Context, l *rdmacm.Listener) (wait func()) {
	return each(t, ctx, l, 1, func(req *rdmacm.Request) error {
		// With a time limit, as any server should have: on rxe the message of a dialler that gives
		// up can be lost, and the kernel then waits for long (kernel-notes/rxe-lost-reject.md).
		short, cancel := context.WithTimeout(ctx, 8*time.Second)
		defer cancel()
		c, err := req.Accept(short, nil)
		if err != nil {
			return nil // its dialler has given up
		}
		return errors.Join(c.Wait(ctx), c.Close())
	})
}

// dialLater dials with the defaults, closes the connection, and reports the result.
func dialLater(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort) <-chan error {
	dialled := make(chan error, 1)
	go func() {
		c, err := rdmacm.Dial(ctx, vctx, addr, nil)
		dialled <- errors.Join(err, c.Close())
	}()
	return dialled
}

// Connections one after another leave nothing behind.
func TestConnManyInARow(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	wait := serve(t, ctx, l)
	before, conns := 0, 1000
	if testkit.Race { // ci/test also runs all of them without the race detector
		conns = 200
	}
	if onKernel() {
		conns = 30 // each takes 100 ms of processor time in the guest
	}
	for i := range conns {
		c, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if i%2 == 0 {
			testkit.OK(t, c.Shutdown(ctx))
		}
		testkit.OK(t, c.Close())
		if i == 9 {
			before = descriptors(t) // everything that is made once exists now
		}
	}
	settled(t, before)
	testkit.OK(t, l.Close())
	wait()
}

// A Dial that is given up at any moment returns that error, and leaves nothing behind.
func TestConnGivenUpAnywhere(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	wait := serve(t, ctx, l)
	c := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), nil))(t)
	start := time.Now()
	testkit.OK(t, c.Close())
	whole := max(time.Since(start), time.Millisecond)
	before := descriptors(t)
	made, given := 0, 0
	moments := repeats(60, 25)
	for i := range moments {
		left := 2 * whole * time.Duration(i) / time.Duration(moments)
		short, cancel := context.WithTimeout(ctx, left)
		c, err := rdmacm.Dial(short, vctx, l.Addr(), nil)
		switch {
		case err == nil:
			made++
			testkit.OK(t, c.Close())
		case errors.Is(err, context.DeadlineExceeded):
			given++
		default:
			t.Errorf("Dial with %v to go: %v", left, err)
		}
		cancel()
	}
	t.Logf("%d connections made, %d given up", made, given)
	settled(t, before)

	ended, cancel := context.WithCancel(ctx)
	cancel()
	for what, f := range map[string]func() error{
		"Listen": func() error { _, err := rdmacm.Listen(ended, vctx, addr, nil); return err },
		"Dial":   func() error { _, err := rdmacm.Dial(ended, vctx, l.Addr(), nil); return err },
		"Accept": func() error { _, err := l.Accept(ended); return err },
	} {
		if err := f(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a context that has ended: %v", what, err)
		}
	}
	testkit.OK(t, l.Close())
	wait()
	settled(t, before)
}

// If an Accept is given up, its request is refused, and the listener goes on.
func TestConnAcceptGivenUp(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	before := descriptors(t)
	inPrepare, cancel := context.WithCancel(ctx)
	dialled := dialLater(ctx, vctx, l.Addr())
	req := testkit.Must(l.Accept(ctx))(t)
	_, err := req.Accept(inPrepare, &rdmacm.ConnConfig{Prepare: func(context.Context, *rdmacm.Conn, *rdmacm.ConnParam) error {
		cancel()
		return nil
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Accept given up in Prepare: %v", err)
	}
	wantErr(t, "Dial to it", <-dialled, syscall.ECONNREFUSED)
	wantErr(t, "a second answer", req.Reject(nil), syscall.EINVAL, "answered")

	dialled = dialLater(ctx, vctx, l.Addr())
	req = testkit.Must(l.Accept(ctx))(t)
	mine := errors.New("mine")
	_, err = req.Accept(ctx, &rdmacm.ConnConfig{Prepare: func(context.Context, *rdmacm.Conn, *rdmacm.ConnParam) error { return mine }})
	wantErr(t, "Accept whose Prepare fails", err, mine)
	wantErr(t, "Dial to it", <-dialled, syscall.ECONNREFUSED)
	settled(t, before)
}

// Private data that is too long for a frame is refused, with an error that names it, on either side
// and in every call.
func TestConnTooMuchPrivateData(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	before := descriptors(t)
	for _, n := range []int{509, 513, 1000, 1 << 20} {
		long := bytes.Repeat([]byte{'x'}, n)
		_, err := rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{PrivateData: long})
		wantErr(t, "Dial", err, syscall.EINVAL, "bytes of private data")

		for what, answer := range map[string]func(*rdmacm.Request) error{
			"Accept": func(r *rdmacm.Request) error {
				_, err := r.Accept(ctx, &rdmacm.ConnConfig{PrivateData: long})
				return err
			},
			"Reject": func(r *rdmacm.Request) error { return r.Reject(long) },
		} {
			dialled := dialLater(ctx, vctx, l.Addr())
			wantErr(t, what, answer(testkit.Must(l.Accept(ctx))(t)), syscall.EINVAL, "bytes of private data")
			if err := <-dialled; err == nil || ctx.Err() != nil {
				t.Errorf("Dial to a listener whose %s failed: %v", what, err)
			}
		}
	}
	settled(t, before)
}

// Invalid addresses, each with an error that names it.
func TestConnBadAddresses(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	before := descriptors(t)
	foreign := netip.MustParseAddrPort("198.51.100.7:7471") // unused: RFC 5737
	for _, a := range []netip.AddrPort{{}, foreign, netip.MustParseAddrPort("[2001:db8::7]:7471")} {
		if _, err := rdmacm.Listen(ctx, vctx, a, nil); err == nil || a.IsValid() && !strings.Contains(err.Error(), a.String()) {
			t.Errorf("Listen at %v: %v", a, err)
		}
	}
	for what, cfg := range map[string]*rdmacm.ConnConfig{
		"from an address of nobody": {LocalAddr: foreign},
		"from another family":       {LocalAddr: netip.MustParseAddrPort("[::1]:0")},
	} {
		short, cancel := context.WithTimeout(ctx, time.Minute)
		_, err := rdmacm.Dial(short, vctx, netip.AddrPortFrom(addr.Addr(), 1), cfg)
		if err == nil || short.Err() != nil {
			t.Errorf("Dial %s: %v", what, err)
		}
		t.Logf("Dial %s: %v", what, err)
		cancel()
	}
	for _, a := range []netip.AddrPort{{}, netip.AddrPortFrom(addr.Addr(), 0)} {
		_, err := rdmacm.Dial(ctx, vctx, a, nil)
		var call *ibverbs.Error
		if !errors.As(err, &call) {
			t.Errorf("Dial %v: %v", a, err)
		}
		t.Logf("Dial %v: %v", a, err)
	}
	settled(t, before)
}

// Port 0, unspecified addresses, and both families.
func TestConnWhereItListens(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	addrs := []string{"0.0.0.0:0", "[::]:0", "127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"}
	if onKernel() {
		// Connections from this host to siw's interface go over lo, where siw's listener on an
		// unspecified address does not listen.
		addrs = []string{addr.String(), "[::ffff:" + addr.Addr().String() + "]:0"}
	}
	for _, s := range addrs {
		at := netip.MustParseAddrPort(s)
		l, err := rdmacm.Listen(ctx, vctx, at, nil)
		if err != nil {
			t.Errorf("Listen at %s: %v", s, err)
			continue
		}
		wait := serve(t, ctx, l)
		if l.Addr().Port() == 0 || l.Addr().Addr().Unmap() != at.Addr().Unmap() {
			t.Errorf("a listener at %s is at %v", s, l.Addr())
		}
		to := []netip.Addr{at.Addr()}
		switch s {
		case "0.0.0.0:0":
			to = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}
		case "[::]:0":
			to = []netip.Addr{netip.IPv6Loopback()}
		}
		for _, a := range to {
			c, err := rdmacm.Dial(ctx, vctx, netip.AddrPortFrom(a, l.Addr().Port()), nil)
			if err != nil {
				t.Errorf("Dial %v of a listener at %s: %v", a, s, err)
				continue
			}
			if c.RemoteAddr().Addr().Unmap() != a.Unmap() || !c.LocalAddr().Addr().Unmap().IsValid() {
				t.Errorf("Dial %v: from %v to %v", a, c.LocalAddr(), c.RemoteAddr())
			}
			testkit.OK(t, c.Shutdown(ctx))
			testkit.OK(t, c.Close())
		}
		testkit.OK(t, l.Close())
		wait()
	}
}

// Conn.Err returns nil for a success, and otherwise the completion's error and the cause of the
// connection's end.
func TestConnErr(t *testing.T) {
	client, server := pair(t, nil, nil)
	if err := client.Err(&ibverbs.WC{QPN: client.QP().QPN()}); err != nil {
		t.Errorf("a success: %v", err)
	}
	testkit.OK(t, client.QP().PostRecv(ibverbs.RecvWR{WRID: 5}))
	testkit.OK(t, server.Shutdown(timeout(t)))
	testkit.OK(t, client.Wait(timeout(t)))
	var wc [1]ibverbs.WC
	testkit.Must(client.RecvCQ().PollWait(timeout(t), wc[:]))(t)
	err := client.Err(&wc[0])
	var failure *ibverbs.WCError
	if !errors.As(err, &failure) || failure.WRID != 5 || !errors.Is(err, ibverbs.ErrFlushed) {
		t.Errorf("a flush: %v", err)
	}
	if !onKernel() && !errors.Is(err, io.EOF) {
		t.Errorf("a flush by the peer's end: %v, want the cause, too", err)
	}
	if err := server.Err(&wc[0]); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a completion of another QP: %v, want no cause of ours", err)
	}
}

// TestConnDialPort0: port 0 is refused at once, for a name before any of its addresses is tried.
func TestConnDialPort0(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	none := netip.AddrPortFrom(addr.Addr(), 0)
	_, err := rdmacm.Dial(ctx, vctx, none, nil)
	wantErr(t, "Dial", err, syscall.EINVAL, "rdma_connect "+none.String(), "port 0", "Listener.Addr")
	_, err = rdmacm.DialName(ctx, vctx, ":0", nil)
	wantErr(t, "DialName", err, syscall.EINVAL, "rdma_connect :0: ", "port 0")
	if errors.Is(err, syscall.ECONNREFUSED) || strings.Count(err.Error(), "port 0") != 1 {
		t.Errorf("DialName: %v", err)
	}
}
