package engine

import (
	"fmt"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// enterError moves the QP to ERR and flushes posted work. It may be called several times, even when
// the QP is in ERR; the first cause stays. s is the stream that has ended, nil if there was none.
// If the QP has another stream, it has just been connected, and that stream is failed instead.
func (q *qp) enterError(s *stream, e *ending) {
	q.mu.Lock()
	if now := q.stream.Load(); now != nil && now != s {
		q.mu.Unlock()
		now.fail(e)
		now.settle()
		return
	}
	if q.cause == nil {
		q.cause = e.cause
	}
	last := q.srq() != nil && !q.closing && q.getState() != provider.QPErr
	q.setState(provider.QPErr)
	q.stream.Store(nil)
	q.mu.Unlock()
	if q.flushAll(e.recvStatus) {
		q.dev.raise(provider.AsyncEvent{Type: provider.EventSQDrained, QP: q})
	}
	if last {
		q.dev.raise(provider.AsyncEvent{Type: provider.EventQPLastWQEReached, QP: q})
	}
}

// flushAll completes all posted work in error if the QP is in ERR, and reports whether there was
// anything in the send queue. firstRecv is the status of the receive in progress, or WCSuccess for
// an ordinary flush. A change from ERR holds both locks and discards posted work. So a goroutine
// that has seen ERR does not flush what is posted afterwards.
func (q *qp) flushAll(firstRecv provider.WCStatus) (sends bool) {
	q.sq.done.Lock()
	if q.getState() == provider.QPErr {
		sends = q.flushSends()
	}
	q.sq.done.Unlock()
	q.rq.done.Lock()
	if q.getState() == provider.QPErr {
		q.flushRecvs(firstRecv)
	}
	q.rq.done.Unlock()
	return sends
}

// flushSends completes everything in the send queue in error, even unsignalled WQEs, and reports
// whether there was anything. It also flushes WQEs that had finished after an unfinished one,
// because nothing succeeds after a failure. The QP is in ERR, and sq.done is held.
//
//rfc:5040 RDMAP-6.2.1-02 After Terminate outstanding WRs complete in error
//rfc:5041 DDP-6.2.2-02 Outstanding requests complete in error
func (q *qp) flushSends() bool {
	s := &q.sq
	tail := s.tail.Load()
	any := s.head != tail
	flushed := uint64(0)
	for h := s.head; h != tail; h++ {
		if s.at(h).status == provider.WCSuccess {
			flushed++
		}
	}
	if flushed > 0 {
		q.counters().flushedSends.Add(flushed)
	}
	for ; s.head != tail; s.head++ {
		w := s.at(s.head)
		status := w.status
		if status == provider.WCSuccess {
			status = provider.WCWRFlushErr
		}
		wc := provider.WC{WRID: w.wrid, Status: status, Opcode: wcOpcodes[w.op], QPN: q.qpn}
		s.dropMemory(s.head)
		s.free.report(s.head + 1)
		q.sendCQ.push(wc, true)
	}
	s.out = s.head // for the next connection
	return any
}

// flushRecvs completes everything in the receive queue in error. first is the status of the oldest
// receive if that is not a flush. The QP is in ERR, and rq.done is held.
func (q *qp) flushRecvs(first provider.WCStatus) {
	if q.shared != nil {
		q.flushShared(first)
		return
	}
	r := &q.rq
	status := first
	if status == provider.WCSuccess {
		status = provider.WCWRFlushErr
	}
	h, tail := r.head.Load(), r.tail.Load()
	flushed := uint64(tail - h)
	if flushed > 0 && status != provider.WCWRFlushErr {
		flushed-- // the first has failed by itself
	}
	if flushed > 0 {
		q.counters().flushedRecvs.Add(flushed)
	}
	for ; h != tail; h++ {
		wc := provider.WC{WRID: r.at(h).wrid, Status: status, Opcode: provider.WCRecv, QPN: q.qpn}
		r.head.Store(h + 1)
		q.recvCQ.push(wc, true)
		status = provider.WCWRFlushErr
	}
}

// flushIfError is called after a post that found no stream. Posts in ERR complete at once.
func (q *qp) flushIfError() { q.flushAll(provider.WCSuccess) }

const (
	modifiable = provider.QPAttrState | provider.QPAttrEnSQDNotify | provider.QPAttrCurState | provider.QPAttrAccessFlags |
		provider.QPAttrMaxRdAtomic | provider.QPAttrMaxDestRdAtomic
	depths = provider.QPAttrMaxRdAtomic | provider.QPAttrMaxDestRdAtomic
)

// Modify implements provider.QP. The changes of state mean on iWARP:
//
//   - RESET to INIT, INIT to RTR: only the state changes.
//   - To RTS: only the connection manager does that; EINVAL, unless the state is RTS already.
//   - RTS to SQD: the connection ends gracefully: the send queue is still sent, then FIN. There is
//     no way back to RTS. If the program asked for it, EventSQDrained reports that all is sent and
//     all Reads are answered.
//   - RTS to SQE: the peer is sent a Terminate (0/0/0xff), and the QP ends in ERR.
//   - To ERR, from every state: the connection ends with a FIN.
//   - To RESET, from every state but RTS and SQD: posted work is dropped without a completion; the
//     QP can be connected again.
//
// The access flags are kept, and Query returns them. As with siw, only the rights of a region
// decide about its use. The read depths can be set until the QP is connected.
func (q *qp) Modify(attr provider.QPAttr, mask provider.QPAttrMask) error {
	const op = "ibv_modify_qp"
	e, err := q.modify(&attr, mask)
	if err != nil {
		return fail(op, q.name(), err)
	}
	if e == nil {
		return nil
	}
	q.transmitDeferred()
	if s := q.stream.Load(); s != nil {
		s.fail(e)
		s.settle()
		return nil
	}
	q.enterError(nil, e)
	return nil
}

// modify makes the changes that need only mu. If attr asks for the end of the connection, it
// returns the ending.
func (q *qp) modify(attr *provider.QPAttr, mask provider.QPAttrMask) (*ending, error) {
	if q.isClosed() {
		return nil, os.ErrClosed
	}
	state := q.getState()
	if err := q.checkModify(attr, mask, state); err != nil {
		return nil, err
	}
	var e *ending
	if mask&provider.QPAttrState != 0 {
		var err error
		notify := mask&provider.QPAttrEnSQDNotify != 0 && attr.EnSQDAsyncNotify
		if e, err = q.changeState(attr.State, notify); err != nil {
			return nil, err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if mask&provider.QPAttrAccessFlags != 0 {
		q.access = attr.Access
	}
	if mask&provider.QPAttrMaxRdAtomic != 0 {
		q.ord = uint16(attr.MaxRdAtomic)
	}
	if mask&provider.QPAttrMaxDestRdAtomic != 0 {
		q.ird = uint16(attr.MaxDestRdAtomic)
	}
	return e, nil
}

// checkModify returns EINVAL if an attribute that mask names can't have its value in state.
func (q *qp) checkModify(attr *provider.QPAttr, mask provider.QPAttrMask, state provider.QPState) error {
	sets := func(bits provider.QPAttrMask) bool { return mask&bits != 0 }
	switch {
	case sets(^modifiable):
		return fmt.Errorf("attributes %#x can't be changed on iWARP: %w", uint32(mask&^modifiable), syscall.EINVAL)
	case sets(provider.QPAttrCurState) && attr.CurState != state:
		return fmt.Errorf("CurState is %s, and the queue pair is in %s: %w", attr.CurState, state, syscall.EINVAL)
	case sets(provider.QPAttrEnSQDNotify) && (!sets(provider.QPAttrState) || attr.State != provider.QPSQD):
		return fmt.Errorf("EnSQDAsyncNotify needs a change to %s: %w", provider.QPSQD, syscall.EINVAL)
	case sets(depths) && state != provider.QPReset && state != provider.QPInit && state != provider.QPRTR:
		return fmt.Errorf("read depths can be changed only before the connection, and the queue pair is in %s: %w",
			state, syscall.EINVAL)
	case sets(provider.QPAttrMaxRdAtomic) && (attr.MaxRdAtomic < 0 || attr.MaxRdAtomic > q.dev.opts.MaxORD):
		return outside("MaxRdAtomic", attr.MaxRdAtomic, 0, q.dev.opts.MaxORD)
	case sets(provider.QPAttrMaxDestRdAtomic) && (attr.MaxDestRdAtomic < 0 || attr.MaxDestRdAtomic > q.dev.opts.MaxIRD):
		return outside("MaxDestRdAtomic", attr.MaxDestRdAtomic, 0, q.dev.opts.MaxIRD)
	}
	return nil
}

func (q *qp) changeState(to provider.QPState, notify bool) (*ending, error) {
	if to == provider.QPSQD {
		return nil, q.startClosing(notify)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closing {
		return nil, os.ErrClosed // Close relies on ERR while it flushes
	}
	from := q.getState()
	connected := from == provider.QPRTS || from == provider.QPSQD
	switch {
	case to == provider.QPErr:
		return &ending{cause: errModified}, nil
	case to == provider.QPSQE && connected:
		return endTerminate(errLocalCatastrophe, nil, 0, nil), nil
	case to == provider.QPReset && !connected:
		q.reset()
		return nil, nil
	case from == to && to == provider.QPRTS,
		to == provider.QPInit && (from == provider.QPReset || from == provider.QPInit),
		to == provider.QPRTR && (from == provider.QPInit || from == provider.QPRTR):
		q.setState(to)
		return nil, nil
	case to == provider.QPRTS:
		return nil, fmt.Errorf("only a connection leads to %s (rdmacm.Dial, Request.Accept), "+
			"and the queue pair is in %s: %w",
			to, from, syscall.EINVAL)
	}
	return nil, fmt.Errorf("a queue pair can't change from %s to %s: %w", from, to, syscall.EINVAL)
}

// startClosing begins the graceful end of a connection. With notify, EventSQDrained is raised when
// the send queue is drained. Without a connection it returns EINVAL.
func (q *qp) startClosing(notify bool) error {
	if s := q.stream.Load(); s == nil || !s.closeGracefully(notify) {
		return fmt.Errorf("%s needs a connection, and the queue pair is in %s: %w",
			provider.QPSQD, q.getState(), syscall.EINVAL)
	}
	return nil
}

// disconnect ends this stream gracefully, as qp.disconnect does, and no other that the QP may have
// by then.
func (s *stream) disconnect() { s.closeGracefully(false) }

// closeGracefully begins the graceful end that disconnect describes. With notify, EventSQDrained is
// raised when our FIN is sent, or at once if it is sent already. It reports whether the QP had this
// stream.
func (s *stream) closeGracefully(notify bool) bool {
	to := phaseClosing
	if notify {
		to = phaseClosingNotify
	}
	q := s.q
	q.transmitDeferred()
	q.mu.Lock()
	if q.stream.Load() != s {
		q.mu.Unlock()
		return false
	}
	q.setState(provider.QPSQD)
	from := s.enter(to)
	q.mu.Unlock()
	switch {
	case from == phaseOpen:
		s.closer.watchClosing()
		s.resume()
	case from == phaseFINSent && notify:
		s.raiseDrained()
	}
	return true
}

// reset drops posted work and unbinds the windows that are bound for the QP's peer, because its
// next peer must not use them. mu is held, and there is no stream.
func (q *qp) reset() {
	q.sq.mu.Lock()
	q.rq.mu.Lock()
	q.sq.done.Lock()
	q.rq.done.Lock()
	q.sq.forget()
	q.forgetPosts()
	q.rq.head.Store(q.rq.tail.Load())
	if q.shared != nil {
		q.shared.held = false
	}
	q.setState(provider.QPReset)
	q.cause = nil
	q.rq.done.Unlock()
	q.sq.done.Unlock()
	q.rq.mu.Unlock()
	q.sq.mu.Unlock()
	q.peer.Unbind()
}

// Query implements provider.QP.
func (q *qp) Query() (provider.QPAttr, provider.QPInitAttr, error) {
	if q.isClosed() {
		return provider.QPAttr{}, provider.QPInitAttr{}, failClosed("ibv_query_qp", q.name())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	state, init := q.getState(), q.initAttr()
	return provider.QPAttr{
		State:           state,
		CurState:        state,
		Access:          q.access,
		Cap:             init.Cap,
		MaxRdAtomic:     int(q.ord),
		MaxDestRdAtomic: int(q.ird),
	}, init, nil
}

// abort resets the connection at once. Without one it does nothing.
func (q *qp) abort(cause error) {
	if s := q.stream.Load(); s != nil {
		s.fail(&ending{cause: cause, reset: true})
		s.settle()
	}
}
