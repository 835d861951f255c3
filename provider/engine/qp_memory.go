package engine

import (
	"fmt"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Work requests on our own memory: binding a window, registering a region, invalidating
// either. They send nothing, and take their turn in the send queue: what stands before
// them has been handed to the socket, or was copied, when they are done, and what stands
// behind them finds them done.

// opRegMR stands for provider.WRRegMR in the send queue, where opcodes are below 32.
const opRegMR provider.WROpcode = 31

// memoryOperands are what a WQE of a bind or a registration has beside the others. Its
// key is in sendWQE.rkey.
type memoryOperands struct {
	window *mw
	region *fastMR // instead of a window

	lkey         uint32 // of the region that the window is bound to
	addr, length uint64
	buf          []byte // what is registered
	access       provider.Access
}

// memoryQueue is what a send queue has beside its ring for such work.
type memoryQueue struct {
	operands []memoryOperands // of each WQE
	posting  memoryOperands   // of mu: of what is being posted
}

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

// owner returns what has the STags of the index of stag, nil if nothing does.
func (d *device) owner(stag uint32) stagOwner {
	if m := d.stags.moving.find(stagIndex(stag)); m != nil && stag != 0 {
		return m.owner
	}
	return nil
}

// addMemory puts what checkMemory has left beside WQE i, and lets the window or region
// tell its new key from now on.
func (s *sendQueue) addMemory(i uint32, wr *provider.SendWR) {
	switch wr.Opcode {
	case provider.WRLocalInv:
		return
	case provider.WRRegMR:
		s.at(i).op = opRegMR
		o := &s.memory.posting
		o.region.tell(wr.RKey, wr.Access, len(o.buf))
	default:
		s.memory.posting.window.posted.Store(wr.RKey)
	}
	s.putMemory(i)
}

// putMemory moves what is being posted beside WQE i.
func (s *sendQueue) putMemory(i uint32) {
	*s.memoryAt(i) = s.memory.posting
	s.memory.posting = memoryOperands{}
}

func (s *sendQueue) memoryAt(i uint32) *memoryOperands {
	all := s.memory.operands
	return &all[i&uint32(len(all)-1)]
}

// BindMW implements provider.QP.
func (q *qp) BindMW(window provider.MW, wrid uint64, flags provider.SendFlags, info provider.MWBindInfo) error {
	const op = "ibv_bind_mw"
	w, ours := window.(*mw)
	if !ours || w == nil || w.view.pd.dev != q.dev {
		return failForeign(op, "window")
	}
	if err := q.enqueueBind(w, wrid, flags, &info); err != nil {
		return fail(op, fmt.Sprintf("qp %d, %s", q.qpn, w.name()), err)
	}
	if s := q.stream.Load(); s != nil {
		s.kickTx()
	} else {
		q.flushIfError()
	}
	return nil
}

func (q *qp) enqueueBind(w *mw, wrid uint64, flags provider.SendFlags, info *provider.MWBindInfo) error {
	w.posting.Lock()
	defer w.posting.Unlock()
	s := &q.sq
	s.mu.Lock()
	defer s.mu.Unlock()
	state := q.getState()
	switch {
	case w.life.closed(), q.closed.Load():
		return os.ErrClosed
	case w.typ != provider.MWType1:
		return errNotType1
	case flags&^memoryFlags != 0:
		return errMemoryFlags
	case state != provider.QPRTS && state != provider.QPErr:
		return notConnected(state)
	}
	if err := q.checkBind(w, info, q.toPost()); err != nil {
		return err
	}
	tail := s.tail.Load()
	if s.full(tail) && !s.makeRoom(tail, q.init.MaxSendWR) {
		return q.sendQueueFull(tail)
	}
	key := incRKey(w.posted.Load())
	*s.at(tail) = sendWQE{wrid: wrid, op: provider.WRBindMW, flags: flags, rkey: key}
	s.putMemory(tail)
	w.posted.Store(key)
	s.tail.Store(tail + 1)
	return nil
}

// incRKey is ibv_inc_rkey.
func incRKey(key uint32) uint32 { return key&^0xff | (key+1)&0xff }

// letGo reports whether the batch uses no region, so that one can be waited for. What it
// uses is let go when it is written.
func (b *txBatch) letGo() bool {
	if b.nuses > 0 && b.empty() {
		b.release()
	}
	return b.nuses == 0
}

// errLocalInv is why an invalidation of ours fails that names nothing.
var errLocalInv = localCatastrophe("an invalidation names neither a window of type 2 of this queue pair nor a region of AllocFastRegMR")

// doMemory does what WQE next asks for. The batch uses no region. Uses of others, which
// last as long as a copy, are waited for.
func (s *stream) doMemory() {
	t := &s.tx
	q := s.q
	w := q.sq.at(t.next)
	var err error
	if w.op == provider.WRLocalInv {
		err = q.invalidateLocal(w.inv)
	} else {
		o := q.sq.memoryAt(t.next)
		if o.window != nil {
			err = o.window.bind(q, w.rkey, o)
		} else {
			err = o.region.register(w.rkey, o)
		}
		*o = memoryOperands{}
	}
	if err != nil {
		s.failMemory(err)
		return
	}
	q.finishRead(t.next)
	t.next++
}

// memoryAhead does the work on our own memory that is next in the send queue where no
// message of that can be begun: in the middle of a response, with a socket that is full,
// on a responder that must not send yet. So no peer holds up an invalidation by not
// reading. Nothing of the batch is in a region in use then: it was copied, or is out.
//
//rfc:5041 DDP-8.3-2-01 STag validity can be revoked any time
func (s *stream) memoryAhead() {
	t := &s.tx
	sq := &s.q.sq
	for (t.msg == msgNone || t.msg == msgResponse) && t.fault == nil && !s.over() && t.next != sq.tail.Load() {
		w := sq.at(t.next)
		if !memoryOps.has(w.op) || w.flags&provider.SendFence != 0 && s.outstanding.Len() > 0 || t.b != nil && !t.b.letGo() {
			return
		}
		s.doMemory()
	}
}

// undoMemory undoes work on our own memory that is done but will be reported as flushed, because
// something that was posted before it is not over: a program that sees the flush does not expect
// that peers can reach the region. The newest is undone first, because a window may be bound to
// what was registered before it. rxMu and txMu are held, and neither side uses a region any more.
func (s *stream) undoMemory() {
	sq := &s.q.sq
	sq.done.Lock()
	head := sq.head
	sq.done.Unlock()
	for i := s.tx.next; i != head; {
		i--
		w := sq.at(i)
		if !w.finished || w.op != provider.WRBindMW && w.op != opRegMR {
			continue
		}
		switch owner := s.q.dev.owner(w.rkey).(type) {
		case *mw:
			owner.undo(w.rkey)
		case *fastMR:
			// Fails if the program has invalidated it, or bound a window to it, since.
			_ = owner.invalidate(s.q, w.rkey, false)
		}
	}
}

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
var errMayNotInv = localCatastrophe("an invalidation names a window of type 1 or of another queue pair, or a region with windows bound to it")

// failMemory gives up at WQE next, as failWork does.
//
//rfc:5040 RDMAP-7.1-1-01 Local error: Terminate without headers
func (s *stream) failMemory(err error) {
	t := &s.tx
	s.q.failSend(t.next, provider.WCMWBindErr)
	t.fault = s.endTerminate(err, nil, 0, nil)
	t.fault.event, t.fault.raise = provider.EventQPFatal, true
}
