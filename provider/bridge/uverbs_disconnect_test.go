package bridge

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
)

// peerLeaves is a device on which the peer ends a QP's connection right after Query, so Query
// returns RTS although the QP has left it.
type peerLeaves struct{ provider.Provider }

type peerLeavesDevice struct{ provider.Device }

type peerLeavesPD struct{ provider.PD }

type peerLeavesQP struct {
	provider.QP
	queried bool
}

func (p peerLeaves) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	return peerLeavesDevice{d}, err
}

func (d peerLeavesDevice) AllocPD() (provider.PD, error) {
	pd, err := d.Device.AllocPD()
	return peerLeavesPD{pd}, err
}

func (pd peerLeavesPD) CreateQP(init provider.QPInitAttr) (provider.QP, error) {
	q, err := pd.PD.CreateQP(init)
	return &peerLeavesQP{QP: q}, err
}

func (q *peerLeavesQP) Query() (provider.QPAttr, provider.QPInitAttr, error) {
	attr, init, err := q.QP.Query()
	if !q.queried {
		attr.State, q.queried = provider.QPRTS, true
	}
	return attr, init, err
}

// TestBothDisconnect: if two programs disconnect at once, neither gets an error, as with siw. The
// peer may end the connection between the query of the state and its change.
func TestBothDisconnect(t *testing.T) {
	for _, to := range []ibverbs.QPState{ibverbs.QPSQD, ibverbs.QPSQE} {
		vctx := testkit.Must(ibverbs.Open(peerLeaves{engine.New(nil)}, ""))(t)
		pd := testkit.Must(vctx.AllocPD())(t)
		cq := testkit.Must(vctx.CreateCQ(1, nil))(t)
		q := testkit.Must(pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq,
			Cap: ibverbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
		if err := (&queuePair{qp: q}).modifyState(to, false); err != nil {
			t.Errorf("to %s: %v", to, err)
		}
		testkit.OK(t, q.Close())
		testkit.OK(t, cq.Close())
		testkit.OK(t, pd.Close())
		testkit.OK(t, vctx.Close())
	}
}
