package engine

import (
	"context"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// asyncQueue holds asynchronous events until the program fetches them. No program has to, so when
// the queue is full it keeps the oldest events, because the first failure explains the rest, and
// counts the others.
type asyncQueue struct {
	wake signal

	mu     sched.Mutex[locks.Async]
	events []provider.AsyncEvent // never beyond its capacity
	lost   uint64
	closed bool
}

func (a *asyncQueue) init(max int) {
	a.wake.init()
	a.events = make([]provider.AsyncEvent, 0, max)
}

// raise queues e, unless it is about a QP that is closed. It neither blocks nor allocates.
func (a *asyncQueue) raise(e provider.AsyncEvent) {
	a.mu.Lock()
	q, _ := e.QP.(*qp)
	switch {
	case a.closed, q != nil && q.noEvents:
	case len(a.events) == cap(a.events):
		a.lost++
	default:
		a.events = append(a.events, e)
	}
	a.mu.Unlock()
	a.wake.set()
}

// pop takes the oldest event. After the last event that was kept, it returns once how many were
// lost.
func (a *asyncQueue) pop() (e provider.AsyncEvent, lost uint64, ok, more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.events) == 0 {
		lost, a.lost = a.lost, 0
		return e, lost, false, false
	}
	e = a.events[0]
	n := copy(a.events, a.events[1:])
	a.events[n] = provider.AsyncEvent{}
	a.events = a.events[:n]
	return e, 0, true, n > 0 || a.lost > 0
}

// forget drops the events that match, because their object is being closed.
func (a *asyncQueue) forget(match func(provider.AsyncEvent) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kept := a.events[:0]
	for _, e := range a.events {
		if !match(e) {
			kept = append(kept, e)
		}
	}
	clear(a.events[len(kept):])
	a.events = kept
}

// forgetQP drops the events of q, which is being closed, and makes raise ignore later ones. The
// goroutine that ends a connection raises events after the flush, and the flush lets the program
// close q.
func (a *asyncQueue) forgetQP(q *qp) {
	a.mu.Lock()
	q.noEvents = true
	a.mu.Unlock()
	a.forget(func(e provider.AsyncEvent) bool { return e.QP == q })
}

func (a *asyncQueue) close() {
	a.mu.Lock()
	a.closed = true
	clear(a.events)
	a.events = a.events[:0]
	a.lost = 0
	a.mu.Unlock()
	a.wake.close()
}

// signal wakes waiters of a queue. The queue has a state of its own. A waiter checks it, waits and
// checks again. A goroutine that leaves something for others sets the signal again.
type signal struct {
	pending chan struct{} // capacity 1
	closed  chan struct{}
}

func (s *signal) init() {
	s.pending = make(chan struct{}, 1)
	s.closed = make(chan struct{})
}

// set wakes one waiter, or lets the next one pass. It never blocks.
func (s *signal) set() {
	select {
	case s.pending <- struct{}{}:
	default:
	}
}

// close lets all waiters pass from now on. It is called once.
func (s *signal) close() { close(s.closed) }

// tryWait reports whether the signal was set, and resets it. It does not wait.
func (s *signal) tryWait() bool {
	select {
	case <-s.pending:
		return true
	default:
		return false
	}
}

// wait waits for set or close, or returns the error of ctx.
func (s *signal) wait(ctx context.Context) error {
	select {
	case <-s.pending:
		return nil
	default:
	}
	select {
	case <-s.pending:
	case <-s.closed:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
