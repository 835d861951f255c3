package engine

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// cmSide is what a program has of the connection manager.
type cmSide struct {
	*e2eEnd
	ec provider.EventChannel
}

func newCMSide(t testing.TB, network transport.Network, opts Options) *cmSide {
	t.Helper()
	s := e2eSetup{opts: opts}
	e := newE2EEnd(t, e2eWire{}, network, s)
	c := &cmSide{e2eEnd: e, ec: testkit.Must(e.dev.CreateEventChannel())(t)}
	t.Cleanup(func() { closeAll(t, "event channel", c.ec) })
	return c
}

// event returns the next event, which must be of this type.
func (c *cmSide) event(want provider.CMEventType) provider.CMEvent {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e := testkit.Must(c.ec.Next(ctx))(c.t)
	if e.Type != want || e.Status != 0 {
		c.t.Fatalf("event %s, status %d; want %s", e.Type, e.Status, want)
	}
	return e
}

func (c *cmSide) id() provider.ID {
	c.t.Helper()
	id := testkit.Must(c.ec.CreateID(nil))(c.t)
	c.t.Cleanup(func() { closeAll(c.t, "id", id) })
	return id
}

// listen listens on addr and returns where.
func (c *cmSide) listen(addr netip.AddrPort) netip.AddrPort {
	c.t.Helper()
	id := c.id()
	testkit.OK(c.t, id.BindAddr(addr))
	testkit.OK(c.t, id.Listen(64))
	return id.LocalAddr()
}

// resolve makes id ready to connect to dst.
func (c *cmSide) resolve(id provider.ID, dst netip.AddrPort) {
	c.t.Helper()
	testkit.OK(c.t, id.ResolveAddr(netip.AddrPort{}, dst, patience))
	c.event(provider.CMAddrResolved)
	testkit.OK(c.t, id.ResolveRoute(patience))
	c.event(provider.CMRouteResolved)
}

// cmConnect connects a's QP to b's, through the connection manager of both. Events report the
// version to both programs.
//
//rfc:5044 RDMAC-C.2-01 ULP informed that version 0 is in use
func cmConnect(t testing.TB, a, b *cmSide, dst netip.AddrPort, depth int) (aid, bid provider.ID) {
	t.Helper()
	aid = a.id()
	a.resolve(aid, dst)
	testkit.OK(t, aid.Connect(provider.ConnParam{QP: a.q, ResponderResources: depth,
		InitiatorDepth: depth, PrivateData: []byte("hello")}))
	req := b.event(provider.CMConnectRequest)
	testkit.Equal(t, "private data", string(req.Param.PrivateData), "hello")
	bid = req.ID
	b.t.Cleanup(func() { closeAll(b.t, "id", bid) })
	// Revision 1 knows no depths: the programs have to agree by other means.
	testkit.OK(t, bid.Accept(provider.ConnParam{QP: b.q, ResponderResources: depth,
		InitiatorDepth: depth, PrivateData: []byte("welcome")}))
	there, here := b.event(provider.CMEstablished), a.event(provider.CMEstablished)
	if p := here.Param; string(p.PrivateData) != "welcome" ||
		depth > 0 && (p.ResponderResources != depth || p.InitiatorDepth != depth) {
		t.Errorf("established with %+v", p)
	}
	if req.RDMAC != there.RDMAC || there.RDMAC != here.RDMAC || here.RDMAC != a.q.stream.Load().params.RDMAC {
		t.Errorf("the events report %v, %v and %v", req.RDMAC, there.RDMAC, here.RDMAC)
	}
	return aid, bid
}

// TestE2ENegotiated moves data over connections that the two ends set up from
// options of their own: who asks for CRC or markers, which revision of MPA, how
// bytes are placed. What one end asks for the other must deliver.
//
//rfc:5044 MPA-7.1-04 DDP endpoint bound when Full Operation starts
//rfc:5044 MPA-7.1.1-07 M is per direction (asymmetric allowed)
//rfc:5044 MPA-7.1.1-09 C=1 on either: both generate and check
func TestE2ENegotiated(t *testing.T) {
	sides := []Options{
		{},
		{CRC: CRCOff},
		{CRC: CRCOff, Conformance: Conformance{Markers: true}},
		{Conformance: Conformance{Markers: true, Revision: 1}},
		{CRC: CRCOff, Conformance: Conformance{Revision: 1}},
	}
	for i, ao := range sides {
		for j, bo := range sides {
			name := fmt.Sprintf("initiator %d, responder %d", i, j)
			t.Run("memory, "+name, func(t *testing.T) {
				w := e2eWire{net: memnet.Options{Cut: j%2 == 0, MaxDelay: time.Duration(i%2) * time.Millisecond}}
				w.run(t, func(t *testing.T, w e2eWire) { negotiatedRound(t, w, ao, bo) })
			})
			t.Run("TCP, "+name, func(t *testing.T) {
				w := e2eWire{real: true}
				w.run(t, func(t *testing.T, w e2eWire) { negotiatedRound(t, w, ao, bo) })
			})
		}
	}
}

func negotiatedRound(t *testing.T, w e2eWire, ao, bo Options) {
	network, addr := w.network()
	a, b := newCMSide(t, network, ao), newCMSide(t, network, bo)
	aid, bid := cmConnect(t, a, b, b.listen(addr), 4)
	if aid.RemoteAddr() != bid.LocalAddr() || aid.LocalAddr() != bid.RemoteAddr() {
		t.Errorf("addresses %s to %s, and %s to %s", aid.LocalAddr(), aid.RemoteAddr(), bid.LocalAddr(), bid.RemoteAddr())
	}
	// The initiator speaks first, because the accepted side may have to wait for that.
	for _, n := range []int{0, 1, 1000, 1459, 2 * a.mulpdu()} {
		tryOperations(t, a.e2eEnd, b.e2eEnd, n, 2)
		tryOperations(t, b.e2eEnd, a.e2eEnd, n, 1)
	}
	st := [2]*stream{a.q.stream.Load(), b.q.stream.Load()}
	crc := ao.CRC == CRCOn || bo.CRC == CRCOn
	if st[0].params.CRC != crc || st[1].params.CRC != crc {
		t.Errorf("CRC %v and %v, want %v", st[0].params.CRC, st[1].params.CRC, crc)
	}
	if st[0].params.MarkersTx != bo.Conformance.Markers || st[1].params.MarkersTx != ao.Conformance.Markers {
		t.Errorf("markers sent %v and %v", st[0].params.MarkersTx, st[1].params.MarkersTx)
	}
	for i, s := range st {
		if p := s.params; p.Enhanced != (ao.Conformance.Revision != 1) || p.WaitFirstFPDU != (i == 1) {
			t.Errorf("side %d: %+v", i, p)
		}
	}
	a.recv(7)
	b.recv(8)
	testkit.OK(t, aid.Disconnect())
	a.event(provider.CMDisconnected)
	b.event(provider.CMDisconnected)
	a.flushed(a.rcq, 7, 1)
	b.flushed(b.rcq, 8, 1)
}
