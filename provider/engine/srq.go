package engine

import (
	"fmt"
	"math"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/refs"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// srq is a shared receive queue. Its children are the QPs that were made with it.
//
// Unlike with a QP's own queue, several QPs take from it at once. So one lock guards both ends of
// the ring, held as long as a work request is copied.
type srq struct {
	pd     *pd
	cookie any
	maxSGE int
	recvs  provider.RecvSource // has the receives; nil for the ring
	refs   refs.Count

	mu         sched.Mutex[locks.SRQ] // guards what follows; nothing else is locked under it
	wqes       []recvWQE              // a ring, nil before the first post
	sges       []provider.SGE
	places     uint32 // of the ring, a power of two
	head, tail uint32 // run freely
	limit      uint32 // below which one event is due, 0 for none
	closed     bool
	posted     uint64 // receives that were posted
	empty      uint64 // messages that found none
	lowest     uint32 // see SRQStats.LowestRecvs; math.MaxUint32 for none
}

// CreateSRQ implements provider.PD. The number of receives granted is MaxWR rounded up to a power
// of two. Errors: EINVAL for no receives, or sizes above the limits of Device.Query; ENOMEM for one
// SRQ more than its limit.
func (p *pd) CreateSRQ(init provider.SRQInitAttr) (provider.SRQ, error) {
	const op = "ibv_create_srq"
	a := &init.Attr
	if a.MaxWR < 1 || a.MaxWR > maxSRQWR || a.MaxSGE < 0 || a.MaxSGE > maxSGE {
		return nil, fail(op, fmt.Sprintf("%d receives of %d SGEs", a.MaxWR, a.MaxSGE),
			fmt.Errorf("MaxWR must be from 1 to %d, and MaxSGE from 0 to %d: %w",
				maxSRQWR, maxSGE, syscall.EINVAL))
	}
	if !p.Refs.Hold() {
		return nil, failClosed(op, p.name())
	}
	if err := p.dev.srqs.Take(); err != nil {
		p.Refs.Drop()
		return nil, fail(op, "", err)
	}
	return &srq{pd: p, cookie: init.Cookie, recvs: init.Recvs, maxSGE: a.MaxSGE,
		places: uint32(roundUp(a.MaxWR)), lowest: math.MaxUint32}, nil
}

// Cookie implements provider.SRQ.
func (r *srq) Cookie() any { return r.cookie }

// PostRecv implements provider.SRQ. Errors: EINVAL for too many SGEs, ENOMEM when
// the queue is full.
func (r *srq) PostRecv(wrs []provider.RecvWR) (int, error) {
	n, err := r.enqueue(wrs)
	if err != nil {
		err = failPost("ibv_post_srq_recv", "srq", n, err)
	}
	return n, err
}

func (r *srq) enqueue(wrs []provider.RecvWR) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, os.ErrClosed
	}
	if r.recvs != nil && len(wrs) > 0 {
		return 0, errHasSource
	}
	if r.wqes == nil && len(wrs) > 0 {
		r.wqes, r.sges = r.newRing(r.places)
	}
	for n := range wrs {
		wr := &wrs[n]
		switch {
		case len(wr.SGList) > r.maxSGE:
			return n, fmt.Errorf("%d SGEs, and the shared receive queue was made for %d (SRQAttr.MaxSGE): %w", len(wr.SGList), r.maxSGE, syscall.EINVAL)
		case r.tail-r.head == r.places:
			return n, &fullError{queue: "shared receive", places: r.places}
		}
		i := int(r.tail & (r.places - 1))
		r.wqes[i] = recvWQE{wrid: wr.WRID, length: uint32(min(sgeOctets(wr.SGList), maxMsgSize)), nsge: uint16(len(wr.SGList))}
		copy(r.sges[i*r.maxSGE:], wr.SGList)
		r.tail++
		r.posted++
	}
	return len(wrs), nil
}

var errHasSource = fmt.Errorf("its receives come from a RecvSource; add them there: %w",
	syscall.EINVAL)

var errHasSRQ = fmt.Errorf("the queue pair has a shared receive queue; post to that: %w", syscall.EINVAL)

func (r *srq) newRing(places uint32) ([]recvWQE, []provider.SGE) {
	return make([]recvWQE, places), make([]provider.SGE, int(places)*r.maxSGE)
}

// pop moves the oldest receive to w and sges, which holds maxSGE, or reports false
// if there is none. The place is free from then on.
func (r *srq) pop(w *recvWQE, sges []provider.SGE) bool {
	r.mu.Lock()
	if r.recvs != nil {
		defer r.mu.Unlock()
		return !r.closed && nextRecv(r.recvs, w, sges)
	}
	if r.head == r.tail {
		r.mu.Unlock()
		return false
	}
	i := int(r.head & (r.places - 1))
	*w = r.wqes[i]
	copy(sges, r.sges[i*r.maxSGE:][:w.nsge])
	r.head++
	left := r.tail - r.head
	r.lowest = min(r.lowest, left)
	low := left < r.limit
	if low {
		r.limit = 0 // one event per Modify
	}
	r.mu.Unlock()
	if low {
		r.pd.dev.raise(provider.AsyncEvent{Type: provider.EventSRQLimitReached, SRQ: r})
	}
	return true
}

const srqMask = provider.SRQAttrMaxWR | provider.SRQAttrLimit

// Modify implements provider.SRQ. A size is rounded up to a power of two. Errors:
// EINVAL for a mask with other bits, no receives or more than Device.Query returns,
// fewer than are posted, and a limit beyond the size.
func (r *srq) Modify(attr provider.SRQAttr, mask provider.SRQAttrMask) error {
	if err := r.modify(&attr, mask); err != nil {
		return fail("ibv_modify_srq", "srq", err)
	}
	return nil
}

func (r *srq) modify(attr *provider.SRQAttr, mask provider.SRQAttrMask) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return os.ErrClosed
	}
	if r.recvs != nil {
		return errHasSource
	}
	places, limit := r.places, int(r.limit)
	if mask&provider.SRQAttrMaxWR != 0 {
		if attr.MaxWR < 1 || attr.MaxWR > maxSRQWR {
			return outside("MaxWR", attr.MaxWR, 1, maxSRQWR)
		}
		places = uint32(roundUp(attr.MaxWR))
	}
	if mask&provider.SRQAttrLimit != 0 {
		limit = attr.Limit
	}
	posted := r.tail - r.head
	switch {
	case mask&^srqMask != 0:
		return fmt.Errorf("attributes %#x can't be changed: %w", uint32(mask&^srqMask), syscall.EINVAL)
	case places < posted:
		return fmt.Errorf("it has %d receives, and the new size is %d: %w",
			posted, places, syscall.EINVAL)
	case limit < 0 || limit > int(places):
		return outside("Limit", limit, 0, int(places))
	}
	if places != r.places {
		r.resize(places)
	}
	r.limit = uint32(limit)
	return nil
}

// resize moves the posted receives to a ring of another size, which has room for them. mu is held.
func (r *srq) resize(places uint32) {
	if r.wqes != nil {
		wqes, sges := r.newRing(places)
		n := uint32(0)
		for ; r.head != r.tail; r.head++ {
			i := int(r.head & (r.places - 1))
			wqes[n] = r.wqes[i]
			copy(sges[int(n)*r.maxSGE:], r.sges[i*r.maxSGE:][:r.maxSGE])
			n++
		}
		r.wqes, r.sges, r.head, r.tail = wqes, sges, 0, n
	}
	r.places = places
}

// Query implements provider.SRQ.
func (r *srq) Query() (provider.SRQAttr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return provider.SRQAttr{}, failClosed("ibv_query_srq", "srq")
	}
	return provider.SRQAttr{MaxWR: int(r.places), MaxSGE: r.maxSGE, Limit: int(r.limit)}, nil
}

// foundEmpty counts a message that found no receive.
func (r *srq) foundEmpty() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.empty++
}

// Stats implements provider.SRQStater.
func (r *srq) Stats() (provider.SRQStats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return provider.SRQStats{}, failClosed("stats", "srq")
	}
	left := r.tail - r.head
	st := provider.SRQStats{Posted: r.posted, Taken: r.posted - uint64(left), Empty: r.empty,
		RecvsPosted: int(left), LowestRecvs: -1}
	if r.lowest != math.MaxUint32 {
		st.LowestRecvs = int(r.lowest)
	}
	return st, nil
}

// Close implements provider.SRQ. What is posted is forgotten without a completion,
// as are events of the SRQ that the program has not taken.
func (r *srq) Close() error {
	first, busy := r.refs.End()
	if busy {
		return failBusy("ibv_destroy_srq", "srq", "QPs")
	}
	if !first {
		return nil
	}
	r.mu.Lock()
	r.closed = true
	r.wqes, r.sges, r.head, r.tail = nil, nil, 0, 0
	r.mu.Unlock()
	dev := r.pd.dev
	dev.forget(func(e provider.AsyncEvent) bool { return e.SRQ == r })
	dev.srqs.Give()
	r.pd.Refs.Drop()
	return nil
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

// unshare undoes share.
func (q *qp) unshare() {
	if r := q.srq(); r != nil {
		r.refs.Drop()
	}
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
