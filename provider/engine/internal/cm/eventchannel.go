package cm

import (
	"context"
	"fmt"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/refs"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// EventChannel is an event channel: a queue of the events of the ids on it.
//
// Most connections have a channel of their own, and no events most of the time. So a channel holds
// memory only for queued events and waiting goroutines.
type EventChannel struct {
	m    *Manager
	refs refs.Count // ids

	mu          sched.Mutex[locks.EventChannel]
	first, last *queuedEvent  // nil: none
	woken       chan struct{} // closed by the next event, or Close; nil: no goroutine waits
}

// queuedEvent is an event with its place in a channel's queue. The queue is a list, because events
// are taken out of its middle: requests whose peers have left. That happens as often as peers come
// and leave, and must not depend on the queue's length.
type queuedEvent struct {
	provider.CMEvent
	queued     bool // guarded by the channel's mu
	prev, next *queuedEvent
}

// NewEventChannel makes an event channel. The caller holds the device for it, and Close of the
// channel calls Host.Release.
func (m *Manager) NewEventChannel() *EventChannel { return &EventChannel{m: m} }

// CreateID implements provider.EventChannel.
func (ch *EventChannel) CreateID(cookie any) (provider.ID, error) {
	if !ch.refs.Hold() {
		return nil, failClosed("rdma_create_id", "event channel")
	}
	return newID(ch, cookie), nil
}

// push queues e.
func (ch *EventChannel) push(e *queuedEvent) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	e.queued, e.prev, e.next = true, ch.last, nil
	if ch.last == nil {
		ch.first = e
	} else {
		ch.last.next = e
	}
	ch.last = e
	ch.wake()
}

// unlink takes e out of the queue. mu is held.
func (ch *EventChannel) unlink(e *queuedEvent) {
	if e.prev == nil {
		ch.first = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		ch.last = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.queued, e.prev, e.next = false, nil, nil
}

// withdraw takes e out of the queue, and its id off the channel. It returns false if e was fetched,
// or is about to move to another channel. It does both under one lock, because Close of the
// listener looks only for events, and the program may close the channel after that.
func (ch *EventChannel) withdraw(e *queuedEvent) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if !e.queued {
		return false
	}
	ch.unlink(e)
	ch.refs.Drop()
	return true
}

// wake makes all waiting goroutines check the queue again. mu is held.
func (ch *EventChannel) wake() {
	if ch.woken != nil {
		close(ch.woken)
		ch.woken = nil
	}
}

// pop takes the oldest event. Without one it returns a channel that is closed when the caller
// should try again.
func (ch *EventChannel) pop() (e provider.CMEvent, ok bool, again <-chan struct{}) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	switch {
	case ch.refs.Closed():
		return e, false, closedChan
	case ch.first == nil:
		if ch.woken == nil {
			ch.woken = make(chan struct{})
		}
		return e, false, ch.woken
	}
	oldest := ch.first
	ch.unlink(oldest)
	return oldest.CMEvent, true, nil
}

// closedChan makes a caller of pop try again at once.
var closedChan = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// removeEvents removes the events of id, in order. For a listener, these include the requests that
// were not fetched.
func (ch *EventChannel) removeEvents(id *ID) []*queuedEvent {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	var removed []*queuedEvent
	for e := ch.first; e != nil; {
		next := e.next
		if e.ID == id || e.ListenID == id {
			ch.unlink(e)
			removed = append(removed, e)
		}
		e = next
	}
	return removed
}

// Next implements provider.EventChannel. Several goroutines may wait; each event
// goes to one of them.
func (ch *EventChannel) Next(ctx context.Context) (provider.CMEvent, error) {
	const op = "rdma_get_cm_event"
	for {
		if ch.refs.Closed() {
			return provider.CMEvent{}, failClosed(op, "event channel")
		}
		e, ok, again := ch.pop()
		if ok {
			return e, nil
		}
		select {
		case <-again:
		case <-ctx.Done():
			return provider.CMEvent{}, fail(op, "event channel", ctx.Err())
		}
	}
}

// Close implements provider.EventChannel. Rejected connections go on waiting for the peer's FIN,
// because they belong to the device (Host.CloseAfter).
func (ch *EventChannel) Close() error {
	ids := ch.refs.Len()
	first, busy := ch.refs.End()
	if busy {
		return failBusy("rdma_destroy_event_channel", "event channel", fmt.Sprintf("%d ids", ids))
	}
	if first {
		ch.mu.Lock()
		ch.wake()
		ch.mu.Unlock()
		ch.m.host.Release()
	}
	return nil
}
