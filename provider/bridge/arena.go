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
	fd   int   // the bridge's duplicate
	size int64 // of the file

	mu   sync.Mutex
	used int64 // from the beginning; what is freed is not used again: the program may still map it
}

// newArena makes an arena. The descriptor program is the program's; flags are those of
// memfd_create.
func newArena(flags int) (a *arena, program int, err error) {
	program, err = unix.MemfdCreate("uverbs", flags|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, err
	}
	size, err := lengthen(program, arenaSize)
	if err == nil { // a program that shortened the file would make the bridge's accesses fault
		_, err = unix.FcntlInt(uintptr(program), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	}
	fd := -1
	if err == nil {
		fd, err = unix.FcntlInt(uintptr(program), unix.F_DUPFD_CLOEXEC, 0)
	}
	if err != nil {
		_ = unix.Close(program)
		return nil, -1, err
	}
	return &arena{fd: fd, size: size, used: int64(pageSize)}, program, nil
}

// arenaSize is the size of the file in bytes, unless the program may not have such a long one. The
// file has only the pages that are in use. As offsets are not used again, there is room for 2^35
// CQs of the largest size, one after the other. With less than arenaLeast there is no device.
const (
	arenaSize  = 1 << 62
	arenaLeast = 1 << 20
)

// lengthening is held while the limit of the size of files may be raised. Another thread would take
// the raised limit for that of the program, and leave it so, or lengthen its file just after the
// limit is restored.
var lengthening sync.Mutex

// lengthen sets the size of a new file in memory, and returns it. The limit of the size of files,
// which would end the program with SIGXFSZ, is for files on disks, and is raised for that moment.
// What the program may not raise it to, the file does not have. Less than arenaLeast is EFBIG.
func lengthen(fd int, size int64) (int64, error) {
	lengthening.Lock()
	defer lengthening.Unlock()
	var limit unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_FSIZE, nil, &limit); err != nil {
		return 0, err
	}
	if limit.Cur < uint64(size) {
		if size = int64(min(uint64(size), limit.Max&^uint64(pageSize-1))); size < arenaLeast {
			return 0, unix.EFBIG
		}
		raised := unix.Rlimit{Cur: limit.Max, Max: limit.Max}
		if err := unix.Prlimit(0, unix.RLIMIT_FSIZE, &raised, nil); err != nil {
			return 0, err
		}
		defer func() { _ = unix.Prlimit(0, unix.RLIMIT_FSIZE, &limit, nil) }()
	}
	return size, unix.Ftruncate(fd, size)
}

var pageSize = unix.Getpagesize()

// A queueMemory is the memory of one queue.
type queueMemory struct {
	arena *arena
	key   int64 // what the program maps it with
	mem   []byte
}

// alloc returns the memory of a queue of n bytes, all zero. n is not 0.
func (a *arena) alloc(n int) (*queueMemory, error) {
	n = (n + pageSize - 1) &^ (pageSize - 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.used
	if at == abi.SiwInvalidKey { // which libsiw takes for a failure
		at += int64(pageSize)
	}
	if int64(n) > a.size-at {
		return nil, unix.ENOMEM
	}
	a.used = at + int64(n)
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
