package engine

import (
	"fmt"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

const sendFlags = provider.SendFence | provider.SendSignaled | provider.SendSolicited | provider.SendInline

// PostSend implements provider.QP. The caller's goroutine transmits what the
// socket takes at once, unless another one is just doing that, which then sends
// these WRs as well.
//
// Errors: EINVAL for a WR that can't be, or a QP that is not connected; ENOMEM
// when the queue is full. On a QP in ERR WRs are accepted and flushed.
//
//rfc:5041 DDP-6.2.1-02
func (q *qp) PostSend(wrs []provider.SendWR) (int, error) {
	n, err := q.enqueueSends(wrs)
	if n > 0 {
		if s := q.stream.Load(); s != nil {
			s.kickTx()
		} else {
			q.flushIfError()
		}
	}
	if err != nil {
		err = fail("ibv_post_send", fmt.Sprintf("qp %d, work request %d", q.qpn, n), err)
	}
	return n, err
}

func (q *qp) enqueueSends(wrs []provider.SendWR) (int, error) {
	s := &q.sq
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.closed.Load() {
		return 0, os.ErrClosed
	}
	tail := s.tail.Load()
	defer func() { s.tail.Store(tail) }() // all of the list becomes visible at once
	canRead := true
	switch q.getState() {
	case provider.QPRTS:
		if st := q.stream.Load(); st != nil {
			canRead = st.outstanding.Depth() > 0
		}
	case provider.QPErr:
	default:
		return 0, errNotConnected
	}
	for n := range wrs {
		wr := &wrs[n]
		length, err := q.checkSend(wr, canRead)
		if err != nil {
			return n, err
		}
		if s.full(tail) {
			return n, errQueueFull
		}
		*s.at(tail) = sendWQE{
			wrid: wr.WRID, op: wr.Opcode, flags: wr.Flags, length: length,
			raddr: wr.RemoteAddr, rkey: wr.RKey, inv: wr.InvalidateRKey,
			nsge: uint16(len(wr.SGList)),
		}
		room := s.sgeRoom(tail)
		for i := range wr.SGList {
			room[i] = wr.SGList[i]
		}
		if len(wr.Inline) > 0 {
			copy(s.inlineRoom(tail), wr.Inline)
		}
		tail++
	}
	return len(wrs), nil
}

// Refusals of posts. They are values so that a full queue, which programs run
// into on purpose, costs little.
var (
	errNotConnected = fmt.Errorf("not connected: %w", syscall.EINVAL)
	errQueueFull    = fmt.Errorf("queue is full: %w", syscall.ENOMEM)
	errFlags        = fmt.Errorf("unknown flags: %w", syscall.EINVAL)
	errManySGE      = fmt.Errorf("more SGEs than the queue pair's limit: %w", syscall.EINVAL)
	errLongInline   = fmt.Errorf("more inline data than the queue pair's limit: %w", syscall.EINVAL)
	errInlineSGE    = fmt.Errorf("inline data and SGEs in one work request: %w", syscall.EINVAL)
	errInlineFlag   = fmt.Errorf("inline data without the inline flag: %w", syscall.EINVAL)
	errInlineRead   = fmt.Errorf("a Read has no inline data: %w", syscall.EINVAL)
	errTooLong      = fmt.Errorf("message is longer than 2^32-1 octets: %w", syscall.EINVAL)
	errNoORD        = fmt.Errorf("the connection allows no RDMA Read (ORD 0): %w", syscall.EINVAL)
	errOpcode       = fmt.Errorf("unknown opcode: %w", syscall.EINVAL)

	errImmediate = failUnsupported("immediate data", "the engine has RFC 5040's operations and not those of RFC 7306")
	errAtomic    = failUnsupported("atomic operations", "the engine has RFC 5040's operations and not those of RFC 7306")
	errBindMW    = failUnsupported("memory windows", "the engine has memory regions only")
	errLocalInv  = failUnsupported("local invalidation", "the engine has no registration by work request; close the region")
)

// checkSend decides whether wr can be posted, and returns the length of its
// message.
//
//rfc:5041 DDP-5.2-02
func (q *qp) checkSend(wr *provider.SendWR, canRead bool) (uint32, error) {
	if err := checkOpcode(wr.Opcode); err != nil {
		return 0, err
	}
	inline := wr.Flags&provider.SendInline != 0
	switch {
	case wr.Flags&^sendFlags != 0:
		return 0, errFlags
	case wr.Opcode == provider.WRRDMARead && inline:
		return 0, errInlineRead
	case wr.Opcode == provider.WRRDMARead && !canRead:
		return 0, errNoORD
	case inline && len(wr.SGList) > 0:
		return 0, errInlineSGE
	case !inline && len(wr.Inline) > 0:
		return 0, errInlineFlag
	case len(wr.Inline) > q.sq.maxInline:
		return 0, errLongInline
	case len(wr.SGList) > q.sq.maxSGE:
		return 0, errManySGE
	case inline:
		return uint32(len(wr.Inline)), nil
	}
	n := sgeOctets(wr.SGList)
	if n > maxMsgSize {
		return 0, errTooLong
	}
	return uint32(n), nil
}

func checkOpcode(op provider.WROpcode) error {
	switch op {
	case provider.WRSend, provider.WRSendWithInv, provider.WRRDMAWrite, provider.WRRDMARead:
		return nil
	case provider.WRSendWithImm, provider.WRRDMAWriteWithImm:
		return errImmediate
	case provider.WRAtomicCmpAndSwp, provider.WRAtomicFetchAdd:
		return errAtomic
	case provider.WRBindMW:
		return errBindMW
	case provider.WRLocalInv:
		return errLocalInv
	}
	return errOpcode
}

// sgeOctets can't overflow: there are few SGEs of 32-bit lengths.
func sgeOctets(sges []provider.SGE) uint64 {
	var n uint64
	for i := range sges {
		n += uint64(sges[i].Length)
	}
	return n
}

// PostRecv implements provider.QP. Receives are accepted in every state; in ERR
// they are flushed. Errors: EINVAL for too many SGEs, ENOMEM when the queue is
// full.
func (q *qp) PostRecv(wrs []provider.RecvWR) (int, error) {
	n, err := q.enqueueRecvs(wrs)
	if n > 0 && q.stream.Load() == nil {
		q.flushIfError()
	}
	if err != nil {
		err = fail("ibv_post_recv", fmt.Sprintf("qp %d, work request %d", q.qpn, n), err)
	}
	return n, err
}

func (q *qp) enqueueRecvs(wrs []provider.RecvWR) (int, error) {
	r := &q.rq
	r.mu.Lock()
	defer r.mu.Unlock()
	if q.closed.Load() {
		return 0, os.ErrClosed
	}
	tail := r.tail.Load()
	defer func() { r.tail.Store(tail) }()
	for n := range wrs {
		wr := &wrs[n]
		switch {
		case len(wr.SGList) > r.maxSGE:
			return n, errManySGE
		case len(r.wqes) == 0, r.full(tail):
			return n, errQueueFull
		}
		*r.at(tail) = recvWQE{wrid: wr.WRID, length: sgeOctets(wr.SGList), nsge: uint16(len(wr.SGList))}
		room := r.sgeRoom(tail)
		for i := range wr.SGList {
			room[i] = wr.SGList[i]
		}
		tail++
	}
	return len(wrs), nil
}
