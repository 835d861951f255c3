package remote

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// The memory of a queue's entry, an object and a device, in bytes: at least what the engine
// allocates.
const (
	objectBytes = 4096
	deviceBytes = 256 << 10 // with its goroutines and descriptors; the engine's device has eight
	eventBytes  = 1024      // with an error
	wcBytes     = 48
	sendBytes   = 160 // with the operands of an atomic operation, and of local work
	recvBytes   = 32
	sgeBytes    = 16
)

// entries returns the number of entries of a queue for which n were requested. Providers refuse
// negative and huge numbers.
func entries(n int) uint64 {
	n = min(max(n, 1), 1<<30)
	return 1 << bits.Len(uint(n-1))
}

// A cost returns the memory of a queue on a device, in bytes. A queue that exceeds the device's
// limits costs only as much as the object, because the device refuses it with an error that says
// why.
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

// on returns the cost c on a device.
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

// charge adds n bytes to what the agent holds for a client, or returns an error if that would
// exceed the client's limit.
func (s *served) charge(n uint64) error {
	s.counting.Lock()
	defer s.counting.Unlock()
	if n > s.left() {
		return fmt.Errorf("the agent holds %d bytes for runs, and %d more exceed its limit of %d: %w",
			s.earlier.Load()+s.held, n, s.limit(), syscall.ENOMEM)
	}
	s.held += n
	return nil
}

// chargeSome charges for as many of n entries of some bytes each as the client's limit permits, and
// returns their number.
func (s *served) chargeSome(n int, each uint64) int {
	s.counting.Lock()
	defer s.counting.Unlock()
	n = int(min(uint64(n), s.left()/each))
	s.held += uint64(n) * each
	return n
}

// limit returns the client's limit, in bytes.
func (s *served) limit() uint64 { return cmp.Or(s.agent.MaxMemory, defaultBytes) }

// left returns how many bytes the client's limit leaves. counting is held.
func (s *served) left() uint64 {
	limit := s.limit()
	return limit - min(limit, s.earlier.Load()+s.held)
}

// holds returns what the agent holds for a client, in bytes.
func (s *served) holds() uint64 {
	s.counting.Lock()
	defer s.counting.Unlock()
	return s.held
}

func (s *served) refund(n uint64) {
	s.counting.Lock()
	defer s.counting.Unlock()
	s.held -= n
}

// paying charges cost for what f makes, and refunds it if f fails or panics.
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

// costly makes a handler's object and charges for its memory.
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
	t.sizing.Lock() // so the last recorded cost belongs to the last change
	defer t.sizing.Unlock()
	if err := s.paying(bytes, change); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[h] == t {
		bytes, t.cost = t.cost, bytes
	}
	s.refund(bytes) // the previous cost, or the current one if the queue was closed during the change
	return nil
}

// remove removes a closed object.
func (s *served) remove(h uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.objects[h]; t != nil {
		s.refund(t.cost)
		delete(s.objects, h)
	}
}

// ending makes a handler that closes an object and removes it from the session.
func ending[O any](f func(O) error) handler {
	return unlessClosed(on(func(_ context.Context, s *served, t target[O], _ none) (none, error) {
		err := f(t.o)
		if err == nil {
			s.remove(t.h)
		}
		return none{}, err
	}))
}

// unlessClosed makes a handler of Close return nil for an object that is already closed.
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

// isClosed reports whether an object had this number and has been closed.
func (s *served) isClosed(h uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return h != 0 && h <= s.last && s.objects[h] == nil
}
