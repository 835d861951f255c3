package bridge

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// The flags of an element of a queue are read and written together with what beside them is in the
// same 32 bits. The rest of the element is written before, so that a reader that sees it valid sees
// all of it.
const flagsOffset = unsafe.Offsetof(abi.SiwCQE{}.Flags)

// word is the place of the flags of an element.
func word(element unsafe.Pointer) *uint32 { return (*uint32)(unsafe.Add(element, flagsOffset)) }

// cqRing is a CQ that the program maps: elements, and after them the word in which the program says
// what it waits for. It is the CompletionSink of the device's CQ.
type cqRing struct {
	mem    *queueMemory
	size   uint32 // elements, a power of two
	notify *uint32

	event []byte // of the completion channel
	ch    *channel
	fired eventCount

	put   atomic.Uint32 // is written with mu held
	taken atomic.Uint32 // of those before put, how many the program has taken

	mu     sync.Mutex // of what completes and closing
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
		return true, false // nobody waits for it
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

// disarm reports whether the program waits for such a completion; then it waits no more. The
// program writes its wish before it looks for completions a last time, and they are written before
// the wish is read here: one of the two sees the other.
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
	if put-i > r.size { // there was room for those after it
		i = put - r.size
	}
	for ; i != put; i++ {
		if atomic.LoadUint32(word(unsafe.Pointer(r.at(i))))&cqeValid != 0 {
			break
		}
	}
	if i != from && !r.taken.CompareAndSwap(from, i) {
		return r.taken.Load() // another goroutine has seen them
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

// close ends the CQ, whose device's CQ is closed.
func (r *cqRing) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.mem.free()
}

// siwOpcodes and siwStatuses are what a CQE has for an opcode and a status of the device.
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

// siwStatus returns the status of a CQE: that of the device, or if siw has none like it the general
// one.
func siwStatus(status ibverbs.WCStatus) uint16 {
	if uint(status) < uint(len(siwStatuses)) {
		if s := siwStatuses[status]; s != abi.SiwWCSuccess || status == ibverbs.WCSuccess {
			return s
		}
	}
	return abi.SiwWCGeneralErr
}

// cqeHead is what of an abi.SiwCQE is in its word, in the byte order of the machine.
type cqeHead struct {
	flags, opcode uint8
	status        uint16
}

var cqeValid = *(*uint32)(unsafe.Pointer(&cqeHead{flags: abi.SiwWQEValid}))

func cqeWord(wc *ibverbs.WC) uint32 {
	h := cqeHead{abi.SiwWQEValid, siwOpcodes[wc.Opcode], siwStatus(wc.Status)}
	return *(*uint32)(unsafe.Pointer(&h))
}
