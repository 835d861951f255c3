//go:build cgo && linux && !nokernel

package ibv

/*
#include "shim.h"
*/
import "C"

// AsyncObject is the kind of object in an AsyncEvent.
type AsyncObject int

// Kinds of objects.
const (
	AsyncPort AsyncObject = iota
	AsyncCQ
	AsyncQP
	AsyncSRQ
	AsyncWQ
)

// AsyncEvent is struct ibv_async_event. Destroying the object waits until the event is
// acknowledged.
type AsyncEvent struct {
	Type   uint32 // enum ibv_event_type
	Object AsyncObject
	Token  uintptr // the object's context; the port's number for AsyncPort
	raw    C.struct_ibv_async_event
}

// GetAsyncEvent reads an event from the device's descriptor. It returns EAGAIN if there is none and
// the descriptor is non-blocking.
//
// Implements: int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event);
func (c *Context) GetAsyncEvent() (AsyncEvent, error) {
	var ev AsyncEvent
	if rc, err := C.ibv_get_async_event(c.c(), &ev.raw); rc != 0 {
		return AsyncEvent{}, errnoSet(err)
	}
	var kind C.int
	ev.Token = uintptr(C.govs_async_token(&ev.raw, &kind))
	ev.Type, ev.Object = uint32(ev.raw.event_type), AsyncObject(kind)
	return ev, nil
}

// Ack acknowledges the event, once.
//
// Implements: void ibv_ack_async_event(struct ibv_async_event *event);
func (ev *AsyncEvent) Ack() { C.ibv_ack_async_event(&ev.raw) }
