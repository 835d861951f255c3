package engine

import (
	"fmt"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

const sendFlags = provider.SendFence | provider.SendSignaled | provider.SendSolicited | provider.SendInline

// PostSend implements provider.QP. The caller's goroutine transmits at once what the socket takes,
// with two exceptions. If another goroutine is transmitting, that goroutine sends these WRs as
// well. If more posts are expected, the WRs are deferred and sent with those (package policy).
//
// Errors: EINVAL for an invalid WR, or a QP that is not connected; ENOMEM when the queue is full.
// On a QP in ERR WRs are accepted and flushed.
//
//rfc:5041 DDP-6.2.1-02 Requests after graceful close return an error
func (q *qp) PostSend(wrs []provider.SendWR) (int, error) {
	n, waits, err := q.enqueueSends(wrs)
	if n > 0 {
		s := q.stream.Load()
		switch {
		case s == nil:
			q.flushIfError()
		case !waits:
			s.resume()
		}
	}
	if err != nil {
		q.transmitDeferred() // a program whose queue is full can't make the expected posts
		err = failPost("ibv_post_send", q.name(), n, err)
	}
	return n, err
}

// enqueueSends returns how many of wrs it has put into the send queue, and whether they are
// deferred.
func (q *qp) enqueueSends(wrs []provider.SendWR) (int, bool, error) {
	s := &q.sq
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.closed.Load() {
		return 0, false, os.ErrClosed
	}
	canRead, flushed, always := true, false, q.signalsAll()
	switch q.getState() {
	case provider.QPRTS:
		if st := q.stream.Load(); st != nil {
			canRead = st.outstanding.Depth() > 0
		}
	case provider.QPErr:
		flushed = true
	default:
		return 0, false, notConnected(q.getState())
	}
	tail := s.tail.Load()
	var err error
	n, p := 0, policy.Post{}
	for ; n < len(wrs); n++ {
		wr := &wrs[n]
		var length uint32
		plain := s.isPlain(wr)
		if plain {
			length = wr.SGList[0].Length
		} else if length, err = q.checkSend(wr, canRead); err != nil {
			break
		}
		if s.full(tail) && !s.makeRoom(tail, q.init.MaxSendWR) {
			err = q.sendQueueFull(tail)
			break
		}
		// Field by field, because a composite literal would be built elsewhere and copied.
		w := s.at(tail)
		w.wrid, w.op, w.flags, w.length = wr.WRID, wr.Opcode, wr.Flags, length
		w.raddr, w.rkey, w.immOrInv = wr.RemoteAddr, wr.RKey, wr.InvalidateRKey
		w.nsge, w.finished, w.status = uint16(len(wr.SGList)), false, provider.WCSuccess
		if len(wr.SGList) > 0 {
			room := s.sgeRoom(tail)
			for i := range wr.SGList { //nolint:staticcheck // one or two, for which calling copy is slower
				room[i] = wr.SGList[i]
			}
		}
		if !plain {
			s.addRest(tail, wr)
		}
		p.Octets = min(p.Octets+min(length, policy.MostOctets)+policy.FPDUCost, policy.MostOctets) // no more matters
		if (wr.Flags|always)&provider.SendSignaled != 0 {
			p.Signaled++
		}
		tail++
	}
	s.tail.Store(tail) // all of the list becomes visible at once
	if n == 0 || flushed {
		return n, false, err
	}
	return n, q.deferPost(p), err
}

// Refusals of posts whose text is the same for every work request.
var (
	errInlineSGE  = fmt.Errorf("it has both inline data and SGEs; leave out one: %w", syscall.EINVAL)
	errInlineFlag = fmt.Errorf("it has inline data, but Flags lacks SendInline; add the flag: %w", syscall.EINVAL)
	errInlineRead = fmt.Errorf("neither a Read nor an atomic operation has inline data; remove SendInline from Flags: %w", syscall.EINVAL)
	errAtomicSink = fmt.Errorf("the SGEs of an atomic operation have no room for the old value; add one of 8 bytes: %w",
		syscall.EINVAL)
	errTooLong = fmt.Errorf("the message is longer than 2^32-1 bytes; send it in several: %w", syscall.EINVAL)
	errNoORD   = fmt.Errorf("the connection allows neither RDMA Reads nor atomic operations (ORD 0); "+
		"raise ConnParam.InitiatorDepth here and ResponderResources at the peer: %w", syscall.EINVAL)

	errImmediate = failUnsupported("immediate data", "it is an extension (RFC 7306) that both ends must have: engine.Options.Extensions")
	errSendImm   = failUnsupported("a Send with payload and immediate data", "RFC 7306 has Immediate Data messages "+
		"without payload; post the Send and after it a WRSendWithImm of no bytes, which takes a "+
		"receive of its own")
	errAtomic = failUnsupported("atomic operations", "they are an extension (RFC 7306) that both ends must have: engine.Options.Extensions")
	errRDMAC  = failUnsupported("RFC 7306", "it extends the IETF's protocols, and this connection speaks the RDMA Consortium's")
)

// checkSend decides whether wr can be posted, and returns the length of its message in bytes.
//
//rfc:5041 DDP-5.2-02 ULP message shorter than 2^32
func (q *qp) checkSend(wr *provider.SendWR, canRead bool) (uint32, error) {
	if err := q.checkOpcode(wr.Opcode); err != nil {
		return 0, err
	}
	inline := wr.Flags&provider.SendInline != 0
	switch {
	case wr.Flags&^sendFlags != 0:
		return 0, fmt.Errorf("unknown flags %#x; use the constants of SendFlags: %w",
			uint32(wr.Flags&^sendFlags), syscall.EINVAL)
	case wr.Opcode == provider.WRBindMW || wr.Opcode == provider.WRLocalInv || wr.Opcode == provider.WRRegMR:
		return 0, q.checkMemory(wr)
	case inline && answeredOps.has(wr.Opcode):
		return 0, errInlineRead
	case !canRead && answeredOps.has(wr.Opcode):
		return 0, errNoORD
	case inline && len(wr.SGList) > 0:
		return 0, errInlineSGE
	case !inline && len(wr.Inline) > 0:
		return 0, errInlineFlag
	case len(wr.Inline) > q.sq.maxInline:
		return 0, tooMany(len(wr.Inline), "bytes of inline data", q.sq.maxInline, "MaxInlineData")
	case len(wr.SGList) > q.sq.maxSGE:
		return 0, tooMany(len(wr.SGList), "SGEs", q.sq.maxSGE, "MaxSendSGE")
	case wr.Opcode == provider.WRSendWithImm && len(wr.Inline) > 0:
		return 0, errSendImm
	case inline:
		return uint32(len(wr.Inline)), nil
	}
	n := sgeOctets(wr.SGList)
	switch {
	case wr.Opcode == provider.WRSendWithImm && n > 0:
		return 0, errSendImm
	case atomicOps.has(wr.Opcode) && n < rdmap.AtomicLen:
		return 0, errAtomicSink
	case atomicOps.has(wr.Opcode):
		return rdmap.AtomicLen, nil
	}
	if n > maxMsgSize {
		return 0, errTooLong
	}
	return uint32(n), nil
}

func (q *qp) checkOpcode(op provider.WROpcode) error {
	switch op {
	case provider.WRSend, provider.WRSendWithInv, provider.WRRDMAWrite, provider.WRRDMARead:
		return nil
	case provider.WRSendWithImm, provider.WRRDMAWriteWithImm:
		return q.checkExtension(errImmediate)
	case provider.WRAtomicCmpAndSwp, provider.WRAtomicFetchAdd, provider.WRMaskedAtomicCmpAndSwp, provider.WRMaskedAtomicFetchAdd:
		return q.checkExtension(errAtomic)
	case provider.WRBindMW, provider.WRLocalInv, provider.WRRegMR:
		return nil
	}
	return fmt.Errorf("unknown opcode %d; use a constant of WROpcode: %w", uint32(op), syscall.EINVAL)
}

// checkExtension decides whether an operation of RFC 7306 can be posted. It returns off if the
// engine has none.
func (q *qp) checkExtension(off error) error {
	if !q.dev.opts.Extensions {
		return off
	}
	if s := q.stream.Load(); s != nil && s.params.RDMAC {
		return errRDMAC
	}
	return nil
}

// PostRecv implements provider.QP. Receives are accepted in every state, and flushed in ERR.
// Errors: EINVAL for too many SGEs, ENOMEM when the queue is full.
func (q *qp) PostRecv(wrs []provider.RecvWR) (int, error) {
	n, err := q.enqueueRecvs(wrs)
	if n > 0 && q.stream.Load() == nil {
		q.flushIfError()
	}
	if err != nil {
		err = failPost("ibv_post_recv", q.name(), n, err)
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
			return n, q.recvRefusal(tooMany(len(wr.SGList), "SGEs", r.maxSGE, "MaxRecvSGE"))
		case r.full(tail) && !r.grow(q.init.MaxRecvWR):
			return n, q.recvRefusal(&fullError{queue: "receive", places: q.init.MaxRecvWR})
		}
		*r.at(tail) = recvWQE{wrid: wr.WRID, length: uint32(min(sgeOctets(wr.SGList), maxMsgSize)), nsge: uint16(len(wr.SGList))}
		room := r.sgeRoom(tail)
		for i := range wr.SGList { //nolint:staticcheck // as above
			room[i] = wr.SGList[i]
		}
		tail++
	}
	return len(wrs), nil
}

// sendQueueFull returns the error of a full send queue. sq.mu is held. Programs fill queues on
// purpose, so a refusal must be cheap: long queues are not searched for a signalled work request.
func (q *qp) sendQueueFull(tail uint32) error {
	s := &q.sq
	e := &fullError{queue: "send", places: q.init.MaxSendWR}
	if st := q.stream.Load(); st != nil {
		e.awaiting = !st.maySend.Load()
	}
	if q.init.SQSigAll || e.places > 1024 {
		return e
	}
	e.silent = true
	for i := s.free.Load(); i != tail && e.silent; i++ {
		e.silent = s.at(i).flags&provider.SendSignaled == 0
	}
	return e
}
