package engine

import (
	"sync/atomic"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// recvWQE is a work request in the receive queue.
type recvWQE struct {
	wrid   uint64
	length uint32 // bytes that its SGEs hold together, up to the longest message
	nsge   uint16
}

// recvQueue is a ring of WQEs. The receive side uses the WQE at head as long as a message is under
// way, and advances head when it reports the receive.
type recvQueue struct {
	wqes   []recvWQE
	sges   []provider.SGE
	maxSGE int

	mu   sched.Mutex[locks.RecvPosting] // guards posting
	tail sched.Uint32                   // written under mu, after the WQE

	done sched.Mutex[locks.RecvDone] // of flushing; the receive side needs none while the stream lives
	head atomic.Uint32               // written by the receive side, or under done
}

// grow makes the ring if there is none, and reports whether it did. A queue without places stays
// full.
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

// sharedRecv replaces the receive queue of a QP whose receives come from an SRQ, or from a queue
// that the program keeps. It holds the receive of the message under way. The receive side of the
// stream uses it; when the stream is over, flushing does, under rq.done.
type sharedRecv struct {
	srq  *srq                // nil if the program keeps the queue
	own  provider.RecvSource // the queue that the program keeps
	pd   *pd                 // PD of the receives' SGEs
	held bool
	wqe  recvWQE
	sges []provider.SGE // room for as many SGEs as a receive of the SRQ has
}

// share makes one more QP a dependant of s.
func (d *device) share(op string, s provider.SRQ) (*sharedRecv, error) {
	r, ok := s.(*srq)
	if !ok || r == nil || r.pd.dev != d {
		return nil, failForeign(op, "SRQ")
	}
	if !r.refs.Hold() {
		return nil, failClosed(op, "srq")
	}
	return &sharedRecv{srq: r, pd: r.pd, sges: make([]provider.SGE, r.maxSGE)}, nil
}

// nextRecv takes the oldest receive of a queue that the program keeps. It reports false if there
// is none.
func nextRecv(from provider.RecvSource, w *recvWQE, sges []provider.SGE) bool {
	returned := false
	defer mustReturn(&returned)
	wrid, n, ok := from.NextRecv(sges)
	returned = true
	if !ok {
		return false
	}
	*w = recvWQE{wrid: wrid, length: uint32(min(sgeOctets(sges[:n]), maxMsgSize)), nsge: uint16(n)}
	return true
}

// srq returns the QP's SRQ, nil if it has none.
func (q *qp) srq() *srq {
	if q.shared == nil {
		return nil
	}
	return q.shared.srq
}

// unshare undoes share.
func (q *qp) unshare() {
	if r := q.srq(); r != nil {
		r.refs.Drop()
	}
}

// front returns the receive of the message under way, its SGEs and their PD; nil if there is none.
// It is called for each segment, and again for the rest of a segment. The first call for a message
// takes a receive.
func (h *sharedRecv) front() (*recvWQE, []provider.SGE, *pd) {
	if !h.held {
		if h.srq != nil {
			h.held = h.srq.pop(&h.wqe, h.sges)
		} else {
			h.held = nextRecv(h.own, &h.wqe, h.sges)
		}
		if !h.held {
			return nil, nil, h.pd
		}
	}
	return &h.wqe, h.sges[:h.wqe.nsge], h.pd
}

// frontRecv returns the receive for the message under way, its SGEs and their PD: the oldest of the
// QP's own queue, or the one taken from the SRQ. The receive is nil if there is none.
func (q *qp) frontRecv() (*recvWQE, []provider.SGE, *pd) {
	if q.shared != nil {
		return q.shared.front()
	}
	w, sges := q.rq.front()
	return w, sges, q.pd
}

// finishShared ends the use of the receive of the message that has ended, on a QP without a receive
// queue, and returns the WRID.
func (q *qp) finishShared() (wrid uint64) {
	q.shared.held = false
	return q.shared.wqe.wrid
}

// flushShared completes the receive of the message under way, if there is one, in error: with
// status, or as flushed if that is WCSuccess. Receives in the SRQ stay for other QPs; receives of a
// queue that the program keeps for this QP are flushed. The QP is in ERR, and rq.done is held.
func (q *qp) flushShared(status provider.WCStatus) {
	h := q.shared
	if h.held {
		h.held = false
		q.flushTaken(status)
	}
	if h.own != nil {
		for nextRecv(h.own, &h.wqe, h.sges) {
			q.flushTaken(provider.WCSuccess)
		}
	}
}

// flushTaken completes the taken receive in error: with status, or as flushed.
func (q *qp) flushTaken(status provider.WCStatus) {
	if status == provider.WCSuccess {
		status = provider.WCWRFlushErr
		q.counters().flushedRecvs.Add(1)
	}
	q.recvCQ.push(provider.WC{WRID: q.shared.wqe.wrid, Status: status, Opcode: provider.WCRecv,
		QPN: q.qpn}, true)
}

// recvRefusal returns why the QP has no receive queue of its own; err if it has one.
func (q *qp) recvRefusal(err error) error {
	switch {
	case q.srq() != nil:
		return errHasSRQ
	case q.shared != nil:
		return errHasSource
	}
	return err
}
