package engine

import (
	"context"
	"fmt"
	"sync"

	"github.com/govs-rdma/govs/provider"
)

// eventChannel is an event channel: a queue of events, as long as the ids on it
// have anything to say.
//
// Locks of the connection manager, in the order in which they may be taken: the
// listener's cmID.mu; cmID.mu; eventChannel.mu. Nothing waits while it holds one.
type eventChannel struct {
	dev  *device
	life life // ids
	wake signal

	// Closing connections outlive their ids: a reject must reach the peer before
	// the socket goes. They end with the channel at the latest.
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu     sync.Mutex
	events []provider.CMEvent
}

// newEventChannel makes an event channel of d, which has been held for it:
// Close drops that.
func newEventChannel(d *device) provider.EventChannel {
	ch := &eventChannel{dev: d}
	ch.wake.init()
	ch.ctx, ch.cancel = context.WithCancel(context.Background())
	return ch
}

// CreateID implements provider.EventChannel.
func (ch *eventChannel) CreateID(cookie any) (provider.ID, error) {
	if !ch.life.hold() {
		return nil, failClosed("rdma_create_id", "event channel")
	}
	return newID(ch, cookie), nil
}

// push queues e.
func (ch *eventChannel) push(e provider.CMEvent) {
	ch.mu.Lock()
	ch.events = append(ch.events, e)
	ch.mu.Unlock()
	ch.wake.set()
}

// pop takes the oldest event.
func (ch *eventChannel) pop() (e provider.CMEvent, ok, more bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if len(ch.events) == 0 {
		return e, false, false
	}
	e = ch.events[0]
	ch.events[0] = provider.CMEvent{}
	ch.events = ch.events[1:]
	return e, true, len(ch.events) > 0
}

// take removes the events of id, in order, with those of a listener the
// requests that nobody has fetched.
func (ch *eventChannel) take(id *cmID) []provider.CMEvent {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	var taken, kept []provider.CMEvent
	for _, e := range ch.events {
		if e.ID == id || e.ListenID == id {
			taken = append(taken, e)
		} else {
			kept = append(kept, e)
		}
	}
	ch.events = kept
	return taken
}

// Next implements provider.EventChannel. Several goroutines may wait; each event
// goes to one of them.
func (ch *eventChannel) Next(ctx context.Context) (provider.CMEvent, error) {
	const op = "rdma_get_cm_event"
	for {
		if ch.life.closed() {
			return provider.CMEvent{}, failClosed(op, "event channel")
		}
		e, ok, more := ch.pop()
		if more {
			ch.wake.set() // for the next waiter
		}
		if ok {
			return e, nil
		}
		if err := ch.wake.wait(ctx); err != nil {
			return provider.CMEvent{}, fail(op, "event channel", err)
		}
	}
}

// Close implements provider.EventChannel. Connections that were rejected and
// wait for the peer to hang up are closed at once.
func (ch *eventChannel) Close() error {
	ids := ch.life.n.Load()
	first, busy := ch.life.end()
	if busy {
		return failBusy("rdma_destroy_event_channel", "event channel", fmt.Sprintf("%d ids", ids))
	}
	if first {
		ch.cancel()
		ch.tasks.Wait()
		ch.wake.close()
		ch.dev.life.drop()
	}
	return nil
}

// hangUp sends last, then FIN, waits until the peer has hung up, too, so that no
// reset overtakes what was sent, and closes the stream. It takes over w and
// returns at once.
func (ch *eventChannel) hangUp(w *wire, last []byte) {
	ch.tasks.Go(func() {
		defer w.close()
		ctx, cancel := context.WithTimeout(ch.ctx, ch.dev.opts.CloseTimeout)
		defer cancel()
		if w.write(ctx, last) != nil || w.conn.CloseWrite() != nil {
			return
		}
		w.drain(ctx)
	})
}
