package bridge

import (
	"errors"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// postBatch is how many work requests are posted to the device at a time.
const postBatch = 32

// fullPause is how long the bridge waits before it looks again whether the device's queue has room.
// A program that knows from completions how much room there is never makes it wait.
const fullPause = 50 * time.Microsecond

// leavePause is the same for a QP that is leaving its connection: what is posted to it is flushed
// when that has ended.
const leavePause = time.Millisecond

// sendRing is the send queue of a QP, which the program maps. A doorbell has the bridge post what
// is in it. libsiw rings it only if the element before the new ones has been taken.
type sendRing struct {
	mem  *queueMemory
	size uint32 // elements, a power of two
	post func(...ibverbs.SendWR) error

	// state returns the state of the QP. Before it has been connected elements stay where they are.
	state func() ibverbs.QPState

	// bad is called for an element that can't be posted: it ends the QP with that error.
	bad func(wrid uint64, op uint8)

	mu     sync.Mutex
	get    uint32
	wrs    [postBatch]ibverbs.SendWR
	sges   [postBatch][abi.SiwMaxSGE]ibverbs.SGE
	timer  *time.Timer
	closed bool
}

const sqeSize = unsafe.Sizeof(abi.SiwSQE{})

func (r *sendRing) at(i uint32) *abi.SiwSQE {
	return (*abi.SiwSQE)(unsafe.Pointer(&r.mem.mem[uintptr(i&(r.size-1))*sqeSize]))
}

// doorbell posts what is in the queue. ENOTCONN: the QP is not connected yet.
func (r *sendRing) doorbell() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	failed := false // the first element has, in a state that may have been another one
	for first := true; !r.closed; first = false {
		n, valid := r.collect()
		if n == 0 {
			if first && unconnected(r.state()) {
				return syscall.ENOTCONN
			}
			if valid {
				r.refuse()
				continue
			}
			return nil
		}
		err := r.post(r.wrs[:n]...)
		if err == nil {
			r.release(n)
			failed = false
			continue
		}
		var refused *ibverbs.PostError
		if errors.As(err, &refused) && refused.Posted > 0 {
			r.release(refused.Posted)
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
		r.refuse()
		failed = false
	}
	return nil
}

// collect makes work requests of the elements at the front, and returns how many. valid says that
// the first is there; it can't be one if n is 0.
func (r *sendRing) collect() (n int, valid bool) {
	for n < postBatch && n < int(r.size) {
		e := r.at(r.get + uint32(n))
		head := loadHead(unsafe.Pointer(e))
		if head.flags&abi.SiwWQEValid == 0 {
			return n, n > 0
		}
		if !r.convert(n, e, head) {
			return n, true
		}
		n++
	}
	return n, true
}

// convert makes work request i of an element. It reports false if there is none like it.
func (r *sendRing) convert(i int, e *abi.SiwSQE, head wqeHead) bool {
	wr := &r.wrs[i]
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
		wr.Inline = unsafe.Slice((*byte)(unsafe.Pointer(&e.SGE[1])), abi.SiwMaxInline)[:n:n]
		return true
	}
	if head.numSGE > abi.SiwMaxSGE {
		return false
	}
	copySGEs(r.sges[i][:], e.SGE[:head.numSGE])
	wr.SGList = r.sges[i][:head.numSGE]
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

// release gives the places of the first n elements back to the program.
func (r *sendRing) release(n int) {
	for range n {
		release(unsafe.Pointer(r.at(r.get)))
		r.get++
	}
}

// refuse takes the first element out, and ends the QP because of it.
func (r *sendRing) refuse() {
	e := r.at(r.get)
	wrid, head := e.ID, loadHead(unsafe.Pointer(e))
	r.release(1)
	r.bad(wrid, head.opcode)
}

// later has the queue looked at again after a pause.
func (r *sendRing) later(pause time.Duration) {
	if r.timer == nil {
		r.timer = time.AfterFunc(pause, func() { _ = r.doorbell() })
		return
	}
	r.timer.Reset(pause)
}

// close ends the queue. The device's QP is closed.
func (r *sendRing) close() {
	r.mu.Lock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
	r.mem.free()
}
