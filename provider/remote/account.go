package remote

import (
	"context"
	"fmt"
	"math/bits"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// What an entry of a queue, an object and a device take, in bytes: at least what the engine
// allocates.
const (
	objectBytes = 4096
	deviceBytes = 256 << 10 // with its goroutines and descriptors, of which the engine's has eight
	eventBytes  = 1024      // with an error
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
	limit := s.agent.MaxMemory
	if limit == 0 {
		limit = defaultBytes
	}
	s.counting.Lock()
	defer s.counting.Unlock()
	if n > limit || s.held > limit-n {
		return fmt.Errorf("the agent holds %d bytes for this run, and %d more exceed its limit of "+
			"%d: %w", s.held, n, limit, syscall.ENOMEM)
	}
	s.held += n
	return nil
}

func (s *served) refund(n uint64) {
	s.counting.Lock()
	defer s.counting.Unlock()
	s.held -= n
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

// costly is made for an object that takes memory.
func (s *served) costly(device uint32, rank int, c cost,
	create func(h uint32) (any, error)) (uint32, error) {
	bytes, err := s.on(device, c)
	if err != nil {
		return 0, err
	}
	return s.add(device, rank, bytes, create)
}

// resize changes the size of a queue. The old memory and the new exist at the same time.
func (s *served) resize(device, h uint32, c cost, change func() error) error {
	bytes, err := s.on(device, c)
	if err != nil {
		return err
	}
	s.mu.Lock()
	t := s.objects[h]
	s.mu.Unlock()
	if t == nil {
		return os.ErrClosed
	}
	t.sizing.Lock() // so that the last cost is that of the last change
	defer t.sizing.Unlock()
	if err := s.paying(bytes, change); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[h] == t {
		bytes, t.cost = t.cost, bytes
	}
	s.refund(bytes) // what it cost before, or what it costs if it was closed meanwhile
	return nil
}

// remove forgets an object that is closed.
func (s *served) remove(h uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.objects[h]; t != nil {
		s.refund(t.cost)
		delete(s.objects, h)
	}
}

// ending makes a handler that closes an object. The session lets go of it.
func ending[O any](f func(O) error) handler {
	return unlessClosed(on(func(_ context.Context, s *served, t target[O], _ none) (none, error) {
		err := f(t.o)
		if err == nil {
			s.remove(t.h)
		}
		return none{}, err
	}))
}

// unlessClosed makes a handler of Close return nil for an object that is closed.
func unlessClosed(h handler) handler {
	do := h.do
	h.do = func(ctx context.Context, s *served, r *request) (any, error) {
		if s.isClosed(r.On) {
			return none{}, nil
		}
		return do(ctx, s, r)
	}
	return h
}

// isClosed reports whether there was an object of this number, which is closed.
func (s *served) isClosed(h uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return h != 0 && h <= s.last && s.objects[h] == nil
}
