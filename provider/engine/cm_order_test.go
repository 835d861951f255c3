package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

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
			if got := param.PrivateData[0]; int(got) != i {
				t.Fatalf("request %d is that of call %d", i, got)
			}
			requests = append(requests, r)
		}
		for _, r := range requests {
			testkit.OK(t, r.Reject(nil))
			w.server.closeID(r)
		}
		for _, c := range clients {
			w.active.closeID(c)
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
