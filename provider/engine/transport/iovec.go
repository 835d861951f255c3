//go:build linux

package transport

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	iovKept = 8    // entries that a stream keeps for each direction
	iovMax  = 1024 // IOV_MAX: the kernel refuses more
)

// iovPool lends arrays to calls with more entries than a stream keeps: an idle
// stream should cost little, and a busy one sends a hundred FPDUs at a time.
var iovPool = sync.Pool{New: func() any { return new([iovMax]unix.Iovec) }}

// iovecs is one direction's scratch space. It lives in the heap with its
// stream, so that what it points to is kept alive and calls do not allocate.
type iovecs struct {
	kept [iovKept]unix.Iovec
	big  *[iovMax]unix.Iovec // lent by iovPool while set
	used int
	msg  unix.Msghdr
}

// load describes the non-empty of bufs, at most iovMax of them, and returns how
// many there are. clear must follow.
func (v *iovecs) load(bufs [][]byte) int {
	dst := v.kept[:]
	if len(bufs) > iovKept {
		v.big = iovPool.Get().(*[iovMax]unix.Iovec)
		dst = v.big[:]
	}
	v.used = 0
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		if v.used == len(dst) {
			break
		}
		dst[v.used].Base = unsafe.SliceData(b)
		dst[v.used].SetLen(len(b))
		v.used++
	}
	if v.used > 0 {
		v.msg.Iov = &dst[0]
		v.msg.SetIovlen(v.used)
	}
	return v.used
}

// first returns the only entry's buffer.
func (v *iovecs) first() (p unsafe.Pointer, n uintptr) {
	return unsafe.Pointer(v.msg.Iov.Base), uintptr(v.msg.Iov.Len)
}

// clear forgets the buffers, so that an idle stream keeps none of them alive.
func (v *iovecs) clear() {
	v.msg.Iov = nil
	if v.big == nil {
		clear(v.kept[:v.used])
		return
	}
	clear(v.big[:v.used])
	iovPool.Put(v.big)
	v.big = nil
}
