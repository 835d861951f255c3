package remote

import (
	"context"
	"fmt"
	"math/bits"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// What an entry of a queue and an object take, in bytes: at least what the engine allocates.
const (
	objectBytes = 4096
	wcBytes     = 48
	sendBytes   = 160 // with the operands of an atomic operation, and of work on our own memory
	recvBytes   = 32
	sgeBytes    = 16
)

// entries returns how many entries a queue has for which n were asked. Providers refuse negative
// and huge numbers.
func entries(n int) uint64 {
	n = min(max(n, 1), 1<<30)
	return 1 << bits.Len(uint(n-1))
}

// A cost is how many bytes a queue takes on a device. One that no queue of the device can have
// costs no more than the object, because the device refuses it, with an error that says why.
type cost func(a *provider.DeviceAttr) uint64

func cqCost(cqe int) cost {
	return func(a *provider.DeviceAttr) uint64 {
		if cqe > a.MaxCQE {
			return objectBytes
		}
		return objectBytes + entries(cqe)*wcBytes
	}
}

func recvBytesOf(wrs, sges int) uint64 { return entries(wrs) * (recvBytes + entries(sges)*sgeBytes) }

func srqCost(q provider.SRQAttr) cost {
	return func(a *provider.DeviceAttr) uint64 {
		if q.MaxWR > a.MaxSRQWR || q.MaxSGE > a.MaxSGE {
			return objectBytes
		}
		return objectBytes + recvBytesOf(q.MaxWR, q.MaxSGE)
	}
}

func qpCost(c provider.QPCap) cost {
	return func(a *provider.DeviceAttr) uint64 {
		if max(c.MaxSendWR, c.MaxRecvWR) > a.MaxQPWR || max(c.MaxSendSGE, c.MaxRecvSGE) > a.MaxSGE ||
			c.MaxInlineData > a.MaxInline {
			return objectBytes
		}
		send := entries(c.MaxSendWR) * (sendBytes + entries(c.MaxSendSGE)*sgeBytes + entries(c.MaxInlineData))
		return objectBytes + send + recvBytesOf(c.MaxRecvWR, c.MaxRecvSGE)
	}
}

// on returns what c is on a device.
func (s *served) on(device uint32, c cost) (uint64, error) {
	d, err := find[provider.Device](s, "ibv_query_device", device)
	if err != nil {
		return 0, err
	}
	attr, err := d.o.Query()
	if err != nil {
		return 0, err
	}
	return c(&attr), nil
}

// charge counts bytes that a client has the agent hold, unless they exceed what it may have.
func (s *served) charge(n uint64) error {
	s.mem.Lock()
	defer s.mem.Unlock()
	return s.chargeLocked(n)
}

func (s *served) chargeLocked(n uint64) error {
	limit := s.agent.MaxMemory
	if limit == 0 {
		limit = defaultBytes
	}
	if n > limit || s.held > limit-n {
		return fmt.Errorf("the agent holds %d bytes for this run, and %d more exceed its limit of "+
			"%d: %w", s.held, n, limit, syscall.ENOMEM)
	}
	s.held += n
	return nil
}

func (s *served) refund(n uint64) {
	s.mem.Lock()
	defer s.mem.Unlock()
	s.held -= n
}

// costly is made for an object that takes memory.
func (s *served) costly(device uint32, rank int, c cost,
	create func(h uint32) (any, error)) (h uint32, err error) {
	bytes, err := s.on(device, c)
	if err != nil {
		return 0, err
	}
	err = s.paying(bytes, func() error {
		h, err = s.add(device, rank, create)
		return err
	})
	if err != nil {
		return 0, err
	}
	s.sizing.Lock()
	defer s.sizing.Unlock()
	s.setCost(h, bytes)
	return h, nil
}

// paying charges for what f makes, and gives the charge back if f fails or panics.
func (s *served) paying(cost uint64, f func() error) error {
	if err := s.charge(cost); err != nil {
		return err
	}
	made := false
	defer func() {
		if !made {
			s.refund(cost)
		}
	}()
	err := f()
	made = err == nil
	return err
}

// setCost replaces what an object costs, and gives back what it cost before. s.sizing is held. An
// object that was closed meanwhile, with its device, costs nothing.
func (s *served) setCost(h uint32, cost uint64) {
	s.mu.Lock()
	old := cost
	if t := s.objects[h]; t != nil && t.object != nil {
		old, t.cost = t.cost, cost
	}
	s.mu.Unlock()
	s.refund(old)
}

// resize changes the size of a queue. The old memory and the new exist at the same time.
func (s *served) resize(device, h uint32, c cost, change func() error) error {
	bytes, err := s.on(device, c)
	if err != nil {
		return err
	}
	s.sizing.Lock() // so that the last cost is that of the last change
	defer s.sizing.Unlock()
	if err := s.paying(bytes, change); err != nil {
		return err
	}
	s.setCost(h, bytes)
	return nil
}

// ending makes a handler that closes an object with a cost, unless it is closed. The session lets
// go of the object, which may hold its memory for as long as it is referred to.
func ending[O any](f func(O) error) handler {
	return handler{do: func(_ context.Context, s *served, r *request) (any, error) {
		if s.isClosed(r.On) {
			return none{}, nil
		}
		t, err := find[O](s, r.Verb, r.On)
		if err == nil {
			err = f(t.o)
		}
		if err != nil {
			return nil, err
		}
		s.sizing.Lock()
		defer s.sizing.Unlock()
		s.setCost(t.h, 0)
		s.mu.Lock()
		defer s.mu.Unlock()
		if x := s.objects[t.h]; x != nil {
			x.object = nil
		}
		return none{}, nil
	}}
}

// isClosed reports whether there is an object of this number whose device is open and which is not.
func (s *served) isClosed(h uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.objects[h]
	return t != nil && t.object == nil
}
