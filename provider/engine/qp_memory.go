package engine

import (
	"fmt"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
)

// Work requests on our own memory bind a window, register a region, or invalidate either. They send
// nothing, and take their turn in the send queue. When such work is done, all earlier posts have
// been handed to the socket or copied. It is done before anything later begins.

const memoryFlags = provider.SendFence | provider.SendSignaled

var (
	errMemoryFlags = fmt.Errorf("a bind, a registration or an invalidation has neither payload nor other flags "+
		"than SendFence and SendSignaled: %w", syscall.EINVAL)
	errNotType1 = fmt.Errorf("the window is of type 2; post a work request with WRBindMW: %w",
		syscall.EINVAL)
)

// checkMemory decides whether wr can be posted, and leaves the operands for addMemory in toPost.
// sq.mu is held.
func (q *qp) checkMemory(wr *provider.SendWR) error {
	if wr.Flags&^memoryFlags != 0 || len(wr.SGList) > 0 || len(wr.Inline) > 0 {
		return errMemoryFlags
	}
	o := q.toPost()
	*o = memory.Work{}
	if wr.Opcode == provider.WRLocalInv {
		return nil // the turn of the work shows what the key names
	}
	return q.peer.Check(wr, o)
}

// toPost returns the place for the operands of the work being posted. sq.mu is held.
func (q *qp) toPost() *memory.Work {
	if q.sq.memory == nil {
		q.sq.memory = &memoryQueue{operands: make([]memory.Work, q.init.MaxSendWR)}
	}
	return &q.sq.memory.posting
}

// BindMW implements provider.QP.
func (q *qp) BindMW(window provider.MW, wrid uint64, flags provider.SendFlags, info provider.MWBindInfo) error {
	const op = "ibv_bind_mw"
	w, ours := window.(*memory.Window)
	if !ours || w == nil || !w.IsOf(q.dev.memory) {
		return failForeign(op, "window")
	}
	waits, err := q.enqueueBind(w, wrid, flags, &info)
	if err != nil {
		q.transmitDeferred() // as in PostSend
		return fail(op, fmt.Sprintf("qp %d, mw %#x", q.qpn, w.RKey()), err)
	}
	switch s := q.stream.Load(); {
	case s == nil:
		q.flushIfError()
	case !waits:
		s.resume()
	}
	return nil
}

// enqueueBind puts the bind into the send queue, and reports whether it is deferred.
func (q *qp) enqueueBind(w *memory.Window, wrid uint64, flags provider.SendFlags,
	info *provider.MWBindInfo) (bool, error) {
	w.Posting.Lock()
	defer w.Posting.Unlock()
	s := &q.sq
	s.mu.Lock()
	defer s.mu.Unlock()
	state := q.getState()
	switch {
	case w.Closed(), q.closed.Load():
		return false, os.ErrClosed
	case w.Type() != provider.MWType1:
		return false, errNotType1
	case flags&^memoryFlags != 0:
		return false, errMemoryFlags
	case state != provider.QPRTS && state != provider.QPErr:
		return false, notConnected(state)
	}
	if err := q.peer.CheckBind(w, info, q.toPost()); err != nil {
		return false, err
	}
	tail := s.tail.Load()
	if s.full(tail) && !s.makeRoom(tail, q.init.MaxSendWR) {
		return false, q.sendQueueFull(tail)
	}
	key := incRKey(w.RKey())
	*s.at(tail) = sendWQE{wrid: wrid, op: provider.WRBindMW, flags: flags, rkey: key}
	s.putMemory(tail, key)
	s.tail.Store(tail + 1)
	if state == provider.QPErr {
		return false, nil
	}
	p := policy.Post{Octets: policy.FPDUCost}
	if (flags|q.signalsAll())&provider.SendSignaled != 0 {
		p.Signaled = 1
	}
	return q.deferPost(p), nil
}

// incRKey does what ibv_inc_rkey does.
func incRKey(key uint32) uint32 { return key&^0xff | (key+1)&0xff }
