package bridge

import (
	"context"
	"sync"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// watchEvents begins, once, to fetch the device's asynchronous events.
func (b *Bridge) watchEvents() {
	b.watch.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		b.mu.Lock()
		b.stopWatch = func() { cancel(); <-ended }
		b.mu.Unlock()
		go func() {
			defer close(ended)
			for {
				e, err := b.vctx.AsyncEvent(ctx)
				switch {
				case ctx.Err() != nil:
					return
				case err == nil:
					b.pass(e)
				case ibverbs.Errno(err) == 0:
					return // the device is closed
				}
			}
		}()
	})
}

// pass gives an event to the program if it has the object.
func (b *Bridge) pass(e ibverbs.AsyncEvent) {
	switch {
	case e.QP != nil:
		if q, ok := e.QP.Cookie().(*queuePair); ok {
			q.file.raise(e.Type, q.user, &q.asyncFired)
		}
	case e.CQ != nil:
		if c, ok := e.CQ.Cookie().(*completionQueue); ok {
			c.file.raise(e.Type, c.user, &c.asyncFired)
		}
	}
	// recvRing raises the limit events of SRQs; siw has no events of ports while a device exists.
}

// raise sends an event for the object whose user handle is user, and counts it in fired.
func (f *uverbsFile) raise(t ibverbs.AsyncEventType, user uint64, fired *eventCount) {
	f.mu.Lock()
	ch := f.async
	f.mu.Unlock()
	fired.send(ch, abi.Append(nil, &abi.AsyncEvent{Element: user, EventType: uint32(t)}))
}

// eventCount counts the events of an object. No event is sent for a destroyed object, because the
// program may have reused its memory. When the object is destroyed, libibverbs waits until the
// program has acknowledged as many events as were sent.
type eventCount struct {
	mu    sync.Mutex
	sent  uint32
	ended bool
}

// send sends an event, unless the object is destroyed.
func (c *eventCount) send(ch *channel, event []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.sent++
	ch.send(event)
}

// end returns the number of events sent. No more are sent after it.
func (c *eventCount) end() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	return c.sent
}

// withdrawAsync removes the unread events of the object whose user handle is user.
func (f *uverbsFile) withdrawAsync(user uint64) uint32 {
	f.mu.Lock()
	ch := f.async
	f.mu.Unlock()
	return uint32(ch.withdraw(func(event []byte) bool {
		var e abi.AsyncEvent
		_, err := abi.Decode(event, &e)
		return err == nil && e.Element == user
	}))
}
