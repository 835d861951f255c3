//go:build linux

package transport

import (
	"os"
	"sync"
	"syscall"
	"unsafe"

	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of sendmmsg(2). Go aligns it as C does, so it ends with padding on
// 64-bit systems, and has none on 32-bit systems.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

const recordsMost = policy.BatchFPDUs / 2

// recordVec describes records to the kernel.
type recordVec struct {
	iov   [iovMax]unix.Iovec
	used  int // of iov
	msg   [recordsMost]mmsghdr
	nmsgs int
}

var recordPool = sync.Pool{New: func() any { return new(recordVec) }}

// WriteRecords implements RecordWriter. With MSG_EOR the kernel appends nothing to the record's
// last buffer, so the next bytes begin another segment.
func (c *tcpConn) WriteRecords(bufs [][]byte, records []int) (int, error) {
	if !c.ref.acquire() {
		return 0, os.ErrClosed
	}
	before := c.tap.Before()
	raceSending()
	var n int
	var errno syscall.Errno
	if len(records) == 1 && len(bufs) <= iovMax {
		n, errno = c.write(bufs, unix.MSG_EOR)
	} else {
		v := recordPool.Get().(*recordVec)
		v.load(bufs, records)
		n, errno = c.writeRecords(v)
		v.clear()
		recordPool.Put(v)
	}
	return c.wrote(before, bufs, n, errno)
}

// load describes as many of the records as there is room for. If it describes only part of the last
// one, that record does not end there.
func (v *recordVec) load(bufs [][]byte, records []int) {
	var rest []byte // rest of the buffer in which a record ended
	for _, left := range records {
		if left == 0 {
			continue
		}
		if v.nmsgs == recordsMost || v.used == iovMax {
			return
		}
		first := v.used
		for left > 0 && v.used < iovMax {
			for len(rest) == 0 {
				rest, bufs = bufs[0], bufs[1:]
			}
			n := min(left, len(rest))
			v.iov[v.used].Base = unsafe.SliceData(rest)
			v.iov[v.used].SetLen(n)
			v.used++
			rest = rest[n:]
			left -= n
		}
		h := &v.msg[v.nmsgs].hdr
		v.nmsgs++
		h.Iov = &v.iov[first]
		h.SetIovlen(v.used - first)
		h.Flags = 0
		if left == 0 {
			h.Flags = unix.MSG_EOR
		}
	}
}

// clear drops the references to the buffers, so that they are not kept alive.
func (v *recordVec) clear() {
	clear(v.iov[:v.used])
	clear(v.msg[:v.nmsgs])
	v.used, v.nmsgs = 0, 0
}

// writeRecords returns how many bytes the kernel took. It stops at the first record that the kernel
// does not take as a whole.
func (c *tcpConn) writeRecords(v *recordVec) (int, syscall.Errno) {
	if v.nmsgs == 0 {
		return 0, 0
	}
	for {
		k, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(c.ref.fd), uintptr(unsafe.Pointer(&v.msg)), uintptr(v.nmsgs), unix.MSG_NOSIGNAL, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		n := 0
		for i := range v.msg[:k] {
			n += int(v.msg[i].len)
		}
		return n, 0
	}
}
