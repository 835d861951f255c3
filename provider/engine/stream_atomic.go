package engine

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// fillAtomicRequest sends the request of an atomic operation, which has its turn and its place
// among the requests of Reads. The peer checks the target, even its alignment, because that depends
// on where the peer's memory lies.
//
//rfc:7306 EXT-5.2-01 Atomic requests share QN1 MSN space and IRD/ORD with reads
//rfc:7306 EXT-5.2.1-08 Atomic requests sent in ULP order
//rfc:7306 EXT-5.2.2-04 Requester has QN3 buffers for all outstanding atomics
func (s *stream) fillAtomicRequest() {
	t := &s.tx
	sq := &s.q.sq
	w := sq.at(t.next)
	if !s.sinkUsable(sq.sgeRoom(t.next)[:w.nsge]) {
		s.failWork()
		return
	}
	o := sq.atomicAt(t.next)
	id := t.next
	var r rdmap.AtomicRequest
	if w.op == provider.WRAtomicFetchAdd || w.op == provider.WRMaskedAtomicFetchAdd {
		r = rdmap.FetchAdd(id, w.rkey, w.raddr, o.compareAdd, o.addMask)
	} else {
		r = rdmap.CmpSwap(id, w.rkey, w.raddr, o.compareAdd, o.swap, o.compareMask, o.swapMask)
	}
	s.outstanding.Push(rdmap.OutstandingRead{Atomic: true, ID: id, Size: rdmap.AtomicLen, Cookie: uint64(t.next)})
	h := rdmap.AtomicRequestHeader(t.readMSN)
	t.readMSN++
	var room [rdmap.AtomicRequestLen]byte
	t.b.Add(&h, r.AppendTo(room[:0]), 0, false)
	countOne(&s.q.counters().sent.AtomicRequest, rdmap.AtomicLen)
	t.task = taskNone
	t.next++
}

// takeAtomicRequest performs the peer's atomic operation at once. So it follows everything that was
// delivered before, and precedes everything that comes later. Its response waits until the
// responses of earlier Reads are sent.
//
//rfc:7306 EXT-5.2.1-07 Valid atomic request not delivered to ULP
//rfc:7306 EXT-5.4-3-01 Atomic request not started before delivery
//rfc:7306 EXT-5.4-8-01 Ordering of several atomics
func (s *stream) takeAtomicRequest(a *rdmap.Action, h *ddp.Header, payload []byte) {
	req, err := rdmap.ParseAtomicRequest(payload)
	var original uint64
	if err == nil {
		s.rx.c.leave() // the first operation on a region may wait
		original, err = s.q.peer.Atomic(&req)
	}
	if err != nil {
		//rfc:7306 EXT-8.1-2-01 Inbound extension error: DDP header, RDMA header zero
		s.refuse(err, h, len(payload), nil)
		return
	}
	s.rx.recv.Commit(a)
	countOne(&s.q.counters().received.AtomicRequest, rdmap.AtomicLen)
	//rfc:7306 EXT-5.2.1-09 Atomic requests processed in order
	//rfc:7306 EXT-5.2.1-10 Valid atomic request gets a valid response
	s.inbound.Push(rdmap.InboundAtomic(a.MSN, rdmap.AtomicResponse{ID: req.ID, Original: original}))
	s.rx.resumeTx = true
}

// fillAtomicResponse sends the result of an operation of the peer.
//
//rfc:7306 EXT-5.2.1-11 Atomic request identifier echoed
//rfc:7306 EXT-5.2.2-01 Atomic response untagged, QN 3, MSN from 1
//rfc:7306 EXT-5.2.2-07 Atomic responses in request order
func (s *stream) fillAtomicResponse() {
	t := &s.tx
	r, _ := t.resp.Atomic()
	s.inbound.Pop() // the peer may ask again as soon as this is out
	h := rdmap.AtomicResponseHeader(t.atomicMSN)
	t.atomicMSN++
	var room [rdmap.AtomicResponseLen]byte
	t.b.Add(&h, r.AppendTo(room[:0]), 0, false)
	countOne(&s.q.counters().sent.AtomicResponse, rdmap.AtomicLen)
	t.task = taskNone
}

// takeAtomicResponse stores the old value where the WQE asks for it, in the CPU's byte order, and
// completes the WQE.
//
//rfc:7306 EXT-5.2.2-05 Atomic response delivered to ULP
//rfc:7306 EXT-5.4-1-01 Requester assumes nothing before the atomic response
//rfc:7306 EXT-5.4-7-01 Atomic not complete before its response is delivered
func (s *stream) takeAtomicResponse(a *rdmap.Action, h *ddp.Header, payload []byte) {
	r, err := rdmap.ParseAtomicResponse(payload)
	if err == nil && r.ID != a.Read.ID {
		err = rdmap.ErrAtomicResponseID
	}
	i := uint32(a.Read.Cookie)
	if err == nil {
		sges := s.q.sq.sgeRoom(i)[:s.q.sq.at(i).nsge]
		if !s.rx.c.resolve(s.q.pd, sges, 0, rdmap.AtomicLen) {
			s.q.failSend(i, provider.WCLocProtErr)
			err = errSinkSGE
		}
	}
	if err != nil {
		//rfc:7306 EXT-5.2.2-06 Invalid atomic response surfaces an error
		s.refuse(err, h, len(payload), nil)
		return
	}
	var room [rdmap.AtomicLen]byte
	//rfc:7306 EXT-5.1.1-05 Operation in target endianness, wire big-endian
	binary.NativeEndian.PutUint64(room[:], r.Original)
	s.rx.c.copyIn(room[:])
	s.rx.c.release()
	s.rx.recv.Commit(a)
	countOne(&s.q.counters().received.AtomicResponse, rdmap.AtomicLen)
	s.finishAnswered(a)
}

// blameAtomic makes the atomic operation fail that a Terminate is about, and reports whether there
// is one. The Terminate has the operation's DDP header. A misaligned target, above all, is what
// InfiniBand calls an invalid request.
func (s *stream) blameAtomic(t *rdmap.ReceivedTerminate) bool {
	if !t.HaveDDP || t.DDP.Tagged || t.DDP.QN != rdmap.QNReadRequest {
		return false
	}
	r := s.outstanding.WithMSN(t.DDP.MSN)
	if r == nil || !r.Atomic {
		return false
	}
	status := provider.WCRemInvReqErr
	if t.EType == iwarp.RDMAPRemoteProtection {
		status = provider.WCRemAccessErr
	}
	s.q.failSend(uint32(r.Cookie), status)
	return true
}
