package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/engine/transport/transporttest"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// cmWorld is a network with two engines on it, and addresses to meet at.
type cmWorld struct {
	t      *testing.T
	net    transport.Network
	addr   netip.AddrPort // of listeners, without a port
	fake   bool           // time is
	active *cmHost
	server *cmHost
}

// cmHost is an engine with one event channel.
type cmHost struct {
	t   *testing.T
	w   *cmWorld
	dev *device
	pd  provider.PD
	cq  provider.CQ
	ch  *cm.EventChannel
}

// onNetworks runs a test over the networks that there are: in memory, in a bubble
// with time of its own, at once and slowly in small pieces, and over the system's
// TCP.
func onNetworks(t *testing.T, opts Options, test func(t *testing.T, w *cmWorld)) {
	inMemory(t, opts, test)
	onTCP(t, opts, test)
}

// onWholeNetworks runs tests for which bytes that are written at once must arrive at once.
func onWholeNetworks(t *testing.T, opts Options, test func(t *testing.T, w *cmWorld)) {
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			test(t, newCMWorld(t, memnet.New(nil), "192.0.2.1:0", opts, true))
		})
	})
	onTCP(t, opts, test)
}

func onTCP(t *testing.T, opts Options, test func(t *testing.T, w *cmWorld)) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run("TCP "+addr, func(t *testing.T) {
			noMore := transporttest.NoMoreFDs(t)
			t.Run("", func(t *testing.T) {
				test(t, newCMWorld(t, transport.NewTCP(nil), addr, opts, false))
			})
			noMore()
		})
	}
}

// inMemory runs a test over the networks in memory, each in a bubble with time of its own.
func inMemory(t *testing.T, opts Options, test func(t *testing.T, w *cmWorld)) {
	for name, memOpts := range map[string]memnet.Options{
		"memory":           {},
		"memory, cut":      {Seed: 1, Cut: true},
		"memory, slow":     {Seed: 2, MinDelay: time.Millisecond, MaxDelay: 30 * time.Millisecond},
		"memory, trickled": {Seed: 3, Cut: true, MaxDelay: 30 * time.Millisecond, MSS: 7},
		"memory, narrow":   {Seed: 4, Window: 13, MaxDelay: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test(t, newCMWorld(t, memnet.New(&memOpts), "192.0.2.1:0", opts, true))
			})
		})
	}
}

func newCMWorld(t *testing.T, network transport.Network, addr string, opts Options, fake bool) *cmWorld {
	w := &cmWorld{t: t, net: network, addr: netip.MustParseAddrPort(addr), fake: fake}
	opts.Network = network
	w.active, w.server = w.host(opts), w.host(opts)
	return w
}

func (w *cmWorld) host(opts Options) *cmHost {
	t := w.t
	h := &cmHost{t: t, w: w}
	h.dev = testkit.Must(New(&opts).Open(""))(t).(*device)
	h.pd = testkit.Must(h.dev.AllocPD())(t)
	h.cq = testkit.Must(h.dev.CreateCQ(provider.CQInitAttr{CQE: 4096}))(t)
	t.Cleanup(func() {
		testkit.OK(t, h.cq.Close())
		testkit.OK(t, h.pd.Close())
		testkit.OK(t, h.dev.Close())
	})
	h.ch = h.channel()
	return h
}

// channel makes an event channel, which has to be empty of ids and of surprises
// in the end.
func (h *cmHost) channel() *cm.EventChannel {
	h.t.Helper()
	ch := testkit.Must(h.dev.CreateEventChannel())(h.t).(*cm.EventChannel)
	h.t.Cleanup(func() {
		if e, more := cm.Poll(ch); more {
			h.t.Errorf("event that nobody expected: %s, status %d", e.Type, e.Status)
		}
		testkit.OK(h.t, ch.Close())
	})
	return ch
}

// id makes an id, which is closed, and its QP before it, when the test ends.
func (h *cmHost) id() *cm.ID {
	h.t.Helper()
	return h.own(testkit.Must(h.ch.CreateID(nil))(h.t))
}

// own closes an id when the test ends.
func (h *cmHost) own(id provider.ID) *cm.ID {
	own := id.(*cm.ID)
	h.t.Cleanup(func() { h.closeID(own) })
	return own
}

func (h *cmHost) closeID(id *cm.ID) {
	h.t.Helper()
	if q := qpOf(id); q != nil {
		testkit.OK(h.t, q.Close())
	}
	testkit.OK(h.t, id.Close())
}

// qpOf returns the QP of an id, nil if it has none.
func qpOf(id *cm.ID) *qp {
	q, _ := cm.QPOf(id).(*cmQP)
	return (*qp)(q)
}

var smallQP = provider.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}

// qp makes the QP of an id.
func (h *cmHost) qp(id *cm.ID) *qp {
	h.t.Helper()
	return testkit.Must(id.CreateQP(h.pd,
		provider.QPInitAttr{SendCQ: h.cq, RecvCQ: h.cq, Cap: smallQP}))(h.t).(*qp)
}

// listen makes a listener.
func (h *cmHost) listen() *cm.ID {
	h.t.Helper()
	id := h.id()
	testkit.OK(h.t, id.BindAddr(h.w.addr))
	testkit.OK(h.t, id.Listen(0))
	return id
}

// routed makes an id with a QP that is ready to connect to dst.
func (h *cmHost) routed(dst netip.AddrPort) *cm.ID {
	h.t.Helper()
	id := h.id()
	h.resolve(id, dst)
	return id
}

// resolve makes an id ready to connect to dst, with a QP.
func (h *cmHost) resolve(id *cm.ID, dst netip.AddrPort) {
	h.t.Helper()
	testkit.OK(h.t, id.ResolveAddr(netip.AddrPort{}, dst, time.Second))
	h.want("an address is resolved at once", id, provider.CMAddrResolved, 0)
	testkit.OK(h.t, id.ResolveRoute(time.Second))
	h.want("a route is resolved at once", id, provider.CMRouteResolved, 0)
	h.qp(id)
}

// connect begins a connection to dst.
func (h *cmHost) connect(dst netip.AddrPort, param provider.ConnParam) *cm.ID {
	h.t.Helper()
	id := h.routed(dst)
	testkit.OK(h.t, id.Connect(param))
	return id
}

// next waits for an event.
func (h *cmHost) next(what string) provider.CMEvent {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	e, err := h.ch.Next(ctx)
	if err != nil {
		h.t.Fatalf("%s: %v", what, err)
	}
	return e
}

// want waits for an event of id and compares it.
func (h *cmHost) want(what string, id *cm.ID, typ provider.CMEventType, errno syscall.Errno) provider.CMEvent {
	h.t.Helper()
	e := h.next(what)
	if e.Type != typ || e.Status != -int(errno) || e.ID != id {
		h.t.Fatalf("%s: event %s, status %d, of %s to %s; want %s, status %d, of %s to %s", what,
			e.Type, e.Status, e.ID.LocalAddr(), e.ID.RemoteAddr(), typ, -int(errno), id.LocalAddr(), id.RemoteAddr())
	}
	return e
}

// wantRequest waits for a CONNECT_REQUEST. A QP is made for its id.
func (h *cmHost) wantRequest(what string, listener *cm.ID) (*cm.ID, provider.ConnParam) {
	h.t.Helper()
	e := h.next(what)
	if e.Type != provider.CMConnectRequest || e.Status != 0 || e.ListenID != listener || e.ID == listener {
		h.t.Fatalf("%s: event %+v, want a CONNECT_REQUEST", what, e)
	}
	id := h.own(e.ID)
	h.qp(id)
	return id, e.Param
}

// wantIdle checks that there is no event, now and for a while.
func (h *cmHost) wantIdle(what string) {
	h.t.Helper()
	h.w.pause()
	if e, more := cm.Poll(h.ch); more {
		h.t.Errorf("%s: event %s, status %d", what, e.Type, e.Status)
	}
}

// pause lets everything happen that can: more than all timeouts in fake time,
// and a moment otherwise.
func (w *cmWorld) pause() {
	if !w.fake {
		time.Sleep(20 * time.Millisecond)
		return
	}
	time.Sleep(time.Minute)
	synctest.Wait()
}

// moment lets everything happen that does not need a timeout.
func (w *cmWorld) moment() {
	time.Sleep(50 * time.Millisecond)
	if w.fake {
		time.Sleep(time.Second)
		synctest.Wait()
	}
}

// waitFor waits until done reports true; what says what that means.
func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not in time", what)
		}
	}
}

// wantLeft waits until the engine has noted that the peer of a request has left, or has not waited
// for the answer.
func wantLeft(t testing.TB, id *cm.ID) {
	t.Helper()
	waitFor(t, "the peer of a request has left", func() bool {
		return cm.PeerLeft(id)
	})
}

// established makes a connection.
func (w *cmWorld) established() (client, server *cm.ID) {
	w.t.Helper()
	return w.acceptedOn(w.server.listen())
}

// acceptedOn makes a connection to the listener l.
func (w *cmWorld) acceptedOn(l *cm.ID) (client, server *cm.ID) {
	w.t.Helper()
	client = w.active.connect(l.LocalAddr(), provider.ConnParam{ResponderResources: 4, InitiatorDepth: 4})
	return client, w.meet("a connection is made", client, l)
}

// meet accepts the request of a client that connects to l, with the depths that it asks for.
func (w *cmWorld) meet(what string, client, l *cm.ID) (server *cm.ID) {
	w.t.Helper()
	server, param := w.server.wantRequest(what, l)
	testkit.OK(w.t, server.Accept(provider.ConnParam{ResponderResources: param.ResponderResources,
		InitiatorDepth: param.InitiatorDepth}))
	w.server.want(what, server, provider.CMEstablished, 0)
	w.active.want(what, client, provider.CMEstablished, 0)
	return server
}

// rawPeer is a peer that sends what the test says. It has no poller: where it waits, it tries
// again.
type rawPeer struct {
	t    *testing.T
	conn transport.Conn
}

// close ends the connection with FIN.
func (p *rawPeer) close() { _ = p.conn.Close() }

// abort ends it with a reset.
func (p *rawPeer) abort() { _ = p.conn.Abort() }

// dialRaw connects to dst and says nothing.
func (w *cmWorld) dialRaw(dst netip.AddrPort) *rawPeer {
	w.t.Helper()
	return w.dialRawFrom(netip.Addr{}, dst)
}

// dialRawFrom connects from src to dst and says nothing.
func (w *cmWorld) dialRawFrom(src netip.Addr, dst netip.AddrPort) *rawPeer {
	w.t.Helper()
	return w.raw(testkit.Must(w.net.Dial(w.t.Context(), netip.AddrPortFrom(src, 0), dst))(w.t))
}

// request connects to the listener l and sends a Request.
func (w *cmWorld) request(l *cm.ID) *rawPeer {
	w.t.Helper()
	p := w.dialRaw(l.LocalAddr())
	p.send(rawRequest(nil))
	return p
}

func (w *cmWorld) raw(conn transport.Conn) *rawPeer {
	w.t.Helper()
	p := &rawPeer{t: w.t, conn: conn}
	w.t.Cleanup(p.close)
	return p
}

// listenRaw accepts one connection in the background, for a peer that never gets
// further than the script says.
func (w *cmWorld) listenRaw() (dst netip.AddrPort, accepted func() *rawPeer) {
	w.t.Helper()
	l := testkit.Must(w.net.Listen(w.addr, 0))(w.t)
	w.t.Cleanup(func() { _ = l.Close() })
	return l.Addr(), func() *rawPeer {
		w.t.Helper()
		return w.raw(testkit.Must(l.Accept(w.t.Context()))(w.t))
	}
}

// toRaw connects to a scripted peer, and returns the id, the peer, and the Request that has come.
func (w *cmWorld) toRaw(param provider.ConnParam) (client *cm.ID, p *rawPeer, request mpa.Frame) {
	w.t.Helper()
	dst, accepted := w.listenRaw()
	client = w.active.connect(dst, param)
	p = accepted()
	return client, p, p.wantFrame("the initiator begins", mpa.KindRequest)
}

// retry calls what does not block until it does not return ErrWouldBlock, or patience is over.
func (p *rawPeer) retry(do func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if err := do(); err != transport.ErrWouldBlock || time.Now().After(end) {
			return err
		}
	}
}

// read waits until there is something to read, and reads it.
func (p *rawPeer) read(b []byte) (n int, err error) {
	bufs := [1][]byte{b}
	err = p.retry(func() (err error) {
		n, err = p.conn.Readv(bufs[:])
		return err
	})
	return n, err
}

// write sends all of b.
func (p *rawPeer) write(b []byte) (err error) {
	for len(b) > 0 && err == nil {
		err = p.retry(func() error {
			n, err := p.conn.Writev([][]byte{b})
			b = b[n:]
			return err
		})
	}
	return err
}

func (p *rawPeer) send(b []byte) {
	p.t.Helper()
	if err := p.write(b); err != nil {
		p.t.Fatalf("sending %d bytes: %v", len(b), err)
	}
}

// trySend sends to a peer that may have hung up.
func (p *rawPeer) trySend(b []byte) { _ = p.write(b) }

// wantFrame reads one start-up frame.
func (p *rawPeer) wantFrame(what string, kind mpa.Kind) (f mpa.Frame) {
	p.t.Helper()
	b, err := make([]byte, 0, mpa.MaxFrameLen+1), error(mpa.ErrShort)
	for errors.Is(err, mpa.ErrShort) {
		var n int
		if n, err = p.read(b[len(b):cap(b)]); err != nil {
			break
		}
		b = b[:len(b)+n]
		f, n, err = mpa.ParseFrame(b, kind)
		if err == nil && n < len(b) {
			err = fmt.Errorf("%d bytes after the frame", len(b)-n)
		}
	}
	if err != nil {
		p.t.Fatalf("%s: no %s: %v", what, kind, err)
	}
	return f
}

// wantEnd waits for the end of the stream and checks that nothing came before it.
// It returns io.EOF or the error of a reset.
func (p *rawPeer) wantEnd(what string) error {
	p.t.Helper()
	b := make([]byte, 1024)
	n, err := p.read(b)
	if n > 0 {
		p.t.Fatalf("%s: received %x", what, b[:n])
	}
	if err == transport.ErrWouldBlock {
		p.t.Fatalf("%s: the stream did not end", what)
	}
	return err
}

// request makes the bytes of an enhanced Request.
func rawRequest(change func(*mpa.Frame)) []byte {
	f := mpa.Frame{Kind: mpa.KindRequest, Enhanced: true, Revision: 2, PrivateData: mpa.Enhanced{IRD: 1, ORD: 1}.AppendTo(nil)}
	if change != nil {
		change(&f)
	}
	return f.AppendTo(nil)
}

// rawReply makes the bytes of an enhanced Reply.
func rawReply(change func(*mpa.Frame)) []byte {
	return rawRequest(func(f *mpa.Frame) {
		f.Kind, f.CRC = mpa.KindReply, true
		if change != nil {
			change(f)
		}
	})
}
