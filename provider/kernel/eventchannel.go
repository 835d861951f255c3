//go:build cgo && linux && !nokernel

package kernel

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/govs-rdma/govs/cgo/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

type eventChannel struct {
	object
	dev    *device
	c      *rdmacm.EventChannel
	source *source
	life   context.Context
	endJob context.CancelFunc
	serial uint64 // two channels are locked in this order

	// mu is held while librdmacm takes an event off the channel. librdmacm then writes the
	// addresses and the device of the event's id without a lock of its own, and for a REJECTED
	// event it modifies the id's QP.
	mu sync.Mutex
}

var channelSerial atomic.Uint64

func (d *device) CreateEventChannel() (provider.EventChannel, error) {
	if err := d.hold(); err != nil {
		return nil, opError("rdma_create_event_channel", d.name, err)
	}
	c, err := rdmacm.CreateEventChannel()
	if err != nil {
		d.release()
		return nil, opError("rdma_create_event_channel", d.name, noSupport(err))
	}
	src, err := newSource(c.FD(), "rdma_cm event channel")
	if err != nil {
		c.Destroy()
		d.release()
		return nil, opError("rdma_create_event_channel", d.name, err)
	}
	ch := &eventChannel{dev: d, c: c, source: src, serial: channelSerial.Add(1)}
	ch.life, ch.endJob = context.WithCancel(context.Background())
	return ch, nil
}

func (ch *eventChannel) Close() error {
	return opError("rdma_destroy_event_channel", "", ch.close(func() error {
		ch.endJob()
		ch.source.close()
		ch.c.Destroy()
		ch.dev.release()
		return nil
	}))
}

func (ch *eventChannel) Next(ctx context.Context) (provider.CMEvent, error) {
	var found provider.CMEvent
	err := ch.source.wait(ctx, ch.life, nil, func() (bool, error) {
		for {
			ev, ok, err := ch.take()
			switch {
			case interrupted(err):
				continue
			case again(err):
				return false, nil
			case err != nil:
				return false, err
			case ok:
				found = ev
				return true, nil
			}
		}
	})
	switch {
	case err == nil:
		if i, ok := found.ID.(*id); ok {
			if found.Type == cmConnectResponse {
				i.respond(&found)
			}
			ch.dev.explain(&found)
			i.settle(found.Type)
		}
		return found, nil
	case err == ctx.Err():
		return provider.CMEvent{}, err
	}
	return provider.CMEvent{}, opError("rdma_get_cm_event", "", err)
}

// take takes one event off the channel, or returns EAGAIN if there is none. It returns false for an
// event of an id that is being closed.
//
// It acknowledges the event before it returns, because rdma_destroy_id waits for that. The objects
// that the event names cannot be destroyed before.
func (ch *eventChannel) take() (provider.CMEvent, bool, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ev, err := ch.c.GetEvent()
	if err != nil {
		return provider.CMEvent{}, false, err
	}
	out := provider.CMEvent{
		Type:   provider.CMEventType(ev.Type),
		Status: ev.Status,
		Param: provider.ConnParam{
			PrivateData:        ev.Param.PrivateData,
			ResponderResources: int(ev.Param.ResponderResources),
			InitiatorDepth:     int(ev.Param.InitiatorDepth),
		},
	}
	about, ok := ids.get(ev.Token)
	orphan := ev.ID // a new id that no event will report
	switch {
	case out.Type != provider.CMConnectRequest:
		orphan = nil
		if ok {
			out.ID = about
		}
		if ok {
			about.note(out.Type)
		}
	case ok:
		if child := newID(ch, ev.ID, about.Cookie()); child != nil {
			out.ID, out.ListenID, orphan = child, about, nil
		}
	}
	err = ev.Ack()
	if orphan != nil {
		_ = orphan.Destroy() // refuses the connection; nobody is left to report an error to
	}
	return out, out.ID != nil && err == nil, err
}
