package bridge

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// wqeHead is what of an abi.SiwSQE or an abi.SiwRQE is in its word, in the byte order of the
// machine.
type wqeHead struct {
	flags          uint16
	numSGE, opcode uint8
}

// loadHead reads the word of an element.
func loadHead(element unsafe.Pointer) wqeHead {
	w := atomic.LoadUint32(word(element))
	return *(*wqeHead)(unsafe.Pointer(&w))
}

// release gives the place of an element back to the program.
func release(element unsafe.Pointer) { atomic.StoreUint32(word(element), 0) }

// recvRing is a receive queue, of a QP or an SRQ, that the program maps. It is the RecvSource of
// the device's QP or SRQ. A place is the program's again when a message takes the receive, as with
// siw.
type recvRing struct {
	mem  *queueMemory
	size uint32 // elements, a power of two

	low func() // reports that the limit is reached; nil for the queue of a QP

	mu     sync.Mutex
	get    uint32
	limit  uint32 // below which one event is due
	armed  bool
	closed bool
}

const rqeSize = unsafe.Sizeof(abi.SiwRQE{})

func (r *recvRing) at(i uint32) *abi.SiwRQE {
	return (*abi.SiwRQE)(unsafe.Pointer(&r.mem.mem[uintptr(i&(r.size-1))*rqeSize]))
}

// NextRecv implements ibverbs.RecvSource. A receive with more SGEs than an element has is none, as
// with siw.
func (r *recvRing) NextRecv(sges []ibverbs.SGE) (wrid uint64, n int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, 0, false
	}
	e := r.at(r.get)
	head := loadHead(unsafe.Pointer(e))
	if head.flags&abi.SiwWQEValid == 0 || int(head.numSGE) > min(len(sges), abi.SiwMaxSGE) {
		return 0, 0, false
	}
	copySGEs(sges, e.SGE[:head.numSGE])
	wrid = e.ID
	release(unsafe.Pointer(e))
	r.checkLimit()
	r.get++
	return wrid, int(head.numSGE), true
}

// checkLimit raises the event of the limit, once, if fewer receives are left than it says. The one
// at get has just been taken. mu is held.
func (r *recvRing) checkLimit() {
	if !r.armed || loadHead(unsafe.Pointer(r.at(r.get+r.limit))).flags&abi.SiwWQEValid != 0 {
		return
	}
	r.armed = false
	go r.low() // not with the device's locks
}

// arm sets the limit, 0 for none.
func (r *recvRing) arm(limit uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limit, r.armed = limit, limit != 0
}

// close ends the queue, which the device no longer takes from.
func (r *recvRing) close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.mem.free()
}

// copySGEs copies what the program may change at any time.
func copySGEs(to []ibverbs.SGE, from []abi.SiwSGE) {
	for i := range from {
		to[i] = ibverbs.SGE{Addr: from[i].LAddr, Length: from[i].Length, LKey: from[i].LKey}
	}
}
