package rdmacm

import (
	"context"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// EventChannel carries the events of the ids that were made on it or migrated to it (struct
// rdma_event_channel).
type EventChannel struct {
	obj  object.Object
	vctx *ibverbs.Context
	p    provider.EventChannel

	// Held by GetEvent. An event that makes an id must be processed before the next event is read,
	// which may belong to that id.
	turn turn
}

// CreateEventChannel makes an event channel (rdma_create_event_channel). Unlike in C, the channel
// and its ids belong to a device: an id that is later bound to another device cannot make a QP.
func CreateEventChannel(vctx *ibverbs.Context) (*EventChannel, error) {
	return createEventChannel(vctx, object.KindEventChannel)
}

// createEventChannel makes an event channel. kind is the kind of object that it belongs to.
func createEventChannel(vctx *ibverbs.Context, kind object.Kind) (*EventChannel, error) {
	const op = "rdma_create_event_channel"
	if vctx == nil {
		return nil, errNil(op, "context")
	}
	dev, owner := object.Device(vctx)
	if dev == nil {
		return nil, errNil(op, "context")
	}
	ch := &EventChannel{vctx: vctx}
	ch.obj.Describe(kind, dev.Name())
	if err := ch.obj.Open(op, owner); err != nil {
		return nil, err
	}
	var err error
	if ch.p, err = dev.CreateEventChannel(); err != nil {
		ch.obj.Abandon()
		return nil, err
	}
	return ch, nil
}

func (ch *EventChannel) ok(op string) error {
	if ch == nil || ch.p == nil {
		return errNil(op, "event channel")
	}
	return ch.obj.Check(op)
}

// CreateID makes an id in the port space RDMA_PS_TCP (rdma_create_id).
func (ch *EventChannel) CreateID(cookie any) (*ID, error) {
	const op = "rdma_create_id"
	if err := ch.ok(op); err != nil {
		return nil, err
	}
	id, err := newID(op, ch, cookie)
	if err != nil {
		return nil, err
	}
	if id.p, err = ch.p.CreateID(id); err != nil {
		id.obj.Abandon()
		return nil, err
	}
	id.obj.List(id)
	return id, nil
}

// GetEvent waits for the next event (rdma_get_cm_event). It acknowledges the event before it
// returns (rdma_ack_cm_event), so an event never delays a Close. Each event goes to one caller.
//
// A ConnectRequest has a new id, which the caller has to close. When ctx ends, the error is an
// [*ibverbs.Error] that wraps ctx.Err().
func (ch *EventChannel) GetEvent(ctx context.Context) (*Event, error) {
	ev, err := ch.next(ctx)
	if err != nil {
		return nil, object.GaveUp(ctx, opGetEvent, ch.name(), err, "there was an event")
	}
	return ev, nil
}

const opGetEvent = "rdma_get_cm_event"

func (ch *EventChannel) name() string {
	if ch == nil {
		return ""
	}
	return ch.obj.Name()
}

// next implements GetEvent. When ctx ends, its error is ctx.Err() itself.
func (ch *EventChannel) next(ctx context.Context) (*Event, error) {
	if err := ch.ok(opGetEvent); err != nil {
		return nil, err
	}
	if err := ch.turn.take(ctx); err != nil {
		return nil, err
	}
	defer ch.turn.give()
	e, err := ch.p.Next(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	ev := &Event{
		Type: e.Type, Status: e.Status, Cause: e.Cause,
		PrivateData:        e.Param.PrivateData,
		ResponderResources: e.Param.ResponderResources,
		InitiatorDepth:     e.Param.InitiatorDepth,
		RDMAC:              e.RDMAC,
	}
	if e.Type != provider.CMConnectRequest {
		ev.ID = idOf(e.ID)
		return ev, nil
	}
	ev.ListenID = idOf(e.ListenID)
	if ev.ID, err = adoptID(opGetEvent, ch, ev.ListenID, e.ID); err != nil {
		return nil, err
	}
	return ev, nil
}

// Context returns the context that the channel was made on.
func (ch *EventChannel) Context() *ibverbs.Context {
	if ch == nil {
		return nil
	}
	return ch.vctx
}

// Close frees the channel (rdma_destroy_event_channel). Waiting calls of GetEvent return
// os.ErrClosed. While the channel has ids, Close returns EBUSY and says so.
func (ch *EventChannel) Close() error {
	if ch == nil || ch.p == nil {
		return nil
	}
	return ch.obj.Close(ch.p.Close)
}

// turn is a lock whose wait a context can end. It makes a channel only while a goroutine waits, to
// save memory: every connection has a turn.
type turn struct {
	mu    sync.Mutex
	taken bool
	free  chan struct{} // closed by the next give; nil if no goroutine waits
}

// take waits for the turn, or returns the error of ctx.
func (t *turn) take(ctx context.Context) error {
	for {
		t.mu.Lock()
		if !t.taken {
			t.taken = true
			t.mu.Unlock()
			return nil
		}
		if t.free == nil {
			t.free = make(chan struct{})
		}
		free := t.free
		t.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// give releases the lock and makes waiting calls try again.
func (t *turn) give() {
	t.mu.Lock()
	t.taken = false
	if t.free != nil {
		close(t.free)
		t.free = nil
	}
	t.mu.Unlock()
}

func errNil(op, what string) error {
	return object.Errorf(op, "", syscall.EINVAL, "nil %s; check the error of the call that makes it", what)
}
