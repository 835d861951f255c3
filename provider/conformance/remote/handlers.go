package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/govs-rdma/govs/provider"
)

// handler performs one kind of request.
type handler struct {
	do    func(ctx context.Context, s *served, r *request) (any, error)
	moves bool // programs read memory after it
}

// target is the object of a request.
type target[O any] struct {
	o      O
	h      uint32
	device uint32
}

// on makes a handler for a verb of objects of type O.
func on[O, A, R any](f func(ctx context.Context, s *served, t target[O], args A) (R, error)) handler {
	return handler{do: func(ctx context.Context, s *served, r *request) (any, error) {
		var args A
		if err := json.Unmarshal(r.Args, &args); err != nil {
			return nil, fmt.Errorf("%s: %w: %w", r.Verb, errFrame, err)
		}
		t, err := find[O](s, r.Verb, r.On)
		if err != nil {
			return nil, err
		}
		return f(ctx, s, t, args)
	}}
}

// alone makes a handler for a verb without an object.
func alone[A, R any](f func(s *served, args A) (R, error)) handler {
	return handler{do: func(_ context.Context, s *served, r *request) (any, error) {
		var args A
		if err := json.Unmarshal(r.Args, &args); err != nil {
			return nil, fmt.Errorf("%s: %w: %w", r.Verb, errFrame, err)
		}
		return f(s, args)
	}}
}

// moving marks a verb after which programs read memory.
func (h handler) moving() handler {
	h.moves = true
	return h
}

// find returns an object by its number. If there is none, the object was closed, alone or with its
// device.
func find[O any](s *served, op string, h uint32) (target[O], error) {
	s.mu.Lock()
	var object any
	t := s.objects[h]
	if t != nil {
		object = t.object
	}
	s.mu.Unlock()
	if object == nil {
		return target[O]{}, &provider.Error{Op: op, Object: fmt.Sprintf("object %d", h),
			Err: os.ErrClosed}
	}
	o, ok := object.(O)
	if !ok {
		return target[O]{}, fmt.Errorf("%s: %w: object %d is a %T", op, errFrame, h, object)
	}
	return target[O]{o, h, t.device}, nil
}

// also returns an object that is an argument; number 0 stands for nil.
func also[O any](s *served, op string, h uint32) (o O, err error) {
	if h == 0 {
		return o, nil
	}
	t, err := find[O](s, op, h)
	return t.o, err
}

// simple makes a handler for a method without arguments that returns only an error.
func simple[O any](f func(o O) error) handler {
	return on(func(_ context.Context, _ *served, t target[O], _ none) (none, error) {
		return none{}, f(t.o)
	})
}

// given makes a handler for a method with arguments that returns only an error.
func given[O, A any](f func(o O, a A) error) handler {
	return on(func(_ context.Context, _ *served, t target[O], a A) (none, error) {
		return none{}, f(t.o, a)
	})
}

// asked makes a handler for a query.
func asked[O, R any](f func(o O) (R, error)) handler {
	return on(func(_ context.Context, _ *served, t target[O], _ none) (R, error) { return f(t.o) })
}

// numberOf returns the number of an object of this package, which is its cookie.
func numberOf(o interface{ Cookie() any }) uint32 {
	h, _ := o.Cookie().(uint32)
	return h
}

// verbs maps the names of requests to their handlers.
var verbs map[string]handler

func init() {
	verbs = make(map[string]handler)
	for _, group := range []map[string]handler{sessionVerbs, deviceVerbs, memoryVerbs, queueVerbs,
		connectionVerbs} {
		for name, h := range group {
			verbs[name] = h
		}
	}
}

var sessionVerbs = map[string]handler{
	"ibv_get_device_list": alone(func(s *served, a openArgs) ([]provider.DeviceInfo, error) {
		p, err := s.agent.Open(a.Provider, a.Options)
		if err != nil {
			return nil, err
		}
		return p.Devices()
	}),
	"ibv_open_device": alone(openDevice),
	verbClock:         alone(func(*served, none) (clockReading, error) { return clockReading{time.Now()}, nil }),
	verbCapture: alone(func(s *served, a captureArgs) (none, error) {
		if s.agent.Capture == nil {
			return none{}, &provider.UnsupportedError{Feature: "captures at the agent",
				Reason: "the agent takes none"}
		}
		var old func() ([]byte, error)
		err := s.paying(captureBytes, func() error {
			stop, err := s.agent.Capture(a.Port)
			if err != nil {
				return err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			old, s.recordings[a.Port] = s.recordings[a.Port], stop
			return nil
		})
		if old != nil {
			_, _ = old()
			s.refund(captureBytes)
		}
		return none{}, err
	}),
	verbStop: alone(func(s *served, a captureArgs) (rawResult, error) {
		s.mu.Lock()
		stop := s.recordings[a.Port]
		delete(s.recordings, a.Port)
		s.mu.Unlock()
		if stop == nil {
			return nil, fmt.Errorf("the agent records nothing of port %d", a.Port)
		}
		file, err := stop()
		s.refund(captureBytes)
		if len(file) > maxBody {
			err = fmt.Errorf("the capture has %d bytes, more than fit into a message", len(file))
		}
		if err == nil {
			err = s.charge(uint64(len(file)))
		}
		if err != nil {
			return nil, err
		}
		return file, nil
	}),
}

func openDevice(s *served, a openArgs) (opened, error) {
	p, err := s.agent.Open(a.Provider, a.Options)
	if err != nil {
		return opened{}, err
	}
	var d provider.Device
	h, err := s.add(0, rankDevice, deviceBytes, func(uint32) (any, error) {
		d, err = p.Open(a.Device)
		return d, err
	})
	if err != nil {
		return opened{}, err
	}
	if !s.occupy(a.Slot, h) {
		err := d.Close()
		if err == nil { // otherwise the end of the session closes it and its objects
			s.drop(h)
		}
		return opened{}, errors.Join(fmt.Errorf("%w: device slot %d", errFrame, a.Slot), err)
	}
	return opened{h, d.Name(), d.Transport()}, nil
}

var deviceVerbs = map[string]handler{
	"ibv_query_device": asked(provider.Device.Query),
	"ibv_query_port": on(func(_ context.Context, _ *served, t target[provider.Device],
		a portArgs) (provider.PortAttr, error) {
		return t.o.QueryPort(a.Port)
	}),
	"ibv_query_gid": on(func(_ context.Context, _ *served, t target[provider.Device],
		a portArgs) (provider.GID, error) {
		return t.o.QueryGID(a.Port, a.Index)
	}),
	"ibv_query_gid_table": asked(provider.Device.QueryGIDTable),
	"ibv_query_pkey": on(func(_ context.Context, _ *served, t target[provider.Device],
		a portArgs) (uint16, error) {
		return t.o.QueryPkey(a.Port, a.Index)
	}),
	"ibv_alloc_pd": on(func(_ context.Context, s *served, t target[provider.Device],
		_ none) (made, error) {
		return s.made(t.device, rankPD, func(uint32) (any, error) { return t.o.AllocPD() })
	}),
	"ibv_dealloc_pd": ending(provider.PD.Close),
	"ibv_create_comp_channel": on(func(_ context.Context, s *served, t target[provider.Device],
		_ none) (made, error) {
		return s.made(t.device, rankCompChannel, func(uint32) (any, error) {
			return t.o.CreateCompChannel()
		})
	}),
	"ibv_destroy_comp_channel": ending(provider.CompChannel.Close),
	"rdma_create_event_channel": on(func(_ context.Context, s *served, t target[provider.Device],
		_ none) (made, error) {
		return s.made(t.device, rankEventChannel, func(uint32) (any, error) {
			return t.o.CreateEventChannel()
		})
	}),
	"rdma_destroy_event_channel": ending(provider.EventChannel.Close),
	"ibv_get_async_event": on(func(ctx context.Context, _ *served, t target[provider.Device],
		_ none) (asyncEvent, error) {
		e, err := t.o.AsyncEvent(ctx)
		out := asyncEvent{Type: e.Type, Port: e.Port}
		if e.QP != nil {
			out.QP = numberOf(e.QP)
		}
		if e.CQ != nil {
			out.CQ = numberOf(e.CQ)
		}
		if e.SRQ != nil {
			out.SRQ = numberOf(e.SRQ)
		}
		return out, err
	}).moving(),
	verbPull: on(func(_ context.Context, _ *served, _ target[provider.Device],
		from position) (position, error) {
		return from, nil // answer adds the changes
	}).moving(),
	verbIntact: on(func(_ context.Context, s *served, t target[provider.Device],
		_ none) (none, error) {
		return none{}, s.intact(s.slotOf(t.h))
	}),
	"ibv_close_device": unlessClosed(on(func(_ context.Context, s *served,
		t target[provider.Device], _ none) (none, error) {
		if err := t.o.Close(); err != nil {
			return none{}, err
		}
		s.drop(t.h)
		return none{}, nil
	})),
}

// made registers an object for a verb that returns only its number.
func (s *served) made(device uint32, rank int, create func(h uint32) (any, error)) (made, error) {
	h, err := s.add(device, rank, objectBytes, create)
	return made{Handle: h}, err
}
