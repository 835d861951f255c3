package engine

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// message is what the transmit side is in the middle of.
type message uint8

const (
	msgNone           message = iota
	msgWork                   // a Send or Write of the send queue
	msgReadRequest            // a Read of the send queue
	msgResponse               // the response to the peer's oldest Read Request
	msgRTR                    // the RTR indication (RFC 6581 section 9.2)
	msgImmediate              // the Immediate Data of a WQE (RFC 7306 section 6)
	msgAtomicRequest          // an atomic operation of the send queue (section 5)
	msgAtomicResponse         // the response to one of the peer's
	msgMemory                 // an operation of the send queue on our own memory: nothing is sent
)

// mssBatches is how many batches the MSS is trusted for: asking is a system call,
// and it changes with the path only.
const mssBatches = 64

// txState is the transmit side of a stream; txMu guards it.
type txState struct {
	crc, markers bool
	rdmac        bool // version 0; with markers
	msg          message
	answered     bool       // the last message was a response: now it is the send queue's turn
	rtr          mpa.RTR    // RTR indication still to be sent
	mssAge       uint8      // batches filled since mulpdu was calculated
	taken        uint8      // batches in a row that the socket took whole, mssBatches at most
	framer       mpa.Framer // with markers
	emss         int32
	apt          int32 // octets that a batch may have: what the socket is likely to take (see undo)
	mulpdu       int

	b    *txBatch   // nil while nothing is in flight
	held *heldBatch // instead, while the socket has been full for long

	turn  int32 // what is left of the turn (see qp_turn.go)
	since int32 // octets that the socket took since it was full, batchOctets at most

	unsent unsent

	next uint32 // WQE that is sent next, or being sent
	seg  ddp.Segmenter
	resp rdmap.InboundRead // being answered

	sendMSN, readMSN, atomicMSN uint32 // next

	fetches *messageFetches // of the message being sent, nil if that comes from memory

	fault *ending // found while filling; it counts when what is before it is out
	err   error   // the socket can't be written any more
}

func (t *txState) init(s *stream) {
	t.crc, t.markers, t.rdmac = s.params.CRC, s.params.MarkersTx, s.params.RDMAC
	t.framer = mpa.NewFramer(t.markers, t.crc)
	t.apt = batchOctets
	t.sendMSN, t.readMSN, t.atomicMSN = ddp.FirstMSN, ddp.FirstMSN, ddp.FirstMSN
	if sendsRTR(s.params.PeerToPeer, s.params.WaitFirstFPDU) {
		t.rtr = s.params.RTR
	}
}

// transmit sends until there is nothing to send, no room in the socket, or the turn is
// over. txMu is held. On a stream that is over it does nothing at all: what is in the
// send queue is flushed, or belongs to the QP's next stream.
func (s *stream) transmit() {
	t := &s.tx
	if s.over() || s.finSent.Load() || t.err != nil {
		return
	}
	if !s.maySend.Load() {
		s.memoryAhead()
		if t.fault != nil {
			s.fail(t.fault) // nothing is before it; the peer can't be told why
			return
		}
		if s.closing.Load() {
			s.sendFIN() // what is posted can't be sent
		}
		return
	}
	if s.blocked.Load() && !s.room.Swap(false) {
		s.memoryAhead()
		return // trying again would cost a system call per post
	}
	t.unhold(s.dev)
	for !s.over() {
		if t.b != nil && t.b.empty() && t.b.built > 0 {
			t.b.reset()
		}
		if t.turn <= 0 && (t.b == nil || t.b.empty()) && s.putOff() {
			return
		}
		if t.b == nil {
			t.b = s.dev.prog.batches.get() // as reset leaves it
		}
		if t.b.empty() {
			s.fill()
			t.turn -= int32(t.b.cost())
			if t.b.empty() {
				s.txIdle()
				return
			}
			s.limitUnsent()
		}
		if !s.write() {
			return
		}
	}
	// Somebody ends the stream. Whoever that is may be waiting for a region.
	if t.b != nil {
		t.b.stash()
	}
}

// write hands the batch to the socket, as far as it goes. It reports whether
// there is a point in going on.
//
//rfc:5040 RDMAP-5.5-14-01 Send/Write not complete before DDP is done
//rfc:5041 DDP-5.4-01 Source completion means the LLP accepted responsibility only
func (s *stream) write() bool {
	t := &s.tx
	n, err := s.writeBatch()
	switch {
	case n > 0:
		s.moved.Add(uint64(n))
		t.since = int32(min(int(t.since)+n, batchOctets))
		if n >= int(t.apt) {
			t.apt = min(2*t.apt, batchOctets)
		}
		if t.taken = min(t.taken+1, mssBatches); t.b.written+uint64(n) < t.b.built {
			t.taken = 0
		}
		if t.taken == mssBatches {
			t.apt = batchOctets // the batches may have been short, but the socket took all
		}
		if out, ok := t.b.advance(n); ok {
			s.q.finishSends(out)
		}
		return true
	case errors.Is(err, transport.ErrWouldBlock):
		t.apt = min(max(2*t.since, batchSlow), batchOctets)
		t.taken, t.since = 0, 0
		t.undo()
		t.b.stash()
		if t.b.built == 0 {
			s.putBatch()
		}
		s.wantWrite(true)
		s.watch()
		return false
	}
	t.b.release()
	t.err = fmt.Errorf("send: %w", err)
	s.wantWrite(false)
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		s.fail(&ending{cause: t.err, lost: true})
	}
	// Otherwise what the peer sent before the connection broke may say why, a
	// Terminate above all. The receive side reads that, and ends the stream where
	// it ends.
	return false
}

// wantWrite switches the watching for room in the socket.
func (s *stream) wantWrite(on bool) {
	if s.blocked.Load() == on {
		return
	}
	s.blocked.Store(on)
	s.room.Store(false)
	if err := s.dev.poller.WantWrite(s.conn, on); err != nil {
		s.fail(&ending{cause: err, reset: true})
	}
}

// txIdle gives back what an idle stream must not keep, and does what was put off
// until everything is out.
func (s *stream) txIdle() {
	t := &s.tx
	t.b.release() // of a work request that could not be sent
	s.putBatch()
	s.wantWrite(false)
	if t.fault != nil {
		s.fail(t.fault)
		return
	}
	if s.closing.Load() && !t.fetching() && t.next == s.q.sq.tail.Load() && s.outstanding.Len() == 0 {
		s.sendFIN()
	}
}

func (s *stream) sendFIN() {
	if err := s.conn.CloseWrite(); err != nil {
		s.tx.err = fmt.Errorf("close: %w", err)
		return
	}
	s.finSent.Store(true)
	s.tellDrained()
	s.watchClosing()
}

// stop ends the transmit side and returns what must still go out, as records: the
// rest of the FPDU that is partly sent, and behind it the Terminate of e. rxMu and txMu
// are held.
//
//rfc:5040 RDMAP-5.4-05 Nothing sent after Terminate
//rfc:5040 RDMAP-7.1-02 Terminate at the earliest opportunity
func (t *txState) stop(s *stream, e *ending) [][]byte {
	var rest []byte
	t.endFetch(s)
	t.unhold(s.dev)
	dead := t.err != nil || e.lost || s.finSent.Load()
	if t.b != nil {
		switch {
		case dead:
		case t.markers:
			// Where markers lie was settled when the FPDUs were laid out, so
			// none of them can be left out.
			for _, p := range t.b.pending() {
				rest = append(rest, p...)
			}
		default:
			rest = t.b.remainder()
		}
		t.b.reset()
		s.dev.prog.batches.put(t.b)
		t.b = nil
	}
	if dead {
		return nil
	}
	var out [][]byte
	if len(rest) > 0 {
		out = append(out, rest)
	}
	if e.ulpdu != nil && s.maySend.Load() {
		fpdu, err := t.framer.AppendFPDU(nil, e.ulpdu)
		if err != nil {
			panic("engine: " + err.Error()) // a Terminate is short
		}
		out = append(out, fpdu)
	}
	return out
}

// batchLimit is up to how many octets go out together. With CRC it is what a cache
// keeps until the kernel copies it. Without, each vectored write of a long message
// costs much more than its octets: over loopback 1 MiB at a time is a third faster
// than 256 KiB. But what a socket doesn't take has to be copied (see stash), so that
// it must have shown for a while that it takes everything. FPDUs that it doesn't take may
// have been built for nothing (see undo), so that a socket that was full gets at first
// little more than it took before that.
func (t *txState) batchLimit() uint64 {
	if t.crc || t.taken < mssBatches {
		return uint64(t.apt)
	}
	return batchLong
}

// fill puts FPDUs into the batch until it is full or nothing more can be sent.
// A message that is longer than the batch goes on in the next.
func (s *stream) fill() {
	t := &s.tx
	if t.fetching() {
		return
	}
	if t.mssAge == 0 {
		emss := s.conn.MSS()
		t.emss, t.mulpdu = int32(emss), mpa.MULPDU(emss, t.markers)
	}
	t.mssAge = (t.mssAge + 1) % mssBatches
	t.b.limit = t.batchLimit()
	t.b.setTurn(int(t.turn))
	if t.msg == msgResponse {
		s.memoryAhead()
	}
	t.b.begun(t)
	for t.fault == nil && t.b.room() && !t.fetching() {
		if t.msg == msgNone {
			s.fillShort()
			if !t.b.room() || !s.nextMessage() {
				return
			}
			t.b.begun(t)
		}
		switch t.msg {
		case msgWork:
			s.fillWork()
		case msgReadRequest:
			s.fillReadRequest()
		case msgResponse:
			s.fillResponse()
		case msgRTR:
			s.fillRTR()
		case msgImmediate:
			s.fillImmediate()
		case msgAtomicRequest:
			s.fillAtomicRequest()
		case msgAtomicResponse:
			s.fillAtomicResponse()
		case msgMemory:
			t.msg = msgNone
			s.doMemory()
		}
	}
}

// nextMessage chooses what is sent next: send queue and responses take turns
// when both have something.
//
//rfc:5040 RDMAP-5.5-13-01 RDMAP submits in ULP order
//rfc:6581 MPA2-5-01 No later FPDU leaves the initiator before the RTR frame
func (s *stream) nextMessage() bool {
	t := &s.tx
	if t.rtr != 0 {
		t.msg = msgRTR
		return true
	}
	if t.answered {
		return s.nextWork() || s.nextResponse()
	}
	return s.nextResponse() || s.nextWork()
}

// nextWork starts the next WQE, unless it has to wait: for a place among the
// outstanding Reads, or as a fenced one for all of them.
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
		t.msg = msgReadRequest
		if w.op != provider.WRRDMARead {
			t.msg = msgAtomicRequest
		}
	case w.op == provider.WRSendWithImm:
		t.msg = msgImmediate
	case memoryOps.has(w.op):
		if !t.b.letGo() {
			return false
		}
		t.msg = msgMemory
	default:
		t.msg = msgWork
		t.seg = ddp.NewSegmenter(w.length, w.isWrite())
	}
	t.b.nspans = 0
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
	if !inline && w.length > 0 && b.nspans == 0 && !b.resolve(s.q.pd, sq.sgeRoom(t.next)[:w.nsge]) {
		clear(b.spans[:b.nspans])
		b.nspans = 0
		if !s.fillObjectWork(w) {
			s.failWork()
		}
		return
	}
	if b.nspans == 1 && s.fillLong(w) {
		return
	}
	seg, ok := t.seg.Next(t.mulpdu)
	if !ok {
		panic("engine: the MULPDU has no room for payload")
	}
	h := s.workHeader(w, seg)
	b.begin(&h, seg.Len, t)
	switch {
	case inline:
		b.copyIn(sq.inlineRoom(t.next)[seg.Offset:int(seg.Offset)+seg.Len], t)
	case seg.Len > 0:
		b.addSpans(uint64(seg.Offset), uint64(seg.Len), t)
	}
	b.end(t, t.next, seg.Last && w.op != provider.WRRDMAWriteWithImm)
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
		t.msg = msgImmediate
		return
	case provider.WRRDMAWrite:
		countOne(&sent.Write, w.length)
	default:
		countOne(&sent.Send, w.length)
		t.sendMSN++
	}
	t.msg = msgNone
	t.next++
}

func (s *stream) workHeader(w *sendWQE, seg ddp.Segment) ddp.Header {
	if w.isWrite() {
		return rdmap.WriteHeader(w.rkey, seg.TO(w.raddr), seg.Last)
	}
	return rdmap.SendHeader(sendOpcode(w), w.inv, s.tx.sendMSN, seg.MO(), seg.Last)
}

func sendOpcode(w *sendWQE) rdmap.Opcode {
	solicited := w.flags&provider.SendSolicited != 0
	switch {
	case w.op == provider.WRSendWithInv && solicited:
		return rdmap.OpSendSEInvalidate
	case w.op == provider.WRSendWithInv:
		return rdmap.OpSendInvalidate
	case solicited:
		return rdmap.OpSendSE
	}
	return rdmap.OpSend
}

// failWork gives up at WQE next, whose SGEs name what can't be sent. What was
// posted before it still goes out; then the peer is told.
//
//rfc:5040 RDMAP-7.1-01 Local ULP informed of error
//rfc:5040 RDMAP-7.1-1-01 Local error: Terminate without headers
func (s *stream) failWork() {
	t := &s.tx
	fault := s.workFault(t.next)
	s.q.failSend(t.next, provider.WCLocProtErr)
	t.fault = s.endTerminate(fault, nil, 0, nil)
	t.fault.event, t.fault.raise = provider.EventQPFatal, true
}

// fillReadRequest sends the request of a Read. It is pushed to the outstanding
// ones before it can be answered.
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
	// The sink has one STag and one TO on the wire. Where the octets go is for
	// the receive side, which knows the SGEs; the peer only echoes these two.
	r := rdmap.ReadRequest{Size: w.length, SourceSTag: w.rkey, SourceTO: w.raddr}
	if len(sges) > 0 {
		r.SinkSTag, r.SinkTO = sges[0].LKey, sges[0].Addr
	}
	s.outstanding.Push(rdmap.OutstandingRead{
		SinkSTag: r.SinkSTag, SinkTO: r.SinkTO, Size: r.Size, Cookie: uint64(t.next),
	})
	s.addReadRequest(&r)
	countOne(&s.q.counters().sent.ReadRequest, r.Size)
	t.msg = msgNone
	t.next++
}

// sinkUsable reports whether a Read can have these SGEs as its sink. They are
// looked up again when the octets come.
func (s *stream) sinkUsable(sges []provider.SGE) bool {
	spans, ok := resolveLocal(s.q.pd, sges, provider.AccessLocalWrite, s.tx.b.spans[:0])
	if ok {
		releaseSpans(spans)
	}
	clear(spans)
	return ok
}

func (s *stream) addReadRequest(r *rdmap.ReadRequest) {
	t := &s.tx
	h := rdmap.ReadRequestHeader(t.readMSN)
	t.readMSN++
	var room [rdmap.ReadRequestLen]byte
	t.b.begin(&h, rdmap.ReadRequestLen, t)
	t.b.copyIn(r.AppendTo(room[:0]), t)
	t.b.end(t, 0, false)
}

// rtrCookie marks a Read that no WQE waits for.
const rtrCookie = 1 << 63

// fillRTR sends the RTR indication: an empty message that tells a responder
// that it may send.
//
//rfc:6581 MPA2-9.2-08 Initiator emits one negotiated RTR after an accept with A=1
//rfc:6581 MPA2-9.2-15 Zero-length Write/Read RTR must not need a valid STag
func (s *stream) fillRTR() {
	t := &s.tx
	b := t.b
	switch t.rtr {
	case mpa.RTRRead:
		s.outstanding.Push(rdmap.OutstandingRead{Cookie: rtrCookie})
		s.addReadRequest(&rdmap.ReadRequest{})
	case mpa.RTRSend:
		h := rdmap.SendHeader(rdmap.OpSend, 0, t.sendMSN, 0, true)
		t.sendMSN++
		b.begin(&h, 0, t)
		b.end(t, 0, false)
	default:
		h := rdmap.WriteHeader(0, 0, true)
		b.begin(&h, 0, t)
		b.end(t, 0, false)
	}
	t.rtr = 0
	t.msg = msgNone
}
