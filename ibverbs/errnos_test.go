package ibverbs_test

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

// TestBadErrnos compares the errnos of invalid calls on the engine and on siw through libibverbs. 0
// means that siw accepts the call. rxe has the engine's errnos, except for P_Keys, which RoCE has.
func TestBadErrnos(t *testing.T) {
	vctx, l := queueWorld(t)
	attr := testkit.Must(vctx.Query())(t)
	fresh, end := qpInState(t, vctx, l, []ibverbs.QPState{})
	defer end()
	j := joinWith(t, vctx, l, rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
	defer j.close(t)
	sge := testkit.Must(j.mr.SGE(0, 8))(t)
	many := slices.Repeat([]ibverbs.SGE{sge}, attr.MaxSGE+1)
	gids := testkit.Must(vctx.QueryPort(1))(t).GIDTblLen
	pkey, noPort := syscall.ENOENT, syscall.ENOENT
	if onRxe() {
		pkey = 0
	}
	createCQ := func(cqe, vector int) error {
		cq, err := vctx.CreateCQ(cqe, &ibverbs.CQOptions{CompVector: vector})
		if err == nil {
			testkit.OK(t, cq.Close())
		}
		return err
	}
	const einval = syscall.EINVAL
	for _, c := range []struct {
		what        string
		err         error
		engine, siw syscall.Errno
	}{
		{"port 0", second(vctx.QueryPort(0)), einval, einval},
		{"port 2", second(vctx.QueryPort(2)), einval, einval},
		{"GID of port 0", second(vctx.QueryGID(0, 0)), einval, einval},
		{"GID of port 2", second(vctx.QueryGID(2, 0)), einval, einval},
		{"GID -1", second(vctx.QueryGID(1, -1)), einval, einval},
		{"GID behind the table", second(vctx.QueryGID(1, gids)), einval, einval},
		{"P_Key", second(vctx.QueryPkey(1, 0)), pkey, pkey},
		{"P_Key of port 2", second(vctx.QueryPkey(2, 0)), noPort, noPort},
		{"CQ of 0", createCQ(0, 0), einval, einval},
		{"CQ of -1", createCQ(-1, 0), einval, einval},
		{"CQ beyond MaxCQE", createCQ(attr.MaxCQE+1, 0), einval, einval},
		{"vector -1", createCQ(1, -1), einval, einval},
		{"vector behind the last", createCQ(1, attr.NumCompVectors), einval, einval},
		{"CQ resized to 0", j.client.SendCQ().Resize(0), einval, einval},
		{"Send without a connection", fresh.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend}), einval, einval},
		{"to RTS without a connection", toState(fresh, ibverbs.QPRTS), einval, einval},
		{"to SQD without a connection", toState(fresh, ibverbs.QPSQD), einval, 0},
		{"to state 8", toState(fresh, 8), einval, einval},
		{"from a state that it isn't in", fresh.Modify(ibverbs.QPAttr{State: ibverbs.QPInit, CurState: ibverbs.QPRTS}, ibverbs.QPAttrState|ibverbs.QPAttrCurState), einval, 0},
		{"a read depth beyond the limit", fresh.Modify(ibverbs.QPAttr{MaxRdAtomic: attr.MaxQPInitRdAtom + 1}, ibverbs.QPAttrMaxRdAtomic), einval, 0},
		{"sizes of a QP that exists", fresh.Modify(ibverbs.QPAttr{}, ibverbs.QPAttrCap), einval, 0},
		{"back from RTS to INIT", toState(j.client.QP(), ibverbs.QPInit), einval, 0},
		{"Send of too many entries", j.client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: many}), einval, einval},
		{"unknown opcode", j.client.QP().PostSend(ibverbs.SendWR{Opcode: 77}), einval, einval},
		{"unknown flags", j.client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: 1 << 30}), einval, einval},
		{"inline Read", j.client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendInline}), einval, einval},
		{"receive of too many entries", j.client.QP().PostRecv(ibverbs.RecvWR{SGList: many}), einval, einval},
		{"receives beyond the queue", j.client.QP().PostRecv(make([]ibverbs.RecvWR, 300)...), syscall.ENOMEM, syscall.ENOMEM},
	} {
		want := c.engine
		if onSiw() {
			want = c.siw
		}
		var call *ibverbs.Error
		switch {
		case want == 0 && c.err != nil, want != 0 && (!errors.As(c.err, &call) || call.Op == "" || provider.Errno(c.err) != want):
			t.Errorf("%s: %v, want %v", c.what, c.err, want)
		}
	}
	// The connection still works.
	testkit.OK(t, j.server.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{testkit.Must(j.serverMR.SGE(0, 8))(t)}}))
	testkit.OK(t, j.client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge}}))
	if wc := take(t, j.server.RecvCQ(), 1); wc[0].Err() != nil {
		t.Errorf("in the end: %v", wc[0].Err())
	}
}
