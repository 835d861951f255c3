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

// sgeOctets returns the bytes of the SGEs. It can't overflow, because there are few SGEs with
// 32-bit lengths.
func sgeOctets(sges []provider.SGE) uint64 {
	var n uint64
	for i := range sges {
		n += uint64(sges[i].Length)
	}
	return n
}
