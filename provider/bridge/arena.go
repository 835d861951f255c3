package bridge

import (
	"sync"

	"github.com/govs-rdma/govs/provider/bridge/abi"
	"golang.org/x/sys/unix"
)

// arena is the memory of the queues that an open device shares with the program. It is a file in
// memory, and the program's descriptor of the device is that file: the key of a queue is its
// offset, so that the program maps it as it maps siw's. The bridge has mappings of its own, because
// the program may unmap a queue that is in use.
type arena struct {
	fd int // the bridge's duplicate

	mu   sync.Mutex
	size int64 // of the file; what is freed is not used again, since the program may still map it
}

// newArena makes an arena. The descriptor program is the program's; flags are those of
// memfd_create.
func newArena(flags int) (a *arena, program int, err error) {
	program, err = unix.MemfdCreate("uverbs", flags|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, err
	}
	// A program that shortened the file would make the bridge's accesses fault.
	_, err = unix.FcntlInt(uintptr(program), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	fd := -1
	if err == nil {
		fd, err = unix.FcntlInt(uintptr(program), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		_ = unix.Close(program)
		return nil, -1, err
	}
	return &arena{fd: fd, size: int64(pageSize)}, program, nil
}

var pageSize = unix.Getpagesize()

// A queueMemory is the memory of one queue.
type queueMemory struct {
	arena *arena
	key   int64 // what the program maps it with
	mem   []byte
}

// alloc returns the memory of a queue of n octets, all zero. n is not 0.
func (a *arena) alloc(n int) (*queueMemory, error) {
	n = (n + pageSize - 1) &^ (pageSize - 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.size
	if at == abi.SiwInvalidKey { // which libsiw takes for a failure
		at += int64(pageSize)
	}
	if err := unix.Ftruncate(a.fd, at+int64(n)); err != nil {
		return nil, err
	}
	a.size = at + int64(n)
	mem, err := unix.Mmap(a.fd, at, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &queueMemory{arena: a, key: at, mem: mem}, nil
}

// free gives the memory back. Nil is allowed.
func (q *queueMemory) free() {
	if q == nil {
		return
	}
	_ = unix.Munmap(q.mem)
	_ = unix.Fallocate(q.arena.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, q.key,
		int64(len(q.mem)))
}

func (a *arena) close() { _ = unix.Close(a.fd) }
