package ibverbs_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// The states of a QP as iWARP has them: ibv_modify_qp(3), RFC 5040 section 6.2. The
// tests of this file run on the engine, and on siw through TestOnSiw.

var qpStates = []ibverbs.QPState{ibverbs.QPReset, ibverbs.QPInit, ibverbs.QPRTR, ibverbs.QPRTS, ibverbs.QPSQD, ibverbs.QPSQE, ibverbs.QPErr}

// transitions says which state changes the engine makes, for each state in which a QP can stay, in
// the order of qpStates. siw refuses the changes in its field siw with EINVAL and accepts all
// others, whether they have an effect or not (kernel-notes/siw-modify-qp.md). An unconnected QP
// gets to RTS only by a connection. The engine's SQD has its own test, because a connection does
// not stay in it: TestStatesConnected of provider/engine.
var transitions = []struct {
	from ibverbs.QPState
	path []ibverbs.QPState // from RESET to the state; nil for RTS
	may  [7]bool           // RESET INIT RTR RTS SQD SQE ERR
	siw  []ibverbs.QPState // refused by siw
}{
	{ibverbs.QPReset, []ibverbs.QPState{}, [7]bool{true, true, false, false, false, false, true}, []ibverbs.QPState{ibverbs.QPRTS}},
	{ibverbs.QPInit, []ibverbs.QPState{ibverbs.QPInit}, [7]bool{true, true, true, false, false, false, true}, []ibverbs.QPState{ibverbs.QPRTS}},
	{ibverbs.QPRTR, []ibverbs.QPState{ibverbs.QPInit, ibverbs.QPRTR}, [7]bool{true, false, true, false, false, false, true}, []ibverbs.QPState{ibverbs.QPRTS}},
	{ibverbs.QPRTS, nil, [7]bool{false, false, false, true, true, true, true}, nil},
	{ibverbs.QPErr, []ibverbs.QPState{ibverbs.QPErr}, [7]bool{true, false, false, false, false, false, true}, nil},
}

func toState(qp *ibverbs.QP, s ibverbs.QPState) error {
	return qp.Modify(ibverbs.QPAttr{State: s}, ibverbs.QPAttrState)
}

func TestStates(t *testing.T) {
	vctx, l := queueWorld(t)
	for _, tr := range transitions {
		for i, to := range qpStates {
			what := fmt.Sprintf("%s to %s", tr.from, to)
			qp, end := qpInState(t, vctx, l, tr.path)
			may := tr.may[i]
			if onSiw() {
				may = true
				for _, s := range tr.siw {
					may = may && s != to
				}
			}
			err := toState(qp, to)
			switch now := tr.from; {
			case !may:
				refused(t, what, err, syscall.EINVAL)
				if !onSiw() {
					wantState(t, what, qp, now)
				}
			case err != nil:
				t.Errorf("%s: %v", what, err)
			case !onSiw() && to != ibverbs.QPSQD && to != ibverbs.QPSQE: // SQD and SQE end in ERR
				wantState(t, what, qp, to)
			}
			end()
		}
	}
}

func wantState(t *testing.T, what string, qp *ibverbs.QP, want ibverbs.QPState) {
	t.Helper()
	// rxe's cur_qp_state is the value that the program set last.
	if attr, _, err := qp.Query(); err != nil || attr.State != want || attr.CurState != want && !onRxe() {
		t.Errorf("%s: the QP is in %s (cur_qp_state %s), %v", what, attr.State, attr.CurState, err)
	}
}

// qpInState makes a QP and moves it along path; without a path it makes a connected QP.
func qpInState(t *testing.T, vctx *ibverbs.Context, l *rdmacm.Listener, path []ibverbs.QPState) (qp *ibverbs.QP, end func()) {
	t.Helper()
	if path == nil {
		j := joinWith(t, vctx, l, rdmacm.ConnConfig{})
		return j.client.QP(), func() { j.close(t) }
	}
	pd := testkit.Must(vctx.AllocPD())(t)
	cq := testkit.Must(vctx.CreateCQ(8, nil))(t)
	qp = testkit.Must(pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
	for _, s := range path {
		testkit.OK(t, toState(qp, s))
	}
	return qp, func() {
		for _, close := range []func() error{qp.Close, cq.Close, pd.Close} {
			testkit.OK(t, close())
		}
	}
}

// TestStatesFlush: whatever ends a connection, all posted work completes as flushed, in order, and
// so does work that is posted afterwards, signalled or not.
func TestStatesFlush(t *testing.T) {
	ends := map[string]func(j *joined) error{
		"to ERR":               func(j *joined) error { return toState(j.client.QP(), ibverbs.QPErr) },
		"disconnect":           func(j *joined) error { return j.client.Disconnect() },
		"the peer disconnects": func(j *joined) error { return j.server.Disconnect() },
	}
	if !onRxe() {
		// Other ends of an iWARP connection. On RoCE the connection goes on: a QP in SQD drains
		// only its send queue and may be moved back, SQE is for errors, and the peer does not learn
		// that a QP is in ERR.
		ends["to SQD"] = func(j *joined) error { return toState(j.client.QP(), ibverbs.QPSQD) }
		ends["to SQE"] = func(j *joined) error { return toState(j.client.QP(), ibverbs.QPSQE) }
		ends["the peer goes to ERR"] = func(j *joined) error { return toState(j.server.QP(), ibverbs.QPErr) }
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			vctx, l := queueWorld(t)
			scq := testkit.Must(vctx.CreateCQ(64, nil))(t)
			rcq := testkit.Must(vctx.CreateCQ(64, nil))(t)
			j := joinWith(t, vctx, l, rdmacm.ConnConfig{SendCQ: scq, RecvCQ: rcq, Cap: ibverbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8}})
			qp := j.client.QP()
			for i := range 3 {
				testkit.OK(t, qp.PostRecv(ibverbs.RecvWR{WRID: uint64(i)}))
			}
			flushed := func(what string, cq *ibverbs.CQ, wrids ...uint64) {
				t.Helper()
				for i, wc := range take(t, cq, len(wrids)) {
					if wc.WRID != wrids[i] || wc.Status != ibverbs.WCWRFlushErr || wc.QPN != qp.QPN() || !errors.Is(wc.Err(), ibverbs.ErrFlushed) {
						t.Errorf("%s: %d of qp %d with %s, want %d flushed", what, wc.WRID, wc.QPN, wc.Status, wrids[i])
					}
				}
			}
			testkit.OK(t, end(j))
			// siw flushes some of it only when its event has been seen.
			if onRxe() && name == "to ERR" {
				testkit.OK(t, j.client.Disconnect()) // the state does not end the connection
			}
			testkit.OK(t, j.client.Wait(timeout(t)))
			flushed("posted before", rcq, 0, 1, 2)
			testkit.OK(t, qp.PostRecv(ibverbs.RecvWR{WRID: 10}, ibverbs.RecvWR{WRID: 11}))
			flushed("receives posted after", rcq, 10, 11)
			testkit.OK(t, qp.PostSend(ibverbs.SendWR{WRID: 20, Opcode: ibverbs.WRSend}, ibverbs.SendWR{WRID: 21, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled},
				ibverbs.SendWR{WRID: 22, Opcode: ibverbs.WRRDMAWrite}))
			flushed("sends posted after", scq, 20, 21, 22)
			if err := qp.PostSend(ibverbs.SendWR{Opcode: 77}); err == nil {
				t.Error("what can't be is taken by a QP in ERR")
			}
			if !onSiw() {
				wantState(t, "in the end", qp, ibverbs.QPErr)
			}
			j.close(t)
			testkit.OK(t, scq.Close())
			testkit.OK(t, rcq.Close())
		})
	}
}
