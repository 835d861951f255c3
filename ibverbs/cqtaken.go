package ibverbs

import (
	"context"
	"errors"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// takenCQ polls a CQ whose completions package rdmacm takes instead of the program. It implements
// object.CQTaker.
type takenCQ struct {
	cq       *CQ
	released bool // under cq.mu
}

// take makes the program's polls of the CQ fail, because they could return completions that calls
// of package rdmacm wait for. why returns the text of Poll's error. owns reports which WRIDs are of
// work that package rdmacm posts.
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
		cq.ch.wake(cq) // a waiting PollWait of the program fails now, not at the next completion
	}
	return &takenCQ{cq: cq}, nil
}

// busy returns the error of the program's Poll, nil if the program may poll. The caller holds mu.
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
		return // the CQ may have another taker by now
	}
	t.released = true
	t.cq.taken = nil
	t.cq.settle()
}

// poll polls the CQ on behalf of its taker.
func (cq *CQ) poll(wc []WC) (int, error) {
	cq.mu.RLock()
	if cq.aside {
		cq.mu.RUnlock()
		return cq.pollAside(wc)
	}
	return cq.pollDevice(wc)
}

// nameWork returns err, the cause of qp's end. If err names a work request that package rdmacm
// posted, nameWork removes the WRID, which the program does not know.
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
