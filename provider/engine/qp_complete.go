package engine

import "github.com/govs-rdma/govs/provider"

// wcOpcodes maps operations to the opcodes of their completions.
var wcOpcodes = [...]provider.WCOpcode{
	provider.WRRDMAWrite:        provider.WCRDMAWrite,
	provider.WRRDMAWriteWithImm: provider.WCRDMAWrite,
	provider.WRSend:             provider.WCSend,
	provider.WRSendWithImm:      provider.WCSend,
	provider.WRRDMARead:         provider.WCRDMARead,
	provider.WRSendWithInv:      provider.WCSend,

	provider.WRAtomicCmpAndSwp:       provider.WCCompSwap,
	provider.WRAtomicFetchAdd:        provider.WCFetchAdd,
	provider.WRMaskedAtomicCmpAndSwp: provider.WCCompSwap,
	provider.WRMaskedAtomicFetchAdd:  provider.WCFetchAdd,

	provider.WRBindMW:   provider.WCBindMW,
	provider.WRLocalInv: provider.WCLocalInv,
	opRegMR:             provider.WCRegMR,
}

// finishSends notes that the Sends and Writes before WQE out are over, and reports what can be
// reported now.
//
//rfc:5040 RDMAP-5.5-15-01 Local completions in submission order
func (q *qp) finishSends(out uint32) {
	q.sq.done.Lock()
	q.sq.out = out
	q.reportSends()
	q.sq.done.Unlock()
}

// finishWQE records that WQE i, one of flaggedOps, has finished: a Read, an atomic operation, or
// work on our own memory. It reports what can be reported now.
func (q *qp) finishWQE(i uint32) {
	q.sq.done.Lock()
	q.sq.at(i).finished = true
	q.reportSends()
	q.sq.done.Unlock()
}

// signalsAll returns the flag that each work request has because of SQSigAll.
func (q *qp) signalsAll() provider.SendFlags {
	if q.init.SQSigAll {
		return provider.SendSignaled
	}
	return 0
}

// reportSends reports finished WQEs up to the first unfinished one. sq.done is held.
func (q *qp) reportSends() {
	s := &q.sq
	always := q.signalsAll()
	for tail := s.tail.Load(); s.head != tail; s.head++ {
		w := s.at(s.head)
		switch {
		case flaggedOps.has(w.op):
			if !w.finished {
				return
			}
			if s.head == s.out {
				s.out++ // it is never less than head
			}
		case int32(s.out-s.head) <= 0: // from here on, only work that the peer has answered is over
			return
		}
		if (w.flags|always)&provider.SendSignaled == 0 {
			continue
		}
		wc := provider.WC{WRID: w.wrid, Opcode: wcOpcodes[w.op], QPN: q.qpn}
		if answeredOps.has(w.op) {
			wc.ByteLen = w.length
		}
		s.free.report(s.head + 1) // before the completion can be seen
		q.sendCQ.push(wc, false)
	}
}

// failSend records the status with which WQE i fails; flushing reports it.
func (q *qp) failSend(i uint32, status provider.WCStatus) {
	q.sq.done.Lock()
	q.sq.at(i).status = status
	q.sq.done.Unlock()
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
