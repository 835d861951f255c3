package engine

import (
	"context"
	"fmt"
	"sync"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// eventChannel is an event channel: a queue of events, as long as the ids on it
// have anything to say.
//
// Most connections have one of their own, and nothing to say for most of their
// life. So it holds memory only for events that wait and for those who wait for
// them.
type eventChannel struct {
	dev  *device
	life life // ids

	mu      sched.Mutex[locks.EventChannel]
	events  []provider.CMEvent
	woken   chan struct{} // closed by the next event, or Close; nil: nobody waits
	closing *hangUps      // nil: none so far
}

// hangUps are closing connections, which outlive their ids: a reject must reach
// the peer before the socket goes. They end with the channel at the latest.
type hangUps struct {
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

// newEventChannel makes an event channel of d, which has been held for it:
// Close drops that.
func newEventChannel(d *device) provider.EventChannel {
	return &eventChannel{dev: d}
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
	defer ch.mu.Unlock()
	ch.events = append(ch.events, e)
	ch.wake()
}

// wake has all who wait look again. mu is held.
func (ch *eventChannel) wake() {
	if ch.woken != nil {
		close(ch.woken)
		ch.woken = nil
	}
}

// pop takes the oldest event. Without one it returns what is closed when it is
// worth looking again.
func (ch *eventChannel) pop() (e provider.CMEvent, ok bool, again <-chan struct{}) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	switch {
	case ch.life.closed():
		return e, false, closedChan
	case len(ch.events) == 0:
		if ch.woken == nil {
			ch.woken = make(chan struct{})
		}
		return e, false, ch.woken
	}
	e = ch.events[0]
	ch.events[0] = provider.CMEvent{}
	if ch.events = ch.events[1:]; len(ch.events) == 0 {
		ch.events = nil
	}
	return e, true, nil
}

// closedChan is always worth looking again.
var closedChan = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

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

// Close implements provider.EventChannel. Connections that were rejected and
// wait for the peer to hang up are closed at once.
func (ch *eventChannel) Close() error {
	ids := ch.life.n.Load()
	first, busy := ch.life.end()
	if busy {
		return failBusy("rdma_destroy_event_channel", "event channel", fmt.Sprintf("%d ids", ids))
	}
	if first {
		ch.mu.Lock()
		ch.wake()
		closing := ch.closing
		ch.mu.Unlock()
		if closing != nil {
			closing.cancel()
			closing.tasks.Wait()
		}
		ch.dev.life.drop()
	}
	return nil
}

// hangUp sends last, then FIN, waits until the peer has hung up, too, so that no
// reset overtakes what was sent, and closes the stream. It takes over w and
// returns at once.
func (ch *eventChannel) hangUp(w *wire, last []byte) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closing == nil {
		ch.closing = new(hangUps)
		ch.closing.ctx, ch.closing.cancel = context.WithCancel(context.Background())
	}
	all := ch.closing.ctx
	ch.closing.tasks.Go(func() {
		defer w.close()
		ctx, cancel := context.WithTimeout(all, ch.dev.opts.CloseTimeout)
		defer cancel()
		if w.write(ctx, last) != nil || w.conn.CloseWrite() != nil {
			return
		}
		w.drain(ctx)
	})
}
