package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// mssBatches is the number of batches after which TCP is asked for the MSS again, by a system call.
const mssBatches = 64

// fill puts FPDUs into the batch until it is full or nothing more can be sent. A message longer
// than the batch continues in the next.
func (s *stream) fill() {
	t := &s.tx
	if t.mssAge == 0 {
		t.format.SetEMSS(s.conn.MSS())
	}
	t.mssAge = (t.mssAge + 1) % mssBatches
	t.b.Prepare(&t.format, t.batch.Limit(), int(t.turn))
	if t.task == taskReadResponse {
		s.memoryAhead()
	}
	t.b.BeginMessage(t.seg)
	for t.fault == nil && t.b.Room() && !t.fetching() {
		if t.task == taskNone {
			s.fillShort()
			if !t.b.Room() || !s.nextMessage() {
				return
			}
			t.b.BeginMessage(t.seg)
		}
		switch t.task {
		case taskSendOrWrite:
			s.fillWork()
		case taskReadRequest:
			s.fillReadRequest()
		case taskReadResponse:
			s.fillResponse()
		case taskRTR:
			s.fillRTR()
		case taskImmediate:
			s.fillImmediate()
		case taskAtomicRequest:
			s.fillAtomicRequest()
		case taskAtomicResponse:
			s.fillAtomicResponse()
		case taskMemory:
			t.task = taskNone
			s.doMemory()
		}
	}
}

// nextMessage chooses what is sent next. If both the send queue and responses have something, they
// take turns.
//
//rfc:5040 RDMAP-5.5-13-01 RDMAP submits in ULP order
//rfc:6581 MPA2-5-01 No later FPDU leaves the initiator before the RTR frame
func (s *stream) nextMessage() bool {
	t := &s.tx
	if t.rtr != 0 {
		t.task = taskRTR
		return true
	}
	if t.answered {
		return s.nextWork() || s.nextResponse()
	}
	return s.nextResponse() || s.nextWork()
}

// nextWork starts the next WQE, unless it has to wait for a place among the outstanding Reads, or,
// with a fence, for all of them.
//
//rfc:5040 RDMAP-5.5-02 Fence holds later Send/Write until reads are done
//rfc:5040 RDMAP-6.1-04 Outstanding outbound reads never above ORD
//rfc:5041 DDP-5.3-01 Messages transmitted in submission order
func (s *stream) nextWork() bool {
	t := &s.tx
	sq := &s.q.sq
	if t.next == sq.tail.Load() {
		return false
	}
	w := sq.at(t.next)
	if w.flags&provider.SendFence != 0 && s.outstanding.Len() > 0 {
		return false
	}
	switch {
	case answeredOps.has(w.op):
		if s.outstanding.Full() {
			return false
		}
		t.task = taskReadRequest
		if w.op != provider.WRRDMARead {
			t.task = taskAtomicRequest
		}
	case w.op == provider.WRSendWithImm:
		t.task = taskImmediate
	case memoryOps.has(w.op):
		if !t.b.Released() {
			return false
		}
		t.task = taskMemory
	default:
		t.task = taskSendOrWrite
		t.seg = ddp.NewSegmenter(w.length, w.isWrite())
	}
	t.answered = false
	return true
}

// fillWork adds the next FPDU of a Send or Write.
//
//rfc:5040 RDMAP-5.1-04 Writes issued in order
//rfc:5040 RDMAP-5.3-07 Sends issued in order
func (s *stream) fillWork() {
	t := &s.tx
	b := t.b
	sq := &s.q.sq
	w := sq.at(t.next)
	inline := w.flags&provider.SendInline != 0
	if !inline && w.length > 0 && !b.Resolve(&s.q.pd.Domain, sq.sgeRoom(t.next)[:w.nsge]) {
		if !s.fillObjectWork(w) {
			s.failWork()
		}
		return
	}
	head := w.head(t.sendMSN)
	completes := w.op != provider.WRRDMAWriteWithImm
	if b.AddLong(head, &t.seg, t.next, completes) {
		if t.seg.Done() {
			s.endWork(w)
		}
		return
	}
	seg, ok := t.seg.Next(t.format.MULPDU)
	if !ok {
		panic("engine: the MULPDU has no room for payload")
	}
	h := head.Header(seg.MO(), seg.Last)
	if inline {
		b.Add(&h, sq.inlineRoom(t.next)[seg.Offset:][:seg.Len], t.next, seg.Last && completes)
	} else {
		b.AddResolved(&h, uint64(seg.Offset), uint64(seg.Len), t.next, seg.Last && completes)
	}
	if seg.Last {
		s.endWork(w)
	}
}

// endWork ends the Send or Write of WQE next, w.
func (s *stream) endWork(w *sendWQE) {
	t, sent := &s.tx, &s.q.counters().sent
	switch w.op {
	case provider.WRRDMAWriteWithImm:
		countOne(&sent.Write, w.length)
		t.task = taskImmediate
		return
	case provider.WRRDMAWrite:
		countOne(&sent.Write, w.length)
	default:
		countOne(&sent.Send, w.length)
		t.sendMSN++
	}
	t.task = taskNone
	t.next++
}

// head returns the common part of the headers of the segments of w, a Write or a Send.
func (w *sendWQE) head(msn uint32) rdmap.Head {
	if w.isWrite() {
		return rdmap.WriteHead(w.rkey, w.raddr)
	}
	op, key := rdmap.OpSend, uint32(0)
	if w.op == provider.WRSendWithInv {
		op, key = rdmap.OpSendInvalidate, w.immOrInv
	}
	if w.flags&provider.SendSolicited != 0 {
		op += rdmap.OpSendSE - rdmap.OpSend
	}
	return rdmap.SendHead(op, key, msn)
}

// failWork gives up at WQE next, because its SGEs name memory that can't be sent. Earlier posts are
// still sent, then the Terminate.
//
//rfc:5040 RDMAP-7.1-01 Local ULP informed of error
//rfc:5040 RDMAP-7.1-1-01 Local error: Terminate without headers
func (s *stream) failWork() {
	t := &s.tx
	fault := s.workFault(t.next)
	s.q.failSend(t.next, provider.WCLocProtErr)
	t.fault = endTerminate(errLocalWork, nil, 0, nil)
	t.fault.blame(fault)
	t.fault.event, t.fault.raise = provider.EventQPFatal, true
}

// fillReadRequest sends the request of a Read. It adds the Read to the outstanding ones before it
// can be answered.
//
//rfc:5040 RDMAP-5.2.1-04 ReadReqs passed in ULP order
func (s *stream) fillReadRequest() {
	t := &s.tx
	sq := &s.q.sq
	w := sq.at(t.next)
	sges := sq.sgeRoom(t.next)[:w.nsge]
	if !s.sinkUsable(sges) && !s.objectSink(sges, w.length) {
		s.failWork()
		return
	}
	// On the wire the sink is one STag and one TO, which the peer only echoes. The receive side
	// knows the SGEs, so it decides where the bytes go.
	r := rdmap.ReadRequest{Size: w.length, SourceSTag: w.rkey, SourceTO: w.raddr}
	if len(sges) > 0 {
		r.SinkSTag, r.SinkTO = sges[0].LKey, sges[0].Addr
	}
	s.outstanding.Push(rdmap.OutstandingRead{
		SinkSTag: r.SinkSTag, SinkTO: r.SinkTO, Size: r.Size, Cookie: uint64(t.next),
	})
	s.addReadRequest(&r)
	countOne(&s.q.counters().sent.ReadRequest, r.Size)
	t.task = taskNone
	t.next++
}

// sinkUsable reports whether a Read can have these SGEs as its sink. They are looked up again when
// the bytes come.
func (s *stream) sinkUsable(sges []provider.SGE) bool {
	var room [maxSGE]memory.Span
	spans, ok := s.q.pd.Resolve(sges, provider.AccessLocalWrite, room[:0])
	if ok {
		if l := &s.q.dev.log; l.to != nil {
			l.readSink(s, spans)
		}
		memory.ReleaseSpans(spans)
	}
	return ok
}

func (s *stream) addReadRequest(r *rdmap.ReadRequest) {
	t := &s.tx
	h := rdmap.ReadRequestHeader(t.readMSN)
	t.readMSN++
	var room [rdmap.ReadRequestLen]byte
	t.b.Add(&h, r.AppendTo(room[:0]), 0, false)
}

// rtrCookie marks a Read that no WQE waits for.
const rtrCookie = 1 << 63

// fillRTR sends the RTR indication: an empty message after which a responder may send.
//
//rfc:6581 MPA2-9.2-08 Initiator emits one negotiated RTR after an accept with A=1
//rfc:6581 MPA2-9.2-15 Zero-length Write/Read RTR must not need a valid STag
func (s *stream) fillRTR() {
	t := &s.tx
	switch t.rtr {
	case mpa.RTRRead:
		s.outstanding.Push(rdmap.OutstandingRead{Cookie: rtrCookie})
		s.addReadRequest(&rdmap.ReadRequest{})
	case mpa.RTRSend:
		h := rdmap.SendHeader(rdmap.OpSend, 0, t.sendMSN, 0, true)
		t.sendMSN++
		t.b.Add(&h, nil, 0, false)
	default:
		h := rdmap.WriteHeader(0, 0, true)
		t.b.Add(&h, nil, 0, false)
	}
	t.rtr = 0
	t.task = taskNone
}
