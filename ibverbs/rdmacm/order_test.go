package rdmacm_test

import (
	"net/netip"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

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
