package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// mssBatches is the number of batches after which TCP is asked for the MSS again, by a system call.
const mssBatches = 64

// fill puts FPDUs into the batch until it is full or nothing more can be sent. A message longer
// than the batch continues in the next.
func (tx *sender) fill() {
	if tx.mssAge == 0 {
		tx.format.SetEMSS(tx.s.conn.MSS())
	}
	tx.mssAge = (tx.mssAge + 1) % mssBatches
	tx.b.Prepare(&tx.format, tx.batch.Limit(), int(tx.budget))
	if tx.task == taskReadResponse {
		tx.memoryAhead()
	}
	tx.b.BeginMessage(tx.seg)
	for tx.fault == nil && tx.b.Room() && !tx.fetching() {
		if tx.task == taskNone {
			tx.fillShort()
			if !tx.b.Room() || !tx.nextMessage() {
				return
			}
			tx.b.BeginMessage(tx.seg)
		}
		switch tx.task {
		case taskSendOrWrite:
			tx.fillWork()
		case taskReadRequest:
			tx.fillReadRequest()
		case taskReadResponse:
			tx.fillResponse()
		case taskRTR:
			tx.fillRTR()
		case taskImmediate:
			tx.fillImmediate()
		case taskAtomicRequest:
			tx.fillAtomicRequest()
		case taskAtomicResponse:
			tx.fillAtomicResponse()
		case taskMemory:
			tx.task = taskNone
			tx.doMemory()
		}
	}
}

// nextMessage chooses what is sent next. If both the send queue and responses have something, they
// take turns.
//
//rfc:5040 RDMAP-5.5-13-01 RDMAP submits in ULP order
//rfc:6581 MPA2-5-01 No later FPDU leaves the initiator before the RTR frame
func (tx *sender) nextMessage() bool {
	if tx.rtr != 0 {
		tx.task = taskRTR
		return true
	}
	if tx.answered {
		return tx.nextWork() || tx.nextResponse()
	}
	return tx.nextResponse() || tx.nextWork()
}

// nextWork starts the next WQE, unless it has to wait for a place among the outstanding Reads, or,
// with a fence, for all of them.
//
//rfc:5040 RDMAP-5.5-02 Fence holds later Send/Write until reads are done
//rfc:5040 RDMAP-6.1-04 Outstanding outbound reads never above ORD
//rfc:5041 DDP-5.3-01 Messages transmitted in submission order
func (tx *sender) nextWork() bool {
	sq := &tx.q.sq
	if tx.next == sq.tail.Load() {
		return false
	}
	w := sq.at(tx.next)
	if w.flags&provider.SendFence != 0 && tx.s.outstanding.Len() > 0 {
		return false
	}
	switch {
	case answeredOps.has(w.op):
		if tx.s.outstanding.Full() {
			return false
		}
		tx.task = taskReadRequest
		if w.op != provider.WRRDMARead {
			tx.task = taskAtomicRequest
		}
	case w.op == provider.WRSendWithImm:
		tx.task = taskImmediate
	case memoryOps.has(w.op):
		if !tx.b.Released() {
			return false
		}
		tx.task = taskMemory
	default:
		tx.task = taskSendOrWrite
		tx.seg = ddp.NewSegmenter(w.length, w.isWrite())
	}
	tx.answered = false
	return true
}

// fillWork adds the next FPDU of a Send or Write.
//
//rfc:5040 RDMAP-5.1-04 Writes issued in order
//rfc:5040 RDMAP-5.3-07 Sends issued in order
func (tx *sender) fillWork() {
	b := tx.b
	sq := &tx.q.sq
	w := sq.at(tx.next)
	inline := w.flags&provider.SendInline != 0
	if !inline && w.length > 0 && !b.Resolve(&tx.q.pd.Domain, sq.sgeRoom(tx.next)[:w.nsge]) {
		if !tx.fillObjectWork(w) {
			tx.failWork()
		}
		return
	}
	head := w.head(tx.sendMSN)
	completes := w.op != provider.WRRDMAWriteWithImm
	if b.AddLong(head, &tx.seg, tx.next, completes) {
		if tx.seg.Done() {
			tx.endWork(w)
		}
		return
	}
	seg, ok := tx.seg.Next(tx.format.MULPDU)
	if !ok {
		panic("engine: the MULPDU has no room for payload")
	}
	h := head.Header(seg.MO(), seg.Last)
	if inline {
		b.Add(&h, sq.inlineRoom(tx.next)[seg.Offset:][:seg.Len], tx.next, seg.Last && completes)
	} else {
		b.AddResolved(&h, uint64(seg.Offset), uint64(seg.Len), tx.next, seg.Last && completes)
	}
	if seg.Last {
		tx.endWork(w)
	}
}

// endWork ends the Send or Write of WQE next, w.
func (tx *sender) endWork(w *sendWQE) {
	sent := &tx.q.counters().sent
	switch w.op {
	case provider.WRRDMAWriteWithImm:
		countOne(&sent.Write, w.length)
		tx.task = taskImmediate
		return
	case provider.WRRDMAWrite:
		countOne(&sent.Write, w.length)
	default:
		countOne(&sent.Send, w.length)
		tx.sendMSN++
	}
	tx.task = taskNone
	tx.next++
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
func (tx *sender) failWork() {
	fault := tx.q.workFault(tx.next)
	tx.q.failSend(tx.next, provider.WCLocProtErr)
	tx.fault = endTerminate(errLocalWork, nil, 0, nil)
	tx.fault.blame(fault)
	tx.fault.event, tx.fault.raise = provider.EventQPFatal, true
}

// fillImmediate adds the Immediate Data of WQE next: after its Write, or alone.
//
//rfc:7306 EXT-6.3-04 Exactly 8 octets of immediate data sent
//rfc:7306 EXT-6.3-06 Immediates issued in order
func (tx *sender) fillImmediate() {
	w := tx.q.sq.at(tx.next)
	h := rdmap.ImmediateHeader(w.flags&provider.SendSolicited != 0, tx.sendMSN)
	tx.sendMSN++
	var room [rdmap.ImmediateLen]byte
	tx.b.Add(&h, rdmap.AppendImmediate(room[:0], uint64(w.immOrInv)<<immShift), tx.next, true)
	countOne(&tx.q.counters().sent.Immediate, rdmap.ImmediateLen)
	tx.task = taskNone
	tx.next++
}

// Runs of short messages are built in one loop (frames.Batch.AddShort), because the general path
// (nextMessage, fillWork) takes more time for each message. The loop leaves to the general path
// what waits for a Read, has several SGEs or can't be sent.

// fillShort adds the next messages of the send queue as long as they are Sends and Writes of one
// FPDU with copied payload. The transmit side is between two messages.
//
//rfc:5040 RDMAP-5.1-04 Writes issued in order
//rfc:5040 RDMAP-5.3-07 Sends issued in order
func (tx *sender) fillShort() {
	b := tx.b
	sq := &tx.q.sq
	longest := tx.format.ShortMost()
	if longest < 0 || tx.rtr != 0 || tx.next == sq.tail.Load() {
		return // an idle stream has no counters; they are made below
	}
	sent := &tx.q.counters().sent
	domain := &tx.q.pd.Domain
	var m *memory.Region // region of the WQE before
	for tail := sq.tail.Load(); tx.next != tail && b.Room(); tx.next++ {
		w := sq.at(tx.next)
		if w.length > uint32(longest) || w.flags&provider.SendFence != 0 ||
			!shortOps.has(w.op) || tx.s.inbound.Front() != nil {
			break
		}
		payload, ok := []byte(nil), w.length == 0
		switch {
		case ok:
		case w.flags&provider.SendInline != 0:
			payload, ok = sq.inlineRoom(tx.next)[:w.length], true
		case w.nsge == 1:
			sge := &sq.sgeRoom(tx.next)[0]
			if m == nil || m.STag() != sge.LKey {
				m = b.Region(domain, sge.LKey)
			}
			if m != nil {
				payload, ok = m.Octets(domain, sge, 0)
			}
		}
		if !ok {
			break
		}
		head := w.head(tx.sendMSN)
		if w.op == provider.WRRDMAWrite {
			countOne(&sent.Write, w.length)
		} else {
			countOne(&sent.Send, w.length)
			tx.sendMSN++
		}
		tx.answered = false
		b.AddShort(head, payload, tx.next)
	}
	b.EndRun()
}

// doMemory does the work of WQE next. The batch uses no region. doMemory waits for uses by others,
// which last as long as a copy.
func (tx *sender) doMemory() {
	q := tx.q
	w := q.sq.at(tx.next)
	var err error
	if w.op == provider.WRLocalInv {
		err = q.peer.InvalidateLocal(w.immOrInv)
	} else {
		o := q.sq.memoryAt(tx.next)
		err = o.Do(&q.peer, w.rkey)
		*o = memory.Work{}
	}
	if err != nil {
		tx.failMemory(err)
		return
	}
	q.finishWQE(tx.next)
	tx.next++
}

// memoryAhead does the next work on our own memory of the send queue when no message can begin: in
// the middle of a response, with a full socket, or on a responder that must not send yet. So no
// peer delays an invalidation by not reading. The batch uses no region then, because its bytes were
// copied or sent.
//
//rfc:5041 DDP-8.3-2-01 STag validity can be revoked any time
func (tx *sender) memoryAhead() {
	sq := &tx.q.sq
	for (tx.task == taskNone || tx.task == taskReadResponse) &&
		tx.fault == nil && !tx.s.over() && tx.next != sq.tail.Load() {
		w := sq.at(tx.next)
		if !memoryOps.has(w.op) || w.flags&provider.SendFence != 0 && tx.s.outstanding.Len() > 0 ||
			tx.b != nil && !tx.b.Released() {
			return
		}
		tx.doMemory()
	}
}

// undoMemory undoes work on our own memory that is done but will be reported as flushed, because an
// earlier post is not over. A program that sees the flush does not expect that peers can reach the
// region. The newest work is undone first, because a window may be bound to a region that was
// registered before it. rx.mu and tx.mu are held, and neither side uses a region any more.
func (tx *sender) undoMemory() {
	sq := &tx.q.sq
	sq.done.Lock()
	head := sq.head
	sq.done.Unlock()
	// head is at most next. With != instead, a fault that breaks this would cost 2^32 rounds.
	for i := tx.next; int32(i-head) > 0; {
		i--
		w := sq.at(i)
		if !w.finished || w.op != provider.WRBindMW && w.op != opRegMR {
			continue
		}
		tx.q.peer.Undo(w.rkey)
	}
}

// failMemory gives up at WQE next, as failWork does for messages.
//
//rfc:5040 RDMAP-7.1-1-01 Local error: Terminate without headers
func (tx *sender) failMemory(err error) {
	tx.q.failSend(tx.next, provider.WCMWBindErr)
	tx.fault = endTerminate(err, nil, 0, nil)
	tx.fault.event, tx.fault.raise = provider.EventQPFatal, true
}
