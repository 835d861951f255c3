package engine

import (
	"fmt"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Work requests on our own memory: binding a window, registering a region, invalidating
// either. They send nothing, and take their turn in the send queue: what was
// posted before them has been handed to the socket, or was copied, when they are done, and they
// are done before anything that was posted after them begins.

// opRegMR stands for provider.WRRegMR in the send queue, where opcodes are below 32.
const opRegMR provider.WROpcode = 31

const memoryFlags = provider.SendFence | provider.SendSignaled

var (
	errMemoryFlags  = fmt.Errorf("work on our own memory has neither payload nor flags beside the fence and being signalled: %w", syscall.EINVAL)
	errNoBind       = fmt.Errorf("a bind without MWBindInfo: %w", syscall.EINVAL)
	errNoWindow     = fmt.Errorf("the key names no window of type 2: %w", syscall.EINVAL)
	errNotType1     = fmt.Errorf("the window is of type 2: post a work request with WRBindMW: %w", syscall.EINVAL)
	errNoFastReg    = fmt.Errorf("the key names no region of AllocFastRegMR: %w", syscall.EINVAL)
	errOtherPD      = fmt.Errorf("the window, the region and the queue pair are not of one protection domain: %w", syscall.EPERM)
	errWindowRights = fmt.Errorf("rights that a window can't have: %w", syscall.EINVAL)
	errBindNothing  = fmt.Errorf("a bind of no region, but with an address or a length: %w", syscall.EINVAL)
	errBindZero     = fmt.Errorf("a window of type 2 is not unbound by a length of zero, but by invalidation: %w", syscall.EINVAL)
	errSameKey      = fmt.Errorf("the key's lowest octet is that of the old key: a peer that has kept that one would be back in: %w", syscall.EINVAL)
	errNotMapped    = fmt.Errorf("no memory was mapped for the registration: %w", syscall.EINVAL)
	errRegRights    = fmt.Errorf("rights that a region can't have, or remote writing without local writing: %w", syscall.EINVAL)
	errNotWritable  = fmt.Errorf("the memory may not be written, and the rights ask for writing: %w", syscall.EFAULT)
)

// checkMemory decides whether wr can be posted, and leaves what addMemory needs where
// toPost finds it. sq.mu is held.
func (q *qp) checkMemory(wr *provider.SendWR) error {
	if wr.Flags&^memoryFlags != 0 || len(wr.SGList) > 0 || len(wr.Inline) > 0 {
		return errMemoryFlags
	}
	o := q.toPost()
	*o = memoryOperands{}
	switch wr.Opcode {
	case provider.WRBindMW:
		return q.checkBindWR(wr, o)
	case provider.WRRegMR:
		return q.checkReg(wr, o)
	}
	return nil // what an invalidation names is seen when its turn comes
}

// toPost is where the operands are of what is being posted. sq.mu is held.
func (q *qp) toPost() *memoryOperands {
	if q.sq.memory == nil {
		q.sq.memory = &memoryQueue{operands: make([]memoryOperands, q.init.MaxSendWR)}
	}
	return &q.sq.memory.posting
}

func (q *qp) checkBindWR(wr *provider.SendWR, o *memoryOperands) error {
	w, _ := q.dev.owner(wr.RKey).(*mw)
	switch {
	case wr.Bind == nil:
		return errNoBind
	case w == nil || w.typ != provider.MWType2:
		return errNoWindow
	case wr.RKey == w.posted.Load():
		return errSameKey
	case wr.Bind.Length == 0:
		return errBindZero
	}
	return q.checkBind(w, wr.Bind, o)
}

// checkBind is what binds of both types have in common. What may change until the
// bind's turn comes is left for then.
func (q *qp) checkBind(w *mw, info *provider.MWBindInfo, o *memoryOperands) error {
	switch {
	case w.view.pd != q.pd:
		return errOtherPD
	case info.Access&^windowRights != 0:
		return errWindowRights
	case info.LKey == 0 && (info.Addr != 0 || info.Length != 0):
		return errBindNothing
	case info.Length != 0:
		if m := q.dev.stags.lookup(info.LKey); m != nil && m.pd != q.pd {
			return errOtherPD
		}
	}
	*o = memoryOperands{window: w, lkey: info.LKey, addr: info.Addr, length: info.Length, access: info.Access}
	return nil
}

func (q *qp) checkReg(wr *provider.SendWR, o *memoryOperands) error {
	f, _ := q.dev.owner(wr.RKey).(*fastMR)
	switch {
	case f == nil:
		return errNoFastReg
	case f.pd != q.pd:
		return errOtherPD
	}
	buf, err := f.toPost(wr)
	if err != nil {
		return err
	}
	*o = memoryOperands{region: f, buf: buf, access: wr.Access}
	return nil
}

// BindMW implements provider.QP.
func (q *qp) BindMW(window provider.MW, wrid uint64, flags provider.SendFlags, info provider.MWBindInfo) error {
	const op = "ibv_bind_mw"
	w, ours := window.(*mw)
	if !ours || w == nil || w.view.pd.dev != q.dev {
		return failForeign(op, "window")
	}
	waits, err := q.enqueueBind(w, wrid, flags, &info)
	if err != nil {
		q.ring() // as in PostSend
		return fail(op, fmt.Sprintf("qp %d, %s", q.qpn, w.name()), err)
	}
	switch s := q.stream.Load(); {
	case s == nil:
		q.flushIfError()
	case !waits:
		s.resumeTx()
	}
	return nil
}

// enqueueBind puts the bind into the send queue, and reports whether it waits for other posts.
func (q *qp) enqueueBind(w *mw, wrid uint64, flags provider.SendFlags, info *provider.MWBindInfo) (bool, error) {
	w.posting.Lock()
	defer w.posting.Unlock()
	s := &q.sq
	s.mu.Lock()
	defer s.mu.Unlock()
	state := q.getState()
	switch {
	case w.refs.Closed(), q.closed.Load():
		return false, os.ErrClosed
	case w.typ != provider.MWType1:
		return false, errNotType1
	case flags&^memoryFlags != 0:
		return false, errMemoryFlags
	case state != provider.QPRTS && state != provider.QPErr:
		return false, notConnected(state)
	}
	if err := q.checkBind(w, info, q.toPost()); err != nil {
		return false, err
	}
	tail := s.tail.Load()
	if s.full(tail) && !s.makeRoom(tail, q.init.MaxSendWR) {
		return false, q.sendQueueFull(tail)
	}
	key := incRKey(w.posted.Load())
	*s.at(tail) = sendWQE{wrid: wrid, op: provider.WRBindMW, flags: flags, rkey: key}
	s.putMemory(tail)
	w.posted.Store(key)
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

// incRKey is ibv_inc_rkey.
func incRKey(key uint32) uint32 { return key&^0xff | (key+1)&0xff }

// errLocalInv is why an invalidation of ours fails that names nothing.
var errLocalInv = rdmap.LocalCatastrophe("an invalidation names neither a window of type 2 of this queue pair nor a region of AllocFastRegMR")

// invalidateLocal does what WRLocalInv asks for.
func (q *qp) invalidateLocal(stag uint32) error {
	owner := q.dev.owner(stag)
	if owner == nil || owner.domain() != q.pd {
		return errLocalInv
	}
	switch err := owner.invalidate(q, stag, false); err {
	case nil:
		return nil
	case rdmap.ErrMayNotInvalidate:
		return errMayNotInv
	}
	return errLocalInv
}

// errMayNotInv is why an invalidation of ours fails that names what is not to be
// invalidated.
var errMayNotInv = rdmap.LocalCatastrophe("an invalidation names a window of type 1 or of another queue pair, or a region with windows bound to it")
