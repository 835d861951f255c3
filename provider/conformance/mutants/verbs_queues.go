package mutants

import (
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

type brokenCQ struct {
	provider.CQ
	dev   *brokenDevice
	tried atomic.Bool // with clings

	mu   sync.Mutex // serialises the fault's poll; guards what follows
	seen int        // completions so far
	late []provider.WC
}

// Poll implements provider.CQ.
func (q *brokenCQ) Poll(wc []provider.WC) (int, error) {
	f := q.dev.fault.poll
	if f == nil {
		return q.CQ.Poll(wc)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n, err := q.CQ.Poll(wc)
	return f(q, wc[:n]), err
}

// ReqNotify implements provider.CQ.
func (q *brokenCQ) ReqNotify(solicitedOnly bool) error {
	if f := q.dev.fault.notify; f != nil {
		solicitedOnly = f(solicitedOnly)
	}
	return q.CQ.ReqNotify(solicitedOnly)
}

// Close implements provider.CQ.
func (q *brokenCQ) Close() error {
	if q.dev.fault.clings && !q.tried.Swap(true) {
		return syscall.EBUSY
	}
	err := q.CQ.Close()
	if err == nil {
		q.dev.mu.Lock()
		delete(q.dev.cqs, q.CQ)
		q.dev.mu.Unlock()
	}
	return err
}

type brokenQP struct {
	provider.QP
	dev *brokenDevice
}

// PostSend implements provider.QP.
func (q *brokenQP) PostSend(wrs []provider.SendWR) (int, error) {
	all := len(wrs)
	if f := q.dev.fault.postSend; f != nil {
		wrs = append([]provider.SendWR(nil), wrs...)
		f(wrs)
	}
	if f := q.dev.fault.bind; f != nil {
		wrs = append([]provider.SendWR(nil), wrs...)
		boundBy(wrs, f)
	}
	n, err := q.QP.PostSend(wrs)
	if q.dev.fault.windowsForAll {
		q.dev.world.follow(q, wrs[:n])
	}
	if f := q.dev.fault.posted; f != nil {
		return f(n, all, err)
	}
	return n, q.dev.refusal(err)
}

// PostRecv implements provider.QP.
func (q *brokenQP) PostRecv(wrs []provider.RecvWR) (int, error) {
	all := len(wrs)
	if f := q.dev.fault.postRecv; f != nil {
		wrs = append([]provider.RecvWR(nil), wrs...)
		f(wrs)
	}
	n, err := q.QP.PostRecv(wrs)
	q.dev.world.posted(n)
	if f := q.dev.fault.posted; f != nil {
		return f(n, all, err)
	}
	return n, q.dev.refusal(err)
}

// Query implements provider.QP.
func (q *brokenQP) Query() (provider.QPAttr, provider.QPInitAttr, error) {
	attr, init, err := q.QP.Query()
	init.SendCQ, init.RecvCQ = q.dev.cq(init.SendCQ), q.dev.cq(init.RecvCQ)
	return attr, init, q.dev.refusal(err)
}

// Close implements provider.QP.
func (q *brokenQP) Close() error {
	err := q.QP.Close()
	if err == nil {
		q.dev.world.parted(q)
		q.dev.mu.Lock()
		delete(q.dev.qps, q.QP)
		q.dev.mu.Unlock()
	}
	return err
}
