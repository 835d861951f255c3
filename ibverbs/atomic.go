package ibverbs

import (
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// wordLen is the size of an atomic operation's word in bytes.
const wordLen = 8

// Load returns the 64-bit word at offset off of the region, in host order. Load, Store, FetchAdd
// and CompareAndSwap are the CPU's atomic operations. The engine performs the peers' operations the
// same way, so all of them are atomic with each other. A device that performs the peers' operations
// itself and has AtomicHCA as its DeviceAttr.AtomicCap does not guarantee that.
//
// All four return EINVAL if the eight bytes are not in the region or not on a 64-bit boundary of
// memory (regions of AllocMR begin on one), and os.ErrClosed for a closed region. They do not block
// or allocate, may be called concurrently with everything, and need no rights.
func (mr *MR) Load(off int) (uint64, error) {
	w, err := mr.word("MR.Load", off)
	if err != nil {
		return 0, err
	}
	defer mr.words.RUnlock()
	return atomic.LoadUint64(w), nil
}

// Store puts value at offset off. See Load.
func (mr *MR) Store(off int, value uint64) error {
	w, err := mr.word("MR.Store", off)
	if err != nil {
		return err
	}
	defer mr.words.RUnlock()
	atomic.StoreUint64(w, value)
	return nil
}

// FetchAdd adds to the word at offset off and returns the former value, as WRAtomicFetchAdd does
// for a peer. The sum wraps; to subtract, add the two's complement. See Load.
func (mr *MR) FetchAdd(off int, add uint64) (uint64, error) {
	w, err := mr.word("MR.FetchAdd", off)
	if err != nil {
		return 0, err
	}
	defer mr.words.RUnlock()
	return atomic.AddUint64(w, add) - add, nil
}

// CompareAndSwap stores swap in the word at offset off if the word equals compare. It returns the
// former value, which equals compare if it has swapped, as WRAtomicCmpAndSwp does for a peer. See
// Load.
func (mr *MR) CompareAndSwap(off int, compare, swap uint64) (uint64, error) {
	w, err := mr.word("MR.CompareAndSwap", off)
	if err != nil {
		return 0, err
	}
	defer mr.words.RUnlock()
	for {
		if atomic.CompareAndSwapUint64(w, compare, swap) {
			return compare, nil
		}
		if was := atomic.LoadUint64(w); was != compare {
			return was, nil
		}
	}
}

// word returns the word at offset off. Unless there is an error, it leaves mr.words read-locked, so
// that Close does not unmap the word; the caller unlocks it.
func (mr *MR) word(op string, off int) (*uint64, error) {
	if mr == nil || mr.p() == nil {
		return nil, errNil(op, "mr")
	}
	mr.words.RLock()
	w, err := mr.wordLocked(op, off)
	if err != nil {
		mr.words.RUnlock()
	}
	return w, err
}

func (mr *MR) wordLocked(op string, off int) (*uint64, error) {
	if err := mr.obj.Check(op); err != nil {
		return nil, err
	}
	mem := mr.mem.Load()
	if mem == nil { // Close is under way
		return nil, &Error{Op: op, Object: mr.obj.Name(), Err: os.ErrClosed}
	}
	b := *mem
	if off < 0 || len(b) < wordLen || off > len(b)-wordLen {
		return nil, mr.obj.Errorf(op, syscall.EINVAL,
			"8 bytes from offset %d are not within the region, which has %d", off, len(b))
	}
	p := unsafe.Pointer(&b[off])
	if uintptr(p)%wordLen != 0 {
		return nil, mr.obj.Errorf(op, syscall.EINVAL,
			"offset %d is not on a 64-bit boundary of memory; use a multiple of 8 in memory of AllocMR", off)
	}
	return (*uint64)(p), nil
}
