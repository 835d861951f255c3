//go:build linux

package transport

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// iovMax is IOV_MAX, the most buffers that the kernel accepts.
const iovMax = 1024

// vector describes buffers to the kernel.
type vector struct {
	iov [iovMax]unix.Iovec
	msg unix.Msghdr
}

// vectors are lent to calls with several buffers, because there are more idle streams than
// concurrent calls.
var vectors = sync.Pool{New: func() any { return new(vector) }}

// iovecs describes several buffers for one direction of a stream, to read or write. It lives in the
// heap with its stream, so that the buffers stay alive and calls do not allocate.
type iovecs struct {
	*vector // nil between calls
	used    int
}

// load describes the non-empty of bufs, at most iovMax of them, and returns how many there are.
// clear must follow.
func (v *iovecs) load(bufs [][]byte) int {
	v.used = 0
	v.vector = vectors.Get().(*vector)
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		if v.used == len(v.iov) {
			break
		}
		v.iov[v.used].Base = unsafe.SliceData(b)
		v.iov[v.used].SetLen(len(b))
		v.used++
	}
	v.msg.Iov = &v.iov[0]
	v.msg.SetIovlen(v.used)
	return v.used
}

// clear drops the references to the buffers.
func (v *iovecs) clear() {
	clear(v.iov[:v.used])
	v.msg.Iov = nil
	vectors.Put(v.vector)
	v.vector = nil
}
