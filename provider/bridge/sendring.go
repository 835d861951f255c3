package bridge

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// postBatch is the number of work requests posted to the device at a time.
const postBatch = 32

// fullPause is how long the bridge waits before it checks again whether the device's queue has
// room. A program that uses completions to count free places never causes this wait.
const fullPause = 50 * time.Microsecond

// leavePause is the same pause for a QP that is leaving its connection: what is posted to it is
// flushed when the connection has ended.
const leavePause = time.Millisecond

// sendRing is the send queue of a QP, which the program maps. A doorbell makes the bridge post what
// is in the queue. libsiw rings it only if the element before the new ones has been taken.
type sendRing struct {
	mem  *queueMemory
	size uint32 // elements, a power of two
	post func(...ibverbs.SendWR) error

	// state returns the state of the QP. Elements stay in the queue until the QP has been
	// connected.
	state func() ibverbs.QPState

	// bad is called for an element that cannot be posted, and ends the QP with that error.
	bad func(wrid uint64, op uint8)

	mu     sync.Mutex
	get    uint32
	wrs    [postBatch]ibverbs.SendWR // of taken[:n]; the first done are posted to the device
	taken  [postBatch]takenSend
	done   int
	n      int
	timer  *time.Timer
	closed bool
}

// takenSend holds what ibverbs.SendWR refers to, because the element is already the program's
// again.
type takenSend struct {
	op     uint8 // siw's
	sges   [abi.SiwMaxSGE]ibverbs.SGE
	inline [abi.SiwMaxInline]byte
}

const sqeSize = unsafe.Sizeof(abi.SiwSQE{})

func (r *sendRing) at(i uint32) *abi.SiwSQE {
	return (*abi.SiwSQE)(unsafe.Pointer(&r.mem.mem[uintptr(i&(r.size-1))*sqeSize]))
}

// doorbell posts what is in the queue. It returns ENOTCONN if the QP is not connected yet.
//
// As with siw, the bridge frees an element before it posts the work request to the device.
// Otherwise the program could see the completion first and post into an element that is not free,
// which libsiw refuses: doorbells also ring in other threads than the program's.
func (r *sendRing) doorbell() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	failed := false // the first request has failed, perhaps in another state
	for first := true; !r.closed; first = false {
		if r.done == r.n && !r.take() {
			if first && unconnected(r.state()) {
				return syscall.ENOTCONN
			}
			return nil
		}
		err := r.post(r.wrs[r.done:r.n]...)
		switch {
		case err == nil:
			r.done = r.n
			failed = false
			continue
		case errors.Is(err, os.ErrClosed):
			return nil // the program is destroying the QP
		}
		var refused *ibverbs.PostError
		if errors.As(err, &refused) && refused.Posted > 0 {
			r.done += refused.Posted
			failed = false
		}
		switch state := r.state(); {
		case unconnected(state):
			return syscall.ENOTCONN
		case state == ibverbs.QPSQD:
			r.later(leavePause)
			return nil
		case ibverbs.Errno(err) == syscall.ENOMEM:
			r.later(fullPause)
			return nil
		case !failed: // the state may have changed since
			failed = true
			continue
		}
		r.bad(r.wrs[r.done].WRID, r.taken[r.done].op)
		r.done++
		failed = false
	}
	return nil
}

// take takes elements from the front of the queue, at most postBatch, and reports whether there
// were any. An element that is not a valid work request ends the QP.
func (r *sendRing) take() bool {
	r.done, r.n = 0, 0
	for r.n < postBatch && r.n < int(r.size) {
		e := r.at(r.get)
		head := loadHead(unsafe.Pointer(e))
		if head.flags&abi.SiwWQEValid == 0 {
			break
		}
		if !r.convert(r.n, e, head) {
			if r.n > 0 || unconnected(r.state()) {
				break // checked again after the elements before it, or once connected
			}
			wrid := e.ID
			r.free(e)
			r.bad(wrid, head.opcode)
			continue
		}
		r.free(e)
		r.n++
	}
	return r.n > 0
}

// free gives the first element's place back to the program.
func (r *sendRing) free(e *abi.SiwSQE) {
	release(unsafe.Pointer(e))
	r.get++
}

// convert converts an element to work request i. It returns false if the element is not valid.
func (r *sendRing) convert(i int, e *abi.SiwSQE, head wqeHead) bool {
	wr, taken := &r.wrs[i], &r.taken[i]
	taken.op = head.opcode
	wr.WRID, wr.RemoteAddr, wr.RKey = e.ID, e.RAddr, e.RKey
	wr.InvalidateRKey, wr.Inline, wr.SGList = 0, nil, nil
	wr.Flags = sendFlags(head.flags)
	switch head.opcode {
	case abi.SiwSend:
		wr.Opcode = ibverbs.WRSend
	case abi.SiwWrite:
		wr.Opcode = ibverbs.WRRDMAWrite
	case abi.SiwRead:
		wr.Opcode = ibverbs.WRRDMARead
	case abi.SiwSendRemoteInv:
		wr.Opcode, wr.InvalidateRKey = ibverbs.WRSendWithInv, e.RKey
	default:
		return false
	}
	if head.flags&abi.SiwWQEInline != 0 {
		n := e.SGE[0].Length
		if n > abi.SiwMaxInline {
			return false
		}
		wr.Inline = taken.inline[:n:n]
		copy(wr.Inline, unsafe.Slice((*byte)(unsafe.Pointer(&e.SGE[1])), abi.SiwMaxInline))
		return true
	}
	if head.numSGE > abi.SiwMaxSGE {
		return false
	}
	copySGEs(taken.sges[:], e.SGE[:head.numSGE])
	wr.SGList = taken.sges[:head.numSGE]
	return true
}

func sendFlags(flags uint16) (f ibverbs.SendFlags) {
	if flags&abi.SiwWQESignalled != 0 {
		f |= ibverbs.SendSignaled
	}
	if flags&abi.SiwWQESolicited != 0 {
		f |= ibverbs.SendSolicited
	}
	if flags&abi.SiwWQEReadFence != 0 {
		f |= ibverbs.SendFence
	}
	if flags&abi.SiwWQEInline != 0 {
		f |= ibverbs.SendInline
	}
	return f
}

// later makes the bridge check the queue again after a pause.
func (r *sendRing) later(pause time.Duration) {
	if r.timer == nil {
		r.timer = time.AfterFunc(pause, func() { _ = r.doorbell() })
		return
	}
	r.timer.Reset(pause)
}

// close ends the queue after the device's QP is closed.
func (r *sendRing) close() {
	r.mu.Lock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
	r.mem.free()
}
