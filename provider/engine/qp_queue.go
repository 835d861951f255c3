package engine

import (
	"sync/atomic"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// sendWQE is a work request in the send queue. The poster fills it; from then
// on the transmit side reads it, and what is below done belongs to sendQueue.done.
type sendWQE struct {
	wrid   uint64
	raddr  uint64
	rkey   uint32
	inv    uint32 // what goes with the message: the STag to invalidate, or the immediate data
	length uint32 // octets of the message
	op     provider.WROpcode
	flags  provider.SendFlags
	nsge   uint16

	finished bool              // of flaggedOps: it is over, and waits for its turn to be reported
	status   provider.WCStatus // why it failed, if it did
}

// sendQueue is a ring of WQEs between three indexes that run freely:
//
//	free <= head <= (next of the transmit side) <= tail
//	head <= out
//
// From free to head are WQEs that were unsignalled and successful. Their places
// are given back when a later one is reported, which is what the man page of
// ibv_post_send makes programs rely on, or when a poster finds the queue full:
// siw and rxe give them back then, too, and Drain and Shutdown need a place in a
// queue of unsignalled work.
type sendQueue struct {
	wqes      []sendWQE
	sges      []provider.SGE
	inline    []byte
	atomics   []atomicOperands // made with the first atomic operation
	memory    *memoryQueue     // made with the first work on our own memory
	maxSGE    int
	maxInline int

	mu   sched.Mutex[locks.SendPosting] // of posters
	tail sched.Uint32                   // written under mu, behind the WQE

	done sched.Mutex[locks.SendDone] // of completing
	out  uint32                      // Sends and Writes before this one are over
	head uint32                      // oldest WQE not reported
	free atomic.Uint32               // written under done
}

// grow makes the ring if there is none, and reports whether there was none. Until
// the first post the queue is one of no places, and thereby full, so that posting
// asks only where it would fail. mu is held; all others look at the ring behind
// tail.
func (s *sendQueue) grow(places uint32) bool {
	if s.wqes != nil {
		return false
	}
	n := int(places)
	s.wqes = make([]sendWQE, n)
	s.sges = make([]provider.SGE, n*s.maxSGE)
	s.inline = make([]byte, n*s.maxInline)
	return true
}

func (s *sendQueue) at(i uint32) *sendWQE { return &s.wqes[i&uint32(len(s.wqes)-1)] }

// sgeRoom is where the SGEs of WQE i are.
func (s *sendQueue) sgeRoom(i uint32) []provider.SGE {
	at := int(i&uint32(len(s.wqes)-1)) * s.maxSGE
	return s.sges[at : at+s.maxSGE]
}

// inlineRoom is where the inline payload of WQE i is.
func (s *sendQueue) inlineRoom(i uint32) []byte {
	at := int(i&uint32(len(s.wqes)-1)) * s.maxInline
	return s.inline[at : at+s.maxInline]
}

// full reports whether there is no place for a WQE at tail. s.mu is held.
func (s *sendQueue) full(tail uint32) bool { return tail-s.free.Load() == uint32(len(s.wqes)) }

// makeRoom makes the ring if there is none, or gives back the places of unsignalled
// WQEs that are over, and reports whether there is a place for a WQE at tail now.
// s.mu is held.
func (s *sendQueue) makeRoom(tail, places uint32) bool {
	if s.grow(places) {
		return true
	}
	s.done.Lock()
	s.free.Store(s.head)
	s.done.Unlock()
	return !s.full(tail)
}

// recvWQE is a work request in the receive queue.
type recvWQE struct {
	wrid   uint64
	length uint32 // octets that its SGEs hold together, as far as a message can have them
	nsge   uint16
}

// recvQueue is a ring of WQEs. The receive side takes the one at head for as long
// as a message is under way, and advances head when it is reported.
type recvQueue struct {
	wqes   []recvWQE
	sges   []provider.SGE
	maxSGE int

	mu   sched.Mutex[locks.RecvPosting] // of posters
	tail sched.Uint32                   // written under mu, behind the WQE

	done sched.Mutex[locks.RecvDone] // of flushing; the receive side needs none while the stream lives
	head atomic.Uint32               // written by the receive side, or under done
}

// grow is sendQueue.grow. A queue without places stays full.
func (r *recvQueue) grow(places uint32) bool {
	if r.wqes != nil || places == 0 {
		return false
	}
	n := int(places)
	r.wqes = make([]recvWQE, n)
	r.sges = make([]provider.SGE, n*r.maxSGE)
	return true
}

func (r *recvQueue) at(i uint32) *recvWQE { return &r.wqes[i&uint32(len(r.wqes)-1)] }

func (r *recvQueue) sgeRoom(i uint32) []provider.SGE {
	at := int(i&uint32(len(r.wqes)-1)) * r.maxSGE
	return r.sges[at : at+r.maxSGE]
}

// full reports whether there is no place for a WQE at tail. r.mu is held.
func (r *recvQueue) full(tail uint32) bool { return tail-r.head.Load() == uint32(len(r.wqes)) }

// front returns the oldest WQE and its SGEs, or nil if none is posted.
func (r *recvQueue) front() (*recvWQE, []provider.SGE) {
	h := r.head.Load()
	if h == r.tail.Load() {
		return nil, nil
	}
	w := r.at(h)
	return w, r.sgeRoom(h)[:w.nsge]
}

// wcOpcodes are the completions' names of the operations that the engine has.
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

// finishSends notes that the Sends and Writes before WQE out are over, and
// reports what is to be reported now.
//
//rfc:5040 RDMAP-5.5-15-01 Local completions in submission order
func (q *qp) finishSends(out uint32) {
	q.sq.done.Lock()
	q.sq.out = out
	q.reportSends()
	q.sq.done.Unlock()
}

// finishRead notes that WQE i is over, which is one of those that don't end with their
// last octet: a Read or atomic operation, or one on our own memory. It reports what is
// to be reported now.
func (q *qp) finishRead(i uint32) {
	q.sq.done.Lock()
	q.sq.at(i).finished = true
	q.reportSends()
	q.sq.done.Unlock()
}

// reportSends reports finished WQEs up to the first that is not. sq.done is held.
func (q *qp) reportSends() {
	s := &q.sq
	var always provider.SendFlags
	if q.init.SQSigAll {
		always = provider.SendSignaled
	}
	for tail := s.tail.Load(); s.head != tail; s.head++ {
		w := s.at(s.head)
		switch {
		case flaggedOps.has(w.op):
			if !w.finished {
				return
			}
			if s.head == s.out {
				s.out++ // it never falls behind head
			}
		case int32(s.out-s.head) <= 0: // from here on, only what the peer has answered is over
			return
		}
		if (w.flags|always)&provider.SendSignaled == 0 {
			continue
		}
		wc := provider.WC{WRID: w.wrid, Opcode: wcOpcodes[w.op], QPN: q.qpn}
		if answeredOps.has(w.op) {
			wc.ByteLen = w.length
		}
		s.free.Store(s.head + 1) // whoever sees the completion finds the place free
		q.sendCQ.push(wc, false)
	}
}

// failSend records why WQE i fails; flushing reports it.
func (q *qp) failSend(i uint32, status provider.WCStatus) {
	q.sq.done.Lock()
	q.sq.at(i).status = status
	q.sq.done.Unlock()
}

// flushSends completes everything in the send queue in error, unsignalled WQEs
// too, and reports whether there was anything. WQEs that had finished behind an
// unfinished one are flushed as well: nothing succeeds behind a failure. The QP
// is in ERR, and sq.done is held.
//
//rfc:5040 RDMAP-6.2.1-02 After Terminate outstanding WRs complete in error
//rfc:5041 DDP-6.2.2-02 Outstanding requests complete in error
func (q *qp) flushSends() bool {
	s := &q.sq
	tail := s.tail.Load()
	any := s.head != tail
	if any {
		q.counters().flushedSends.Add(uint64(tail - s.head))
	}
	for ; s.head != tail; s.head++ {
		w := s.at(s.head)
		status := w.status
		if status == provider.WCSuccess {
			status = provider.WCWRFlushErr
		}
		wc := provider.WC{WRID: w.wrid, Status: status, Opcode: wcOpcodes[w.op], QPN: q.qpn}
		s.dropMemory(s.head)
		s.free.Store(s.head + 1)
		q.sendCQ.push(wc, true)
	}
	s.out = s.head // for the next connection
	return any
}

// forget empties the queue without a completion. done is held.
func (s *sendQueue) forget() {
	for tail := s.tail.Load(); s.head != tail; s.head++ {
		s.dropMemory(s.head)
	}
	s.out = s.head // for the next connection
	s.free.Store(s.head)
}

// dropMemory drops what WQE i refers to, if it is work on our own memory, which is not to
// be done any more. Its place must not be free yet.
func (s *sendQueue) dropMemory(i uint32) {
	if op := s.at(i).op; op == provider.WRBindMW || op == opRegMR {
		*s.memoryAt(i) = memoryOperands{}
	}
}

// finishRecv reports the WQE at the head of the receive queue and gives its
// place back. wc.Opcode is zero for WCRecv. Only the receive side calls it, and only
// without an SRQ.
func (q *qp) finishRecv(wc provider.WC, solicited bool) {
	h := q.rq.head.Load()
	wc.WRID, wc.QPN = q.rq.at(h).wrid, q.qpn
	wc.Opcode |= provider.WCRecv // a bit that all receives have
	q.countRecv(q.rq.tail.Load() - h - 1)
	q.rq.head.Store(h + 1)
	q.recvCQ.push(wc, solicited)
}

// flushRecvs completes everything in the receive queue in error. first is the
// status of the oldest, if it is not to be a flush. The QP is in ERR, and
// rq.done is held.
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
	if h != tail {
		q.counters().flushedRecvs.Add(uint64(tail - h))
	}
	for ; h != tail; h++ {
		wc := provider.WC{WRID: r.at(h).wrid, Status: status, Opcode: provider.WCRecv, QPN: q.qpn}
		r.head.Store(h + 1)
		q.recvCQ.push(wc, true)
		status = provider.WCWRFlushErr
	}
}
