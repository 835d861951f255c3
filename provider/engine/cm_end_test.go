package engine

import (
	"io"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// wantDisconnected expects the end of a connection on both sides, once.
func (w *cmWorld) wantDisconnected(what string, client, server *cm.ID) {
	w.t.Helper()
	w.active.want(what, client, provider.CMDisconnected, 0)
	w.server.want(what, server, provider.CMDisconnected, 0)
	w.active.wantIdle(what + ": once")
	w.server.wantIdle(what + ": once")
	for _, id := range []*cm.ID{client, server} {
		testkit.Equal(w.t, what+": the QP's state", qpOf(id).getState(), provider.QPErr)
		if qpOf(id).Cause() == nil {
			w.t.Errorf("%s: no cause", what)
		}
	}
}

func TestDisconnect(t *testing.T) {
	for name, disconnect := range map[string]func(t *testing.T, client, server *cm.ID){
		"the initiator disconnects": func(t *testing.T, client, _ *cm.ID) { testkit.OK(t, client.Disconnect()) },
		"the responder disconnects": func(t *testing.T, _, server *cm.ID) { testkit.OK(t, server.Disconnect()) },
		"both disconnect": func(t *testing.T, client, server *cm.ID) {
			testkit.OK(t, client.Disconnect())
			testkit.OK(t, server.Disconnect())
		},
		"one disconnects twice": func(t *testing.T, client, _ *cm.ID) {
			testkit.OK(t, client.Disconnect())
			testkit.OK(t, client.Disconnect())
		},
		"the initiator's QP is aborted": func(_ *testing.T, client, _ *cm.ID) { qpOf(client).abort(io.ErrUnexpectedEOF) },
		"the responder's QP is closed":  func(t *testing.T, _, server *cm.ID) { testkit.OK(t, qpOf(server).Close()) },
		"the initiator's QP goes to ERR": func(t *testing.T, client, _ *cm.ID) {
			testkit.OK(t, qpOf(client).Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState))
		},
	} {
		t.Run(name, func(t *testing.T) {
			onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
				client, server := w.established()
				disconnect(t, client, server)
				w.wantDisconnected(name, client, server)
				testkit.OK(t, client.Disconnect()) // not an error with the kernel either
				testkit.OK(t, server.Disconnect())
				w.active.wantIdle("disconnecting again does nothing")
			})
		})
	}
}

func TestDisconnectBeforeEstablished(t *testing.T) {
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		l := w.server.listen()
		client := w.active.connect(l.LocalAddr(), provider.ConnParam{})
		testkit.OK(t, client.Disconnect())
		server, _ := w.server.wantRequest("the Request is under way", l)
		testkit.OK(t, server.Disconnect()) // nothing to do yet
		testkit.OK(t, server.Accept(provider.ConnParam{}))
		w.server.want("accepted", server, provider.CMEstablished, 0)
		w.active.want("the connection is made", client, provider.CMEstablished, 0)
		w.wantDisconnected("and ended", client, server)
	})
}

// TestCloseAtAnyTime closes an id in every state. No event of it is delivered
// afterwards, and nothing stays behind: the world's clean-up looks.
func TestCloseAtAnyTime(t *testing.T) {
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		h := w.active
		l := w.server.listen()
		dst := l.LocalAddr()
		h.closeID(h.id())

		id := h.id()
		testkit.OK(t, id.BindAddr(w.addr))
		bound := id.LocalAddr()
		h.closeID(id)
		id = h.id()
		testkit.OK(t, id.BindAddr(bound)) // the port is free again
		h.closeID(id)

		id = h.id()
		testkit.OK(t, id.ResolveAddr(netip.AddrPort{}, dst, 0))
		h.closeID(id)
		h.wantIdle("resolved and closed")

		id = h.routed(dst)
		h.closeID(id)

		id = h.connect(dst, provider.ConnParam{})
		wantErr(t, id.Close(), syscall.EBUSY) // its QP exists
		h.closeID(id)
		h.wantIdle("connecting and closed")
		// Its request, if it was sent before the close, comes out of the backlog before the next
		// peer's, and has its place until the program has closed it, or it is withdrawn.
		next := w.dialRaw(dst)
		next.send(rawRequest(nil))
		for closed := false; !closed; {
			e := w.server.next("the requests of the one that was closed and of the next")
			closed = e.ID.RemoteAddr() == next.conn.LocalAddr()
			testkit.OK(t, e.ID.Close())
		}
		waitFor(t, "no request is left", func() bool {
			for e, more := cm.Poll(w.server.ch); more; e, more = cm.Poll(w.server.ch) {
				testkit.OK(t, e.ID.Close())
			}
			return cm.Pending(l) == 1 && cm.Events(w.server.ch) == 0
		})
		next.close()

		client, server := w.established()
		h.closeID(client)
		w.server.want("the client closed", server, provider.CMDisconnected, 0)
		h.wantIdle("established and closed")
		testkit.OK(t, client.Close())
		for _, err := range []error{
			client.BindAddr(w.addr), client.ResolveAddr(netip.AddrPort{}, dst, 0), client.ResolveRoute(0),
			client.Listen(0), client.Connect(provider.ConnParam{}), client.Accept(provider.ConnParam{}),
			client.Reject(nil), client.Disconnect(), client.Migrate(h.channel()),
		} {
			wantErr(t, err, os.ErrClosed)
		}
		wantErr(t, errOf(client.CreateQP(h.pd, provider.QPInitAttr{})), os.ErrClosed)
	})
}

// TestMigrate moves ids, with events that nobody has fetched.
func TestMigrate(t *testing.T) {
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		second, other := w.server.channel(), w.server.channel()
		l := w.server.listen()
		old := w.server.ch
		client := w.active.connect(l.LocalAddr(), provider.ConnParam{})
		waitFor(t, "the request waits on the old channel", func() bool { return cm.Events(old) == 1 })
		w.server.ch = second
		testkit.OK(t, l.Migrate(w.server.ch))
		testkit.OK(t, l.Migrate(w.server.ch))
		testkit.OK(t, old.Close())
		server, _ := w.server.wantRequest("the request moved along", l)
		testkit.OK(t, server.Accept(provider.ConnParam{}))
		w.server.want("accepted", server, provider.CMEstablished, 0)
		w.active.want("accepted", client, provider.CMEstablished, 0)

		testkit.OK(t, server.Migrate(other))
		testkit.OK(t, client.Disconnect())
		w.active.want("disconnected", client, provider.CMDisconnected, 0)
		w.server.wantIdle("the id is elsewhere")
		w.server.ch = other
		w.server.want("disconnected", server, provider.CMDisconnected, 0)

		wantErr(t, l.Migrate(w.active.ch), syscall.EINVAL) // of another device
		wantErr(t, l.Migrate(nil), syscall.EINVAL)
		closed := testkit.Must(w.server.dev.CreateEventChannel())(t)
		testkit.OK(t, closed.Close())
		wantErr(t, l.Migrate(closed), os.ErrClosed)
	})
}

func TestEventChannel(t *testing.T) {
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		ch := w.active.channel()
		wantErr(t, w.active.dev.Close(), syscall.EBUSY)
		id := testkit.Must(ch.CreateID("cookie"))(t)
		if id.Cookie() != "cookie" || id.DeviceName() != "" || id.LocalAddr().IsValid() || id.RemoteAddr().IsValid() {
			t.Errorf("new id: cookie %v, device %q, addresses %s, %s", id.Cookie(), id.DeviceName(), id.LocalAddr(), id.RemoteAddr())
		}
		id.SetCookie(7)
		testkit.Equal(t, "the cookie", id.Cookie(), 7)
		err := ch.Close()
		wantErr(t, err, syscall.EBUSY)
		waiting := make(chan error)
		go func() {
			_, err := ch.Next(t.Context())
			waiting <- err
		}()
		testkit.OK(t, id.Close())
		testkit.OK(t, ch.Close())
		testkit.OK(t, ch.Close())
		testkit.WantErr(t, "Next in progress", <-waiting, os.ErrClosed)
		wantErr(t, errOf(ch.Next(t.Context())), os.ErrClosed)
		wantErr(t, errOf(ch.CreateID(nil)), os.ErrClosed)
	})
}

// TestConnectOrder: a listener reports the requests of a program in the order of its calls of
// Connect. Programs number the connections of both ends by it, because siw keeps it.
func TestConnectOrder(t *testing.T) {
	const rounds, each = 20, 16
	w := newCMWorld(t, transport.NewTCP(nil), tcpAddr, Options{}, false)
	l := w.server.listen()
	for range rounds {
		var clients []*cm.ID
		for range each {
			clients = append(clients, w.active.routed(l.LocalAddr()))
		}
		for i, c := range clients {
			testkit.OK(t, c.Connect(provider.ConnParam{PrivateData: []byte{byte(i)}}))
		}
		var requests []*cm.ID
		for i := range each {
			r, param := w.server.wantRequest("a request", l)
			testkit.Equal(t, "whose request it is", int(param.PrivateData[0]), i)
			requests = append(requests, r)
		}
		for i, r := range requests {
			testkit.OK(t, r.Reject(nil))
			w.server.closeID(r)
			w.active.closeID(clients[i])
		}
		for _, h := range []*cmHost{w.server, w.active} {
			for more := true; more; {
				_, more = cm.Poll(h.ch)
			}
		}
	}
}

// TestResolveOrder: the events of ResolveAddr and ResolveRoute come in the order of the calls.
func TestResolveOrder(t *testing.T) {
	w := newCMWorld(t, transport.NewTCP(nil), tcpAddr, Options{}, false)
	l := w.server.listen()
	ids := make([]*cm.ID, 16)
	for i := range ids {
		ids[i] = w.active.id()
		testkit.OK(t, ids[i].ResolveAddr(netip.AddrPort{}, l.LocalAddr(), time.Second))
	}
	for _, id := range ids {
		w.active.want("address", id, provider.CMAddrResolved, 0)
	}
	for _, id := range ids {
		testkit.OK(t, id.ResolveRoute(time.Second))
	}
	for _, id := range ids {
		w.active.want("route", id, provider.CMRouteResolved, 0)
	}
}

// TestConnectOrderBesideSilence: connections of the same host that say nothing hold no request up,
// and one that has said nothing for long does not count for the order any more.
func TestConnectOrderBesideSilence(t *testing.T) {
	w := newCMWorld(t, transport.NewTCP(nil), tcpAddr, Options{StartupTimeout: patience}, false)
	l := w.server.listen()
	first := w.dialRaw(l.LocalAddr())
	waitFor(t, "the first one counts as silent", func() bool {
		return cm.Silent(l) == 1
	})
	for range 2 * cm.OvertakenMost {
		p := w.request(l)
		r, _ := w.server.wantRequest("a request after the silent connection", l)
		p.abort()
		w.server.closeID(r)
	}
	first.send(rawRequest(nil))
	r, _ := w.server.wantRequest("the request of the silent connection", l)
	w.server.closeID(r)
}

// TestAnsweredWithinTheCall: when Accept returns, the QP is in RTS and the peer has the Reply, and
// when Reject returns, the peer has it, too. Programs post or exit at once.
func TestAnsweredWithinTheCall(t *testing.T) {
	w := newCMWorld(t, transport.NewTCP(nil), tcpAddr, Options{}, false)
	l := w.server.listen()
	const calls = 100
	late := 0 // on a busy host the kernel may leave a packet to another thread
	for i := range calls {
		p := w.request(l)
		r, _ := w.server.wantRequest("a request", l)
		if i%2 == 0 {
			testkit.OK(t, r.Accept(provider.ConnParam{}))
			testkit.Equal(t, "the QP's state after Accept", qpOf(r).getState(), provider.QPRTS)
		} else {
			testkit.OK(t, r.Reject(nil))
		}
		var b [mpa.MaxFrameLen]byte
		if n, _ := p.conn.Readv([][]byte{b[:]}); n == 0 {
			late++
		}
		p.abort()
		if i%2 == 0 {
			w.server.want("accepted", r, provider.CMEstablished, 0)
			w.server.want("the peer has left", r, provider.CMDisconnected, 0)
		}
		w.server.closeID(r)
	}
	if late > calls/10 {
		t.Errorf("%d of %d Replies had not come when the call returned", late, calls)
	}
}

// TestConnectionsThatComeGiveWay: what has arrived for other connections is received between
// the steps of one that comes, though nobody else does that.
func TestConnectionsThatComeGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCMWorld(t, memnet.New(nil), "192.0.2.1:0", Options{}, true)
		client, server := w.established()
		synctest.Wait() // the connection that has come may call the poller at its end
		waiting := func() int64 { return w.server.cq.(*cq).seen.Load() }
		w.server.dev.prog.cancel() // from here on only connections that come call the poller
		<-w.server.dev.prog.ended
		testkit.Must(qpOf(server).PostRecv([]provider.RecvWR{{WRID: 1}}))(t)
		testkit.Must(qpOf(client).PostSend([]provider.SendWR{{Opcode: provider.WRSend}}))(t)
		synctest.Wait()
		testkit.Equal(t, "completions before anybody has called the poller", waiting(), 0)
		p := w.dialRaw(server.LocalAddr())
		synctest.Wait()
		testkit.Equal(t, "completions after a connection has come", waiting(), 1)
		p.abort()
	})
}

// TestStepsAtOnce: connections wait for those that take a step, whatever the step is, and each
// gives its place back.
func TestStepsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := Options{CloseTimeout: time.Hour}
		w := newCMWorld(t, memnet.New(nil), "192.0.2.1:0", opts, true)
		l := w.server.listen()
		steps := w.server.dev.prog.steps
		blocked := func(what string, do func(), done func() bool) {
			t.Helper()
			for range policy.StepsAtOnce {
				steps <- struct{}{}
			}
			do()
			w.moment()
			if done() {
				t.Errorf("%s: it did not wait for the steps of others", what)
			}
			for range policy.StepsAtOnce {
				<-steps
			}
			w.moment()
			if n := len(steps); !done() || n != 0 {
				t.Errorf("%s: done %v, and %d steps are not over", what, done(), n)
			}
		}
		event := func() bool { return cm.Events(w.server.ch) > 0 }
		come := func() *rawPeer { return w.request(l) }
		var p *rawPeer
		blocked("a request", func() { p = come() }, event)
		server, _ := w.server.wantRequest("a request", l)
		blocked("accepting it", func() {
			testkit.OK(t, cm.AcceptLater(server, provider.ConnParam{}))
		}, event)
		w.server.want("accepted", server, provider.CMEstablished, 0)
		p.abort()
		w.server.want("ended", server, provider.CMDisconnected, 0)
		come()
		server, _ = w.server.wantRequest("another", l)
		left := func(n int) func() bool {
			return func() bool { return w.server.dev.closing.len() == n }
		}
		blocked("rejecting it", func() { testkit.OK(t, cm.RejectLater(server, nil)) }, left(1))
		p = come()
		w.moment()
		blocked("its peer leaves", func() { p.abort() }, func() bool { return !event() })
		come()
		server, _ = w.server.wantRequest("the last", l)
		blocked("closing an id", func() { go w.server.closeID(server) }, left(2))
	})
}
