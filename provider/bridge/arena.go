package bridge

import (
	"sync"

	"github.com/govs-rdma/govs/provider/bridge/abi"
	"golang.org/x/sys/unix"
)

// arena is the memory of the queues that an open device shares with the program. It is a memory
// file, and the program's descriptor of the device is that file. The key of a queue is its offset
// in the file, so the program maps the queue as it maps siw's. The bridge has its own mappings,
// because the program may unmap a queue that is in use.
type arena struct {
	fd   int   // the bridge's duplicate of the descriptor
	size int64 // of the file

	mu   sync.Mutex
	used int64 // bytes in use or freed; not reused: the program may still map them
}

// newArena makes an arena. program is the program's descriptor; flags are memfd_create's.
func newArena(flags int) (a *arena, program int, err error) {
	program, err = unix.MemfdCreate("uverbs", flags|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, err
	}
	size, err := lengthen(program, arenaSize)
	if err == nil { // otherwise a program could shorten the file, and the bridge's accesses would fault
		_, err = unix.FcntlInt(uintptr(program), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	}
	fd := -1
	if err == nil {
		fd, err = unix.FcntlInt(uintptr(program), unix.F_DUPFD_CLOEXEC, firstOwn)
	}
	if err != nil {
		_ = unix.Close(program)
		return nil, -1, err
	}
	return &arena{fd: fd, size: size, used: int64(pageSize)}, program, nil
}

// firstOwn is the lowest number of the bridge's own descriptors. The program may have closed 0, 1
// or 2, and may still write to the standard streams.
const firstOwn = 3

// arenaSize is the size of the file in bytes, unless a limit of the program is lower. The file only
// has the pages that are in use. Offsets are not reused; there is room for 2^35 CQs of the largest
// size, one after the other. If the file would be smaller than arenaLeast, there is no device.
const (
	arenaSize  = 1 << 62
	arenaLeast = 1 << 20
)

// lengthening is held while the limit of file sizes may be raised. Otherwise another thread could
// take the raised limit for the program's own and leave it raised. It could also lengthen its file
// just after the limit is restored.
var lengthening sync.Mutex

// lengthen sets the size of a new memory file, and returns it. The limit of file sizes is for files
// on disks, and exceeding it would end the program with SIGXFSZ, so lengthen raises the limit
// during the call. If the program may not raise it to size, the file is smaller. A file smaller
// than arenaLeast is EFBIG.
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
		if err := unix.Prlimit(0, unix.RLIMIT_FSIZE, &raised, &limit); err != nil {
			return 0, err
		}
		defer func() { restoreFileLimit(raised, limit) }()
	}
	return size, unix.Ftruncate(fd, size)
}

// restoreFileLimit replaces the limit of file sizes that lengthen has set by the one before it. A
// limit that a thread of the program has set since stays.
func restoreFileLimit(raised, limit unix.Rlimit) {
	var was unix.Rlimit
	for unix.Prlimit(0, unix.RLIMIT_FSIZE, &limit, &was) == nil && was != raised {
		raised, limit = limit, was
	}
}

var pageSize = unix.Getpagesize()

// A queueMemory is the memory of one queue.
type queueMemory struct {
	arena *arena
	key   int64 // the program maps the memory with it
	mem   []byte
}

// alloc returns n bytes of zeroed memory for a queue. n is not 0.
func (a *arena) alloc(n int) (*queueMemory, error) {
	n = (n + pageSize - 1) &^ (pageSize - 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.used
	if at == abi.SiwInvalidKey { // libsiw takes this key for a failure
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

// free frees the memory. A nil q is allowed.
func (q *queueMemory) free() {
	if q == nil {
		return
	}
	_ = unix.Munmap(q.mem)
	_ = unix.Fallocate(q.arena.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, q.key,
		int64(len(q.mem)))
}

func (a *arena) close() { _ = unix.Close(a.fd) }
