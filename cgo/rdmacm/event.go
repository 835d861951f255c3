//go:build cgo && linux && !nokernel

package rdmacm

/*
#include "shim.h"
*/
import "C"

// CreateEventChannel opens a channel for events. It returns ENODEV if there is no RDMA device.
//
// Implements: struct rdma_event_channel *rdma_create_event_channel(void);
func CreateEventChannel() (*EventChannel, error) {
	ch, err := C.rdma_create_event_channel()
	if ch == nil {
		return nil, errnoSet(err)
	}
	return (*EventChannel)(ch), nil
}

// Destroy closes the channel. Its ids must have been destroyed and its events
// acknowledged.
//
// Implements: void rdma_destroy_event_channel(struct rdma_event_channel *channel);
func (ch *EventChannel) Destroy() { C.rdma_destroy_event_channel(ch.c()) }

// FD returns the channel's file descriptor. It is readable while an event waits.
func (ch *EventChannel) FD() int { return int(ch.fd) }

// Event is a copy of struct rdma_cm_event. The id and the listener are librdmacm's, valid as any id
// is; the rest belongs to the Event.
type Event struct {
	Type     uint32 // enum rdma_cm_event_type
	Status   int
	ID       *ID
	ListenID *ID     // nil except with CONNECT_REQUEST
	Token    uintptr // the context of ID; for a CONNECT_REQUEST its listener's
	Param    ConnParam

	event *C.struct_rdma_cm_event
}

// GetEvent reads an event from the channel and copies all of it. It returns EAGAIN if there is none
// and the descriptor is non-blocking. Until the event is acknowledged, destroying its id waits.
//
// For a REJECTED event librdmacm moves the id's QP to the error state before it returns, so the QP
// must not be destroyed at the same time.
//
// Implements: int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event);
func (ch *EventChannel) GetEvent() (*Event, error) {
	var c C.struct_govs_cm_event
	if rc, err := C.govs_get_cm_event(ch.c(), &c); rc != 0 {
		return nil, errnoSet(err)
	}
	ev := &Event{
		Type:     uint32(c._type),
		Status:   int(c.status),
		ID:       (*ID)(c.id),
		ListenID: (*ID)(c.listen_id),
		Token:    uintptr(c.token),
		Param:    paramFrom(&c.param),
		event:    c.event,
	}
	if n := int(c.private_data_len); n > 0 {
		ev.Param.PrivateData = make([]byte, n)
		for i := range ev.Param.PrivateData {
			ev.Param.PrivateData[i] = byte(c.private_data[i])
		}
	}
	return ev, nil
}

// Ack acknowledges the event, once.
//
// Implements: int rdma_ack_cm_event(struct rdma_cm_event *event);
func (ev *Event) Ack() error {
	rc, err := C.rdma_ack_cm_event(ev.event)
	ev.event = nil
	return result(rc, err)
}
