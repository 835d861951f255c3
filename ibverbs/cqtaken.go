package ibverbs

import (
	"context"
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
// package rdmacm wait for. why is for the error of Poll.
func (cq *CQ) take(why func() string) (object.CQTaker, error) {
	if err := cq.polled("taking completions"); err != nil {
		return nil, err
	}
	cq.mu.Lock()
	err := cq.busy()
	if err == nil {
		cq.taken = why
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

// poll is Poll for who has taken the CQ.
func (cq *CQ) poll(wc []WC) (int, error) {
	cq.mu.RLock()
	if cq.aside {
		cq.mu.RUnlock()
		return cq.pollAside(wc)
	}
	n, err := cq.p.Poll(wc)
	cq.mu.RUnlock()
	if err != nil {
		err = cq.called(err)
	}
	return n, err
}
