package engine

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/refs"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// compChannel is a completion channel: a queue of CQs that have fired. A CQ is
// in the queue once, with a count, so that the queue needs no memory of its
// own.
type compChannel struct {
	dev  *device
	refs refs.Count
	wake signal

	// brief says that the last sleep was one that looking around would have
	// saved.
	brief atomic.Bool

	mu          sched.Mutex[locks.CompChannel]
	first, last *cq // linked by cq.next
}

// CreateCompChannel implements provider.Device.
func (d *device) CreateCompChannel() (provider.CompChannel, error) {
	const op = "ibv_create_comp_channel"
	if !d.refs.Hold() {
		return nil, failClosed(op, DeviceName)
	}
	ch := &compChannel{dev: d}
	ch.wake.init()
	return ch, nil
}

// fire queues an event of c. It neither blocks nor allocates.
func (ch *compChannel) fire(c *cq) {
	ch.mu.Lock()
	if c.refs.Closed() { // forget has been, or will be, called
		ch.mu.Unlock()
		return
	}
	c.events++
	if !c.queued {
		ch.append(c)
	}
	ch.mu.Unlock()
	ch.wake.set()
}

func (ch *compChannel) append(c *cq) {
	c.queued, c.next = true, nil
	if ch.last == nil {
		ch.first = c
	} else {
		ch.last.next = c
	}
	ch.last = c
}

// pop takes the oldest event, nil if there is none. more reports whether
// there are others.
func (ch *compChannel) pop() (c *cq, more bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	c = ch.first
	if c == nil {
		return nil, false
	}
	ch.first = c.next
	if ch.first == nil {
		ch.last = nil
	}
	c.queued, c.next = false, nil
	if c.events--; c.events > 0 {
		ch.append(c)
	}
	return c, ch.first != nil
}

// forget drops the events of c.
func (ch *compChannel) forget(c *cq) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	c.events = 0
	if !c.queued {
		return
	}
	var prev *cq
	for at := ch.first; at != c; at = at.next {
		prev = at
	}
	if prev == nil {
		ch.first = c.next
	} else {
		prev.next = c.next
	}
	if ch.last == c {
		ch.last = prev
	}
	c.queued, c.next = false, nil
}

// Next implements provider.CompChannel. Several goroutines may wait; each
// event goes to one of them.
func (ch *compChannel) Next(ctx context.Context) (provider.CQ, error) {
	const op = "ibv_get_cq_event"
	for {
		if ch.refs.Closed() {
			return nil, failClosed(op, "completion channel")
		}
		if c, more := ch.pop(); c != nil {
			if more {
				ch.wake.set() // for the next waiter
			}
			return c, nil
		}
		if err := ch.sleep(ctx); err != nil {
			return nil, fail(op, "completion channel", err)
		}
	}
}

// sleep waits for an event, or returns the error of ctx. Falling asleep and being
// woken take 5 us and more on either side, so that a goroutine whose last wait was
// shorter than that first looks for events for as long.
func (ch *compChannel) sleep(ctx context.Context) error {
	look := ch.dev.opts.BusyWait
	began := time.Now()
	if look > 0 && ch.brief.Load() && ch.lookAround(began.Add(look)) {
		return nil
	}
	err := ch.wake.wait(ctx)
	ch.brief.Store(time.Since(began) < look)
	return err
}

// mostLooks take about a millisecond, more than a useful BusyWait. It ends the looking
// where the clock stands still as long as anybody runs, as in a simulation.
const mostLooks = 1 << 12

// lookAround serves the device's streams until there is an event or the time is up.
func (ch *compChannel) lookAround(until time.Time) bool {
	for range mostLooks {
		ch.dev.poller.Poll()
		if ch.wake.take() {
			return true
		}
		if time.Until(until) < 0 {
			return false
		}
		runtime.Gosched() // to whom the CPU is of more use
	}
	return false
}

// Close implements provider.CompChannel. Waiters return with os.ErrClosed.
func (ch *compChannel) Close() error {
	first, busy := ch.refs.End()
	if busy {
		return failBusy("ibv_destroy_comp_channel", "completion channel", "CQs")
	}
	if first {
		ch.wake.close()
		ch.dev.refs.Drop()
	}
	return nil
}
