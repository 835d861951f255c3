package ibverbs

import (
	"context"
	"slices"
	"sync"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// CompChannel is a completion channel (struct ibv_comp_channel): it reports that CQs have
// completions. Several CQs may share one.
//
// Any number of goroutines may wait on a channel at once, in Next and in CQ.PollWait of any of its
// CQs. One of them reads the device's events and passes on the events of the others.
type CompChannel struct {
	obj object.Object
	ctx *Context
	p   provider.CompChannel

	mu      sync.Mutex
	reading bool        // a goroutine is in p.Next
	rctx    readContext // of the current or last p.Next
	waiters []*waiter   // the other calls that wait
	pending []*CQ       // events for Next
}

// waiter is a goroutine that waits while another one reads the events.
type waiter struct {
	cq   *CQ // nil in Next
	wake chan struct{}
}

// CreateCompChannel makes a completion channel (ibv_create_comp_channel).
func (c *Context) CreateCompChannel() (*CompChannel, error) {
	const op = "ibv_create_comp_channel"
	if err := c.ok(op); err != nil {
		return nil, err
	}
	ch := &CompChannel{ctx: c}
	ch.obj.Describe(object.KindCompChannel, c.Name())
	if err := ch.obj.Open(op, &c.obj); err != nil {
		return nil, err
	}
	var err error
	if ch.p, err = c.dev.CreateCompChannel(); err != nil {
		ch.obj.Abandon()
		return nil, err
	}
	ch.obj.List(ch)
	return ch, nil
}

// Context returns the context that the channel was made from.
func (ch *CompChannel) Context() *Context {
	if ch == nil {
		return nil
	}
	return ch.ctx
}

// Next waits for a completion in a CQ that CQ.ReqNotify armed, and returns the CQ
// (ibv_get_cq_event). It acknowledges the event (ibv_ack_cq_events). Before the next call, poll the
// CQ until it is empty, arm it again, and poll it once more. Next may return a CQ that another
// goroutine has emptied.
func (ch *CompChannel) Next(ctx context.Context) (*CQ, error) {
	const op = "ibv_get_cq_event"
	if ch == nil || ch.p == nil {
		return nil, errNil(op, "completion channel")
	}
	if err := ch.obj.Check(op); err != nil {
		return nil, err
	}
	var cq *CQ
	err := ch.wait(ctx, nil, func() bool {
		if len(ch.pending) == 0 {
			return false
		}
		cq = ch.pending[0]
		ch.pending = slices.Delete(ch.pending, 0, 1)
		return true
	})
	return cq, object.GaveUp(ctx, op, ch.obj.Name(), err, "a CQ had an event")
}

// Close frees the channel (ibv_destroy_comp_channel). While a CQ uses it, Close returns EBUSY and
// says so.
func (ch *CompChannel) Close() error {
	if ch == nil || ch.p == nil {
		return nil
	}
	if err := ch.obj.Close(ch.p.Close); err != nil {
		return err
	}
	ch.mu.Lock()
	ch.rctx.end()
	ch.mu.Unlock()
	return nil
}

// A readContext is the context of a reader, and can interrupt the reader. A derived context costs
// several allocations, and a program mostly waits under one context again and again. So a
// readContext is kept, and the next call that waits under the same parent reuses it.
type readContext struct {
	context.Context // nil for none
	cancel          context.CancelFunc
	done            <-chan struct{} // the parent's; parents with the same one are equivalent
}

// under makes c end when parent ends.
func (c *readContext) under(parent context.Context) {
	if c.Context != nil && c.done == parent.Done() && c.Err() == nil {
		return
	}
	c.end()
	c.done = parent.Done()
	c.Context, c.cancel = context.WithCancel(parent)
}

// end interrupts the reader, if there is one.
func (c *readContext) end() {
	if c.cancel != nil {
		c.cancel()
	}
	*c = readContext{}
}

// wait returns when done, which it calls with ch.mu held, returns true. cq is the CQ whose events
// done depends on, nil for Next.
func (ch *CompChannel) wait(ctx context.Context, cq *CQ, done func() bool) error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	// A caller that leaves while no goroutine reads makes another waiter the reader.
	defer ch.appoint()
	for !done() {
		if err := ctx.Err(); err != nil {
			return err
		}
		var err error
		if ch.reading {
			err = ch.follow(ctx, cq)
		} else {
			err = ch.read(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// read waits for one event of the device and dispatches it. It is called and returns with ch.mu
// held.
func (ch *CompChannel) read(ctx context.Context) error {
	ch.rctx.under(ctx)
	rctx := ch.rctx.Context
	ch.reading = true
	ch.mu.Unlock()
	pcq, err := ch.p.Next(rctx)
	interrupted := rctx.Err() != nil
	ch.mu.Lock()
	ch.reading = false
	switch {
	case err == nil:
		if cq, ok := pcq.Cookie().(*CQ); ok {
			ch.dispatch(cq)
		}
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case interrupted: // by forget or wake: the caller checks again
		return nil
	}
	return err
}

// follow waits until the reader has something for cq or appoints a new reader.
// It is called and returns with ch.mu held.
func (ch *CompChannel) follow(ctx context.Context, cq *CQ) error {
	w := &waiter{cq: cq, wake: make(chan struct{})}
	ch.waiters = append(ch.waiters, w)
	ch.mu.Unlock()
	select {
	case <-w.wake:
		ch.mu.Lock()
		return nil
	case <-ctx.Done():
		ch.mu.Lock()
		ch.waiters = slices.DeleteFunc(ch.waiters, func(x *waiter) bool { return x == w })
		return ctx.Err()
	}
}

// dispatch passes an event of cq to the calls of its PollWait, and to Next if the program armed the
// CQ.
func (ch *CompChannel) dispatch(cq *CQ) {
	cq.events++
	if cq.armed.Swap(false) && !slices.Contains(ch.pending, cq) {
		ch.pending = append(ch.pending, cq)
	}
	next := len(ch.pending) > 0
	ch.waiters = slices.DeleteFunc(ch.waiters, func(w *waiter) bool {
		wake := w.cq == cq || (w.cq == nil && next)
		if wake {
			close(w.wake)
		}
		return wake
	})
}

// appoint wakes one waiter if no goroutine reads; that waiter becomes the reader.
func (ch *CompChannel) appoint() {
	if ch.reading || len(ch.waiters) == 0 {
		return
	}
	close(ch.waiters[0].wake)
	ch.waiters = slices.Delete(ch.waiters, 0, 1)
}

// wake makes all calls that wait for cq check their condition again.
func (ch *CompChannel) wake(cq *CQ) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	cq.events++
	ch.waiters = slices.DeleteFunc(ch.waiters, func(w *waiter) bool {
		if w.cq == cq {
			close(w.wake)
		}
		return w.cq == cq
	})
	ch.rctx.end() // the reader may be one of them
}

// forget drops the events of cq, which is closed, and makes all waiting calls check their condition
// again.
func (ch *CompChannel) forget(cq *CQ) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.pending = slices.DeleteFunc(ch.pending, func(x *CQ) bool { return x == cq })
	for _, w := range ch.waiters {
		close(w.wake)
	}
	ch.waiters = nil
	ch.rctx.end()
}
