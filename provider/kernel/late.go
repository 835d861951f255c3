//go:build cgo && linux && !nokernel

package kernel

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// The contract requires all work of a QP whose connection has ended to complete as flushed. So when
// this package learns of the end, it moves the QP to the error state, in which the device flushes
// its work. On InfiniBand and RoCE nothing else does that, and siw leaves some work after a fault
// in the answer to a Read.
//
// siw never completes work that is posted later. So that work is not passed to libsiw, and this
// file makes its completions. Other devices flush it by themselves, as ibv_modify_qp(3) says. But
// librxe does not notify the kernel of receives, so after posting them the QP is moved to the error
// state once more.

// lateWC is a completion that this package makes. It occupies a place in its queue until it is
// polled.
type lateWC struct {
	wc     provider.WC
	places *atomic.Int32
}

// end records that the QP's connection has ended.
func (q *qp) end() { q.ended.Store(true) }

// settle makes the device flush its work. Nothing completes in siw after that. The caller has the
// lock of a queue, or has entered the QP.
func (q *qp) settle() {
	q.settling.Lock()
	defer q.settling.Unlock()
	if !q.settled {
		q.settled = true
		q.toError()
	}
}

// toError moves the QP to the error state. This cannot fail, because it is allowed from every
// state.
func (q *qp) toError() { _ = q.c.Modify(errState, uint32(provider.QPAttrState)) }

// flushSends completes wrs as flushed, with the rules of PostSend. The caller has PostSend's locks.
func (q *qp) flushSends(wrs []provider.SendWR) (int, error) {
	q.settle()
	q.recoverSends()
	cq := q.init.SendCQ.(*cq)
	for i := range wrs {
		wr := &wrs[i]
		q.sq.Reset()
		if err := q.addSend(wr); err != nil {
			return i, err
		}
		if q.lateSends.Load() >= int32(q.init.Cap.MaxSendWR) {
			return i, syscall.ENOMEM
		}
		cq.addLate(lateWC{provider.WC{WRID: wr.WRID, Status: provider.WCWRFlushErr, Opcode: wcOpcode(wr.Opcode), QPN: q.qpn}, &q.lateSends})
	}
	return len(wrs), nil
}

// flushRecvs completes wrs as flushed, with the rules of PostRecv. The caller has PostRecv's locks.
func (q *qp) flushRecvs(wrs []provider.RecvWR) (int, error) {
	q.settle()
	q.recoverRecvs()
	cq := q.init.RecvCQ.(*cq)
	for i := range wrs {
		q.rq.Reset()
		if err := addRecv(q.rq, &wrs[i], true); err != nil {
			return i, err
		}
		if q.lateRecvs.Load() >= int32(q.init.Cap.MaxRecvWR) {
			return i, syscall.ENOMEM
		}
		cq.addLate(lateWC{provider.WC{WRID: wrs[i].WRID, Status: provider.WCWRFlushErr, Opcode: provider.WCRecv, QPN: q.qpn}, &q.lateRecvs})
	}
	return len(wrs), nil
}

func wcOpcode(op provider.WROpcode) provider.WCOpcode {
	switch op {
	case provider.WRRDMAWrite:
		return provider.WCRDMAWrite
	case provider.WRRDMARead:
		return provider.WCRDMARead
	case provider.WRBindMW:
		return provider.WCBindMW
	case provider.WRLocalInv:
		return provider.WCLocalInv
	}
	return provider.WCSend
}

// addLate adds a completion after the completions in C.
func (q *cq) addLate(l lateWC) {
	q.pollMu.Lock()
	defer q.pollMu.Unlock()
	l.places.Add(1)
	q.late = append(q.late, l)
	q.raise()
}

// raise makes an event of the CQ if it is armed. The caller has pollMu.
func (q *cq) raise() {
	if q.armed && q.ch != nil {
		q.armed = false
		q.ch.lateEvent(q)
	}
}

// takeLate moves completions to wc and returns their number. The caller has pollMu.
func (q *cq) takeLate(wc []provider.WC) int {
	n := min(len(wc), len(q.late))
	for i := range n {
		wc[i] = q.late[i].wc
		q.late[i].places.Add(-1)
	}
	q.late = q.late[n:]
	return n
}

// lateEvents are the events of a completion channel that this package makes instead of C.
type lateEvents struct {
	mu   sync.Mutex
	cqs  []*cq
	kick context.Context // cancelled when a CQ is added to cqs; a child of the channel's life
	call context.CancelFunc
}

// renew makes the context that the next late event cancels.
func (e *lateEvents) renew(life context.Context) { e.kick, e.call = context.WithCancel(life) }

// lateEvent makes a call of the channel's Next return q.
func (ch *compChannel) lateEvent(q *cq) {
	ch.late.mu.Lock()
	defer ch.late.mu.Unlock()
	ch.late.cqs = append(ch.late.cqs, q)
	ch.late.call()
	ch.late.renew(ch.life)
}

// takeLate returns a CQ with a pending event, or nil and the context that the next event cancels.
func (ch *compChannel) takeLate() (*cq, context.Context) {
	ch.late.mu.Lock()
	defer ch.late.mu.Unlock()
	if len(ch.late.cqs) == 0 {
		return nil, ch.late.kick
	}
	q := ch.late.cqs[0]
	ch.late.cqs = slices.Delete(ch.late.cqs, 0, 1)
	return q, nil
}

// forgetLate drops the events of a CQ that is closed.
func (ch *compChannel) forgetLate(q *cq) {
	ch.late.mu.Lock()
	defer ch.late.mu.Unlock()
	ch.late.cqs = slices.DeleteFunc(ch.late.cqs, func(x *cq) bool { return x == q })
}
