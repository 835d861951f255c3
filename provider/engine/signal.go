package engine

import "context"

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

// take reports whether the signal was set, and resets it. It does not wait.
func (s *signal) take() bool {
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
