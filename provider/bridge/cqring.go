package bridge

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// The flags of a queue element are read and written as one 32-bit word with its neighbours. The
// rest of the element is written first, so a reader that sees the valid flag sees the whole
// element.
const flagsOffset = unsafe.Offsetof(abi.SiwCQE{}.Flags)

// word returns the address of the word with an element's flags.
func word(element unsafe.Pointer) *uint32 { return (*uint32)(unsafe.Add(element, flagsOffset)) }

// cqRing is a CQ that the program maps. After the elements comes the word with which the program
// arms the CQ. It is the CompletionSink of the device's CQ.
type cqRing struct {
	mem    *queueMemory
	size   uint32 // elements, a power of two
	notify *uint32

	event []byte // for the completion channel
	ch    *channel
	fired eventCount

	put   atomic.Uint32 // written with mu held
	taken atomic.Uint32 // the number of elements, of those before put, that the program has taken

	mu     sync.Mutex // guards completing and closing
	closed bool
}

const cqeSize = unsafe.Sizeof(abi.SiwCQE{})

// cqOctets returns the bytes of a CQ of size elements.
func cqOctets(size uint32) int {
	return int(size)*int(cqeSize) + int(unsafe.Sizeof(abi.SiwCQCtrl{}))
}

func newCQRing(mem *queueMemory, size uint32) *cqRing {
	ctrl := unsafe.Pointer(&mem.mem[int(size)*int(cqeSize)])
	return &cqRing{mem: mem, size: size, notify: &(*abi.SiwCQCtrl)(ctrl).Flags}
}

func (r *cqRing) at(i uint32) *abi.SiwCQE {
	return (*abi.SiwCQE)(unsafe.Pointer(&r.mem.mem[uintptr(i&(r.size-1))*cqeSize]))
}

// Complete implements ibverbs.CompletionSink.
func (r *cqRing) Complete(wc *ibverbs.WC, solicited bool) (stored, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || wc.WRID == openingWRID {
		return true, false // nobody waits for this completion
	}
	e := r.at(r.put.Load())
	if atomic.LoadUint32(word(unsafe.Pointer(e)))&cqeValid != 0 {
		return false, false
	}
	e.ID, e.Bytes, e.QPID = wc.WRID, wc.ByteLen, uint64(wc.QPN)
	e.InvalSTag = wc.InvalidatedRKey
	atomic.StoreUint32(word(unsafe.Pointer(e)), cqeWord(wc))
	r.put.Add(1)
	return true, r.ch != nil && r.disarm(solicited || wc.Status != ibverbs.WCSuccess)
}

// disarm reports whether the program waits for such a completion, and disarms the CQ if so. The
// program arms the CQ before it polls a last time, and Complete writes the completion before it
// reads the flags. So either the program sees the completion, or disarm sees the flags.
func (r *cqRing) disarm(solicited bool) bool {
	want := atomic.LoadUint32(r.notify)
	if want&abi.SiwNotifyNextCompletion == 0 && (want&abi.SiwNotifySolicited == 0 || !solicited) {
		return false
	}
	return atomic.CompareAndSwapUint32(r.notify, want, 0) || r.disarm(solicited)
}

// Taken implements ibverbs.SinkUse. The program takes an element by clearing its flags.
func (r *cqRing) Taken() uint32 {
	from, put := r.taken.Load(), r.put.Load()
	i := from
	if put-i > r.size { // the program has taken these, because later ones had room
		i = put - r.size
	}
	for ; i != put; i++ {
		if atomic.LoadUint32(word(unsafe.Pointer(r.at(i))))&cqeValid != 0 {
			break
		}
	}
	if i != from && !r.taken.CompareAndSwap(from, i) {
		return r.taken.Load() // another goroutine has counted them
	}
	return i
}

// Waits implements ibverbs.SinkUse.
func (r *cqRing) Waits() bool {
	return atomic.LoadUint32(r.notify)&(abi.SiwNotifyNextCompletion|abi.SiwNotifySolicited) != 0
}

// Notify implements ibverbs.CompletionSink.
func (r *cqRing) Notify() {
	r.fired.send(r.ch, r.event)
}

// close ends the ring after the device's CQ is closed.
func (r *cqRing) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.mem.free()
}

// siwOpcodes and siwStatuses map the device's opcodes and statuses to those of CQEs.
var (
	siwOpcodes = [...]uint8{
		ibverbs.WCSend: abi.SiwSend, ibverbs.WCRDMAWrite: abi.SiwWrite,
		ibverbs.WCRDMARead: abi.SiwRead,
		ibverbs.WCCompSwap: abi.SiwCompAndSwap, ibverbs.WCFetchAdd: abi.SiwFetchAndAdd,
		ibverbs.WCRecv: abi.SiwReceive, ibverbs.WCRecvRDMAWithImm: abi.SiwReceive,
	}
	siwStatuses = [...]uint16{
		ibverbs.WCSuccess: abi.SiwWCSuccess, ibverbs.WCLocLenErr: abi.SiwWCLocLenErr,
		ibverbs.WCLocProtErr: abi.SiwWCLocProtErr, ibverbs.WCLocQPOpErr: abi.SiwWCLocQPOpErr,
		ibverbs.WCWRFlushErr: abi.SiwWCWRFlushErr, ibverbs.WCBadRespErr: abi.SiwWCBadRespErr,
		ibverbs.WCLocAccessErr: abi.SiwWCLocAccessErr,
		ibverbs.WCRemAccessErr: abi.SiwWCRemAccessErr,
		ibverbs.WCRemInvReqErr: abi.SiwWCRemInvReqErr,
	}
)

// siwStatus returns the CQE status for a device's status, or the general error if siw has no such
// status.
func siwStatus(status ibverbs.WCStatus) uint16 {
	if uint(status) < uint(len(siwStatuses)) {
		if s := siwStatuses[status]; s != abi.SiwWCSuccess || status == ibverbs.WCSuccess {
			return s
		}
	}
	return abi.SiwWCGeneralErr
}

// cqeHead has the fields of an abi.SiwCQE that share the word of the flags, in the byte order of
// the machine.
type cqeHead struct {
	flags, opcode uint8
	status        uint16
}

var cqeValid = *(*uint32)(unsafe.Pointer(&cqeHead{flags: abi.SiwWQEValid}))

func cqeWord(wc *ibverbs.WC) uint32 {
	h := cqeHead{abi.SiwWQEValid, siwOpcodes[wc.Opcode], siwStatus(wc.Status)}
	return *(*uint32)(unsafe.Pointer(&h))
}
