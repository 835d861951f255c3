package rdmacm_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// The start-up frames of a peer that speaks TCP only: revision 2, CRCs, IRD and ORD
// of 1, no private data.
const (
	request = "MPA ID Req Frame\x50\x02\x00\x04\x00\x01\x00\x01"
	reply   = "MPA ID Rep Frame\x50\x02\x00\x04\x00\x01\x00\x01"
)

// reset ends a connection with RST.
func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// readRequest reads the minimum length of Dial's Request.
func readRequest(c net.Conn) {
	_, _ = io.ReadFull(c, make([]byte, len(request)))
}

// TestConnPeerGoesAway makes a peer leave, or send something other than MPA, at each step of a
// Dial. The errors are those of librdmacm's rdma_connect for an id without an event channel.
func TestConnPeerGoesAway(t *testing.T) {
	for name, tc := range map[string]struct {
		peer func(c net.Conn)
		want syscall.Errno
		text string // the engine's error has to contain it
	}{
		"hangs up at once":            {func(c net.Conn) { _ = c.Close() }, syscall.ECONNREFUSED, "rejected"},
		"resets at once":              {reset, syscall.ECONNREFUSED, "rejected"},
		"hangs up behind the Request": {func(c net.Conn) { readRequest(c); _ = c.Close() }, syscall.ECONNREFUSED, "rejected"},
		"resets behind the Request":   {func(c net.Conn) { readRequest(c); reset(c) }, syscall.ECONNREFUSED, "rejected"},
		"hangs up within the Reply":   {func(c net.Conn) { readRequest(c); _, _ = c.Write([]byte(reply[:9])); _ = c.Close() }, syscall.ECONNREFUSED, "rejected"},
		"resets within the Reply": {func(c net.Conn) {
			readRequest(c)
			_, _ = c.Write([]byte(reply[:20]))
			time.Sleep(50 * time.Millisecond)
			reset(c)
		}, syscall.ECONNREFUSED, "rejected"},
		"speaks something else": {func(c net.Conn) {
			readRequest(c)
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = c.Close()
		}, syscall.EINVAL, "key of a start-up frame is wrong"},
		"is an initiator, too": {func(c net.Conn) { _, _ = c.Write([]byte(request)); readRequest(c); _ = c.Close() }, syscall.EINVAL, "both ends started as initiator"},
		"answers as one without RFC 6581": {func(c net.Conn) {
			readRequest(c)
			_, _ = c.Write([]byte("MPA ID Rep Frame\x40\x01\x00\x00"))
			_ = c.Close()
		}, syscall.EINVAL, "unenhanced"},
		"announces too much private data": {func(c net.Conn) {
			readRequest(c)
			_, _ = c.Write([]byte("MPA ID Rep Frame\x40\x02\xff\xff"))
			_ = c.Close()
		}, syscall.EINVAL, "PD_Length"},
		"rejects in a frame of its program": {func(c net.Conn) {
			readRequest(c)
			_, _ = c.Write([]byte("MPA ID Rep Frame\x70\x02\x00\x06\x00\x00\x00\x00no"))
			_ = c.Close()
		}, syscall.ECONNREFUSED, "2 bytes of private data"},
	} {
		t.Run(name, func(t *testing.T) {
			if onKernel() && tc.want == syscall.EINVAL {
				// The suite plays these to siw (mpa/reply-*), one that stops its kernel
				// by name only.
				return
			}
			ctx := timeout(t)
			vctx, addr := device(t)
			l := testkit.Must(net.Listen("tcp", addr.String()))(t)
			defer l.Close()
			done := make(chan struct{})
			go func() {
				defer close(done)
				if c, err := l.Accept(); err == nil {
					tc.peer(c)
				}
			}()
			at := l.Addr().(*net.TCPAddr).AddrPort()
			_, err := rdmacm.Dial(ctx, vctx, at, nil)
			<-done
			if onKernel() {
				// siw reports -ECONNRESET for nearly all of them; for some of them the kernel
				// returns it from the call.
				var call *ibverbs.Error
				if !errors.As(err, &call) {
					t.Errorf("%v, want an *Error", err)
				}
				t.Log(err)
				return
			}
			wantErr(t, "Dial", err, tc.want, "rdma_connect", at.String(), tc.text)
		})
	}
}

// TestConnNoAnswer: a peer that accepts connections and sends nothing costs only the time that the
// program, or the engine, allows.
func TestConnNoAnswer(t *testing.T) {
	ctx := timeout(t)
	vctx := testkit.Must(ibverbs.Open(engine.New(&engine.Options{StartupTimeout: 300 * time.Millisecond}), ""))(t)
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	at := l.Addr().(*net.TCPAddr).AddrPort()
	_, err := rdmacm.Dial(ctx, vctx, at, nil)
	wantErr(t, "Dial", err, syscall.ETIMEDOUT, at.String())
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = rdmacm.Dial(short, vctx, at, nil)
	wantErr(t, "Dial with less time", err, context.DeadlineExceeded)
	testkit.OK(t, l.Close())
	err = vctx.Close()
	for errors.Is(err, syscall.EBUSY) && ctx.Err() == nil { // Dial's objects are freed later
		time.Sleep(10 * time.Millisecond)
		err = vctx.Close()
	}
	testkit.OK(t, err)
}

// TestConnClientGoesAway makes clients leave at each step of a start-up. The listener sees only
// clients that have sent a whole Request, learns when it answers, or later, that they have gone,
// and goes on.
func TestConnClientGoesAway(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer func() { testkit.OK(t, l.Close()) }()
	dial := func(octets string) net.Conn {
		c := testkit.Must(net.Dial("tcp", l.Addr().String()))(t)
		_, err := c.Write([]byte(octets))
		testkit.OK(t, err)
		return c
	}
	cut := []string{"", request[:1], request[:16], request[:19], request[:len(request)-1]}
	if onKernel() {
		cut = nil // a listener of siw's may refuse who comes right behind these; the suite plays them one by one (mpa/request-cut-*)
	}
	for _, octets := range cut {
		_ = dial(octets).Close()
		reset(dial(octets))
	}
	for how, leave := range map[string]func(net.Conn){"hangs up": func(c net.Conn) { _ = c.Close() }, "resets": reset} {
		// The engine may notice it in the pause.
		testkit.Scaled(t, 20*time.Millisecond, func(pause time.Duration) error {
			c := dial(request)
			req := testkit.Must(l.Accept(ctx))(t)
			if req.RemoteAddr().Port() != c.LocalAddr().(*net.TCPAddr).AddrPort().Port() {
				t.Fatalf("a request of %v, which sent none in full", req.RemoteAddr())
			}
			leave(c)
			time.Sleep(pause)
			conn, err := req.Accept(ctx, nil)
			if err == nil {
				return errors.Join(errors.New("the client "+how+" before Accept: accepted"), conn.Close())
			}
			if !onKernel() {
				wantErr(t, "Accept of one that "+how, err, syscall.ECONNRESET, "rdma_accept")
			}
			t.Log(err)
			return nil
		})

		c := dial(request)
		req := testkit.Must(l.Accept(ctx))(t)
		conn := testkit.Must(req.Accept(ctx, nil))(t)
		readRequest(c) // the Reply is as long
		leave(c)
		testkit.OK(t, conn.Wait(ctx))
		testkit.OK(t, conn.Close())

		testkit.Scaled(t, 20*time.Millisecond, func(pause time.Duration) error {
			c := dial(request)
			req := testkit.Must(l.Accept(ctx))(t)
			leave(c)
			time.Sleep(pause)
			err := req.Reject([]byte("too late"))
			if onKernel() {
				t.Log(err)
				return nil
			}
			if err == nil {
				return errors.New("the client " + how + " before Reject: rejected")
			}
			wantErr(t, "Reject of one that "+how, err, syscall.ECONNRESET, "rdma_reject")
			return nil
		})
	}
	served := serve(t, ctx, l)
	c := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), nil))(t)
	testkit.OK(t, c.Shutdown(ctx))
	testkit.OK(t, c.Close())
	testkit.OK(t, l.Close())
	served()
}

// TestConnAddressesThatCannotBe: invalid addresses to listen at and connect from, with the errno of
// librdmacm.
func TestConnAddressesThatCannotBe(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	nobody := netip.MustParseAddrPort("198.51.100.7:7471") // RFC 5737
	_, err := rdmacm.Listen(ctx, vctx, nobody, nil)
	wantErr(t, "Listen", err, syscall.EADDRNOTAVAIL, nobody.String())
	if onKernel() {
		return // routes are the guest's
	}
	_, err = rdmacm.Dial(ctx, vctx, netip.AddrPortFrom(addr.Addr(), 1), &rdmacm.ConnConfig{LocalAddr: nobody})
	wantErr(t, "Dial from nobody's address", err, syscall.EADDRNOTAVAIL, nobody.String())
	_, err = rdmacm.Dial(ctx, vctx, netip.MustParseAddrPort("255.255.255.255:1"), nil)
	wantErr(t, "Dial of an address without a route", err, syscall.ENETUNREACH, "rdma_resolve_addr")
}

// TestConnIDOptions: options before an id is bound, and unknown options and values, with the
// kernel's errno.
func TestConnIDOptions(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	setup := func(id *rdmacm.ID) error {
		return errors.Join(id.SetOption(rdmacm.OptionTOS, 10<<2), id.SetOption(rdmacm.OptionReuseAddr, 1), id.SetOption(rdmacm.OptionAFOnly, 1))
	}
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, &rdmacm.ListenConfig{Setup: setup}))(t)
	wait := serve(t, ctx, l)
	c := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{Setup: setup}))(t)
	wantErr(t, "AFONLY when it is too late", c.ID().SetOption(rdmacm.OptionAFOnly, 1), syscall.EINVAL, "rdma_set_option")
	testkit.OK(t, c.Shutdown(ctx))
	testkit.OK(t, c.Close())

	ch := testkit.Must(rdmacm.CreateEventChannel(vctx))(t)
	id := testkit.Must(ch.CreateID(nil))(t)
	wantErr(t, "TOS 256", id.SetOption(rdmacm.OptionTOS, 256), syscall.EINVAL, "RDMA_OPTION_ID_TOS")
	wantErr(t, "AFONLY 2", id.SetOption(rdmacm.OptionAFOnly, 2), syscall.EINVAL)
	wantErr(t, "no option", id.SetOption(99, 0), syscall.ENOSYS)
	if err := id.SetOption(rdmacm.OptionAckTimeout, 14); onKernel() {
		testkit.OK(t, err)
	} else {
		wantErr(t, "ACK timeout", err, errors.ErrUnsupported, "UserTimeout")
	}
	testkit.OK(t, id.Close())
	testkit.OK(t, ch.Close())
	testkit.OK(t, l.Close())
	wait()
}

// TestConnSecondBind: an address that an id is bound to is taken, unless both ids share it, and at
// most one id can listen there. With TCP, and so with the engine, that is the first to call Listen.
// The kernel lets an id listen only if no other id is bound there. A listener's connections do not
// prevent another bind.
func TestConnSecondBind(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	ch := testkit.Must(rdmacm.CreateEventChannel(vctx))(t)
	newID := func(share bool) *rdmacm.ID {
		id := testkit.Must(ch.CreateID(nil))(t)
		if share {
			testkit.OK(t, id.SetOption(rdmacm.OptionReuseAddr, 1))
		}
		return id
	}
	first := newID(false)
	testkit.OK(t, first.BindAddr(addr))
	addr = netip.AddrPortFrom(addr.Addr(), first.LocalAddr().Port()) // the chosen port
	refused := func(what string, share bool) {
		t.Helper()
		id := newID(share)
		wantErr(t, what, id.BindAddr(addr), syscall.EADDRINUSE, "rdma_bind_addr")
		testkit.OK(t, id.Close())
	}
	refused("second bind", false)
	refused("second bind, of one that would share", true)
	testkit.OK(t, first.Close())

	first = newID(false)
	testkit.OK(t, first.BindAddr(addr)) // by port number
	refused("second bind of a port with a number", false)
	refused("the same, of one that would share", true)
	testkit.OK(t, first.Close())

	first, second := newID(true), newID(true)
	testkit.OK(t, first.BindAddr(addr))
	testkit.OK(t, second.BindAddr(addr))
	if onKernel() { // on the engine Linux's TCP cannot distinguish the sharers
		refused("third bind, of one that does not share", false)
	}
	if onKernel() { // no id can listen on a shared address
		wantErr(t, "listening where it is shared", first.Listen(0), syscall.EADDRINUSE)
	} else {
		testkit.OK(t, first.Listen(0))
		wantErr(t, "second listener", second.Listen(0), syscall.EADDRINUSE)
		refused("beside a listener", true)
	}
	testkit.OK(t, second.Close())
	testkit.OK(t, first.Close())

	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	wait := serve(t, ctx, l)
	c := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), nil))(t)
	testkit.OK(t, c.Shutdown(ctx))
	testkit.OK(t, c.Close())
	testkit.OK(t, l.Close())
	wait()
	again := newID(false)
	testkit.OK(t, again.BindAddr(addr))
	testkit.OK(t, again.Listen(0))
	testkit.OK(t, again.Close())
	testkit.OK(t, ch.Close())
}

// TestConnReadDepths checks what ConnConfig says about ResponderResources and InitiatorDepth. The
// acceptor's IRD is raised to the peer's ORD; its ORD and the dialler's ORD are limits.
func TestConnReadDepths(t *testing.T) {
	type depths struct{ ird, ord int }
	for _, tc := range []struct {
		dial, accept              depths // configured
		wantDialler, wantAcceptor depths
	}{
		{depths{}, depths{}, depths{16, 16}, depths{16, 16}},
		{depths{}, depths{-1, -1}, depths{16, 16}, depths{16, 0}},
		{depths{}, depths{1, 1}, depths{16, 16}, depths{16, 1}},
		{depths{-1, -1}, depths{}, depths{0, 0}, depths{1, 0}},
		{depths{2, 2}, depths{-1, 8}, depths{2, 2}, depths{2, 2}},
	} {
		client, server := pair(t,
			&rdmacm.ConnConfig{ResponderResources: tc.dial.ird, InitiatorDepth: tc.dial.ord},
			&rdmacm.ConnConfig{ResponderResources: tc.accept.ird, InitiatorDepth: tc.accept.ord})
		for _, side := range []struct {
			name string
			c    *rdmacm.Conn
			want depths
		}{{"dialler", client, tc.wantDialler}, {"acceptor", server, tc.wantAcceptor}} {
			attr, _, err := side.c.QP().Query()
			testkit.OK(t, err)
			if got := (depths{attr.MaxDestRdAtomic, attr.MaxRdAtomic}); got != side.want {
				t.Errorf("dialled with %+v, accepted with %+v: the %s has %+v, want %+v",
					tc.dial, tc.accept, side.name, got, side.want)
			}
		}
	}
}

// TestConnectOrder: requests reach a listener in the order of a program's calls of Connect.
// perftest relies on that order to number its QPs.
func TestConnectOrder(t *testing.T) {
	const n = 8
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(t.Context(), vctx, addr, &rdmacm.ListenConfig{Backlog: 2 * n}))(t)
	ch := testkit.Must(rdmacm.CreateEventChannel(vctx))(t)
	pd := testkit.Must(vctx.AllocPD())(t)
	cq := testkit.Must(vctx.CreateCQ(n, nil))(t)
	next := func(want rdmacm.EventType) *rdmacm.ID {
		e := testkit.Must(ch.GetEvent(t.Context()))(t)
		if e.Type != want {
			t.Fatalf("event %+v, want %v", e, want)
		}
		return e.ID
	}
	for range 3 {
		var ids []*rdmacm.ID
		for i := range n {
			id := testkit.Must(ch.CreateID(i))(t)
			testkit.OK(t, id.ResolveAddr(netip.AddrPort{}, l.Addr(), patience))
			testkit.OK(t, next(rdmacm.AddrResolved).ResolveRoute(patience))
			ids = append(ids, next(rdmacm.RouteResolved))
		}
		for i, id := range ids {
			testkit.Must(id.CreateQP(pd, &ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq,
				Cap: ibverbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
			testkit.OK(t, id.Connect(&rdmacm.ConnParam{PrivateData: []byte{byte(i)}}))
		}
		for i := range ids {
			req := testkit.Must(l.Accept(t.Context()))(t)
			if got := req.PrivateData(); len(got) == 0 || got[0] != byte(i) {
				t.Errorf("request %d has the private data %v", i, got)
			}
			testkit.OK(t, req.Reject(nil))
		}
		for range ids {
			id := next(rdmacm.Rejected)
			testkit.OK(t, id.QP().Close())
			testkit.OK(t, id.Close())
		}
	}
	for _, c := range []func() error{l.Close, ch.Close, cq.Close, pd.Close} {
		testkit.OK(t, c())
	}
}
