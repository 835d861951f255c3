package bridge

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// wqeHead has the fields of an abi.SiwSQE or an abi.SiwRQE that share the word of the flags, in the
// byte order of the machine.
type wqeHead struct {
	flags          uint16
	numSGE, opcode uint8
}

// loadHead reads the word with an element's flags.
func loadHead(element unsafe.Pointer) wqeHead {
	w := atomic.LoadUint32(word(element))
	return *(*wqeHead)(unsafe.Pointer(&w))
}

// release gives an element's place back to the program.
func release(element unsafe.Pointer) { atomic.StoreUint32(word(element), 0) }

// recvRing is a receive queue of a QP or an SRQ that the program maps. It is the RecvSource of the
// device's QP or SRQ. As with siw, a place is free for the program again when a message takes the
// receive.
type recvRing struct {
	mem  *queueMemory
	size uint32 // elements, a power of two

	low func() // reports that the limit is reached; nil for the queue of a QP

	mu     sync.Mutex
	get    uint32
	limit  uint32 // with fewer receives, one event is raised
	armed  bool
	closed bool
}

const rqeSize = unsafe.Sizeof(abi.SiwRQE{})

func (r *recvRing) at(i uint32) *abi.SiwRQE {
	return (*abi.SiwRQE)(unsafe.Pointer(&r.mem.mem[uintptr(i&(r.size-1))*rqeSize]))
}

// NextRecv implements ibverbs.RecvSource. As with siw, a receive that claims more SGEs than an
// element holds counts as no receive.
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

// checkLimit raises the limit event, once, if fewer receives are left than the limit. The receive
// at get has just been taken. mu is held.
func (r *recvRing) checkLimit() {
	if !r.armed || loadHead(unsafe.Pointer(r.at(r.get+r.limit))).flags&abi.SiwWQEValid != 0 {
		return
	}
	r.armed = false
	go r.low() // without the device's locks
}

// arm sets the limit; 0 means none.
func (r *recvRing) arm(limit uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limit, r.armed = limit, limit != 0
}

// close ends the queue after the device has stopped using it.
func (r *recvRing) close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.mem.free()
}

// copySGEs copies SGEs that the program may change at any time.
func copySGEs(to []ibverbs.SGE, from []abi.SiwSGE) {
	for i := range from {
		to[i] = ibverbs.SGE{Addr: from[i].LAddr, Length: from[i].Length, LKey: from[i].LKey}
	}
}
