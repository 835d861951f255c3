package engine

import (
	"io"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
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
