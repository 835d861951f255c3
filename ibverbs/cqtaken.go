package ibverbs

import (
	"context"
	"errors"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// takenCQ polls a CQ whose completions package rdmacm takes for the program. It implements
// object.CQTaker.
type takenCQ struct {
	cq       *CQ
	released bool // under cq.mu
}

// take keeps the program from polling the CQ, because it would get completions that calls of
// package rdmacm wait for. why is for the error of Poll, and owns reports which WRIDs are of work
// that package rdmacm posts.
func (cq *CQ) take(why func() string, owns func(wrid uint64) bool) (object.CQTaker, error) {
	if err := cq.polled("taking completions"); err != nil {
		return nil, err
	}
	cq.mu.Lock()
	err := cq.busy()
	if err == nil {
		cq.taken, cq.owns = why, owns
		cq.settle()
	}
	cq.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if cq.ch != nil {
		cq.ch.wake(cq) // a PollWait of the program fails now, and not with the next completion
	}
	return &takenCQ{cq: cq}, nil
}

// busy returns the error of a Poll of the program, nil if it may poll. mu is held.
func (cq *CQ) busy() error {
	if cq.taken == nil {
		return nil
	}
	return cq.obj.Errorf("ibv_poll_cq", syscall.EBUSY, "%s", cq.taken())
}

// Poll implements object.CQTaker.
func (t *takenCQ) Poll(wc []WC) (int, error) { return t.cq.poll(wc) }

// PollWait implements object.CQTaker.
func (t *takenCQ) PollWait(ctx context.Context, wc []WC) (int, error) {
	return t.cq.pollWait(ctx, wc, (*CQ).poll)
}

// Release implements object.CQTaker.
func (t *takenCQ) Release() {
	t.cq.mu.Lock()
	defer t.cq.mu.Unlock()
	if t.released {
		return // somebody else may have taken the CQ since
	}
	t.released = true
	t.cq.taken = nil
	t.cq.settle()
}

// poll is Poll for the taker of the CQ.
func (cq *CQ) poll(wc []WC) (int, error) {
	cq.mu.RLock()
	if cq.aside {
		cq.mu.RUnlock()
		return cq.pollAside(wc)
	}
	return cq.pollDevice(wc)
}

// nameWork returns err, the cause of the end of qp, without the WRID of a work request that package
// rdmacm has posted: the program does not know it.
func (qp *QP) nameWork(err error) error {
	var term *TerminateError
	var work *WorkError
	if !errors.As(err, &term) || !errors.As(err, &work) {
		return err
	}
	cq := qp.sendCQ
	if work.Recv {
		cq = qp.recvCQ
	}
	cq.mu.RLock()
	owns := cq.owns
	cq.mu.RUnlock()
	if owns == nil || !owns(work.WRID) {
		return err
	}
	t, w := *term, *work
	w.Unknown = true
	t.Err = &w
	return &t
}
