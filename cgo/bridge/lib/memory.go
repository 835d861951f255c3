//go:build linux && cgo

package main

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// at returns n bytes of the program's memory.
func at(addr uint64, n int) []byte {
	// The address is the program's; Go's runtime does not manage that memory.
	p := *(*unsafe.Pointer)(unsafe.Pointer(&addr))
	return unsafe.Slice((*byte)(p), n)
}

// ReadMemory implements bridge.Program.
func (p *process) ReadMemory(addr uint64, b []byte) error {
	if p.inFrames(addr, len(b)) {
		copy(b, at(addr, len(b)))
		return nil
	}
	return p.transfer(unix.SYS_PROCESS_VM_READV, addr, b)
}

// WriteMemory implements bridge.Program.
func (p *process) WriteMemory(addr uint64, b []byte) error {
	if p.inFrames(addr, len(b)) {
		copy(at(addr, len(b)), b)
		return nil
	}
	return p.transfer(unix.SYS_PROCESS_VM_WRITEV, addr, b)
}

// inFrames reports whether n bytes at addr are in the stack frames of the C functions that have
// called the bridge. Such memory exists, so no system call is needed to check it. libibverbs'
// commands are there, but not libsiw's doorbells, which are in its QPs.
func (p *process) inFrames(addr uint64, n int) bool {
	return p.frames != nil && p.frames(addr, n)
}

// transfer makes the kernel copy between b and the program's memory. So memory that the program
// does not have is EFAULT and causes no signal; the program may have a handler for SIGSEGV.
func (p *process) transfer(call uintptr, addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	own := unix.Iovec{Base: unsafe.SliceData(b)}
	own.SetLen(len(b))
	its := unix.RemoteIovec{Base: uintptr(addr), Len: len(b)}
	n, _, e := unix.Syscall6(call, uintptr(p.pid), uintptr(unsafe.Pointer(&own)), 1,
		uintptr(unsafe.Pointer(&its)), 1, 0)
	if e == unix.ESRCH { // the main thread, which has the process's number, has ended
		n, _, e = unix.Syscall6(call, uintptr(unix.Gettid()), uintptr(unsafe.Pointer(&own)), 1,
			uintptr(unsafe.Pointer(&its)), 1, 0)
	}
	switch {
	case e == 0 && int(n) == len(b):
		return nil
	case e != unix.ENOSYS && e != unix.EPERM:
		return syscall.EFAULT
	case call == unix.SYS_PROCESS_VM_READV: // a container forbids the call: copy without the check
		copy(b, at(addr, len(b)))
	default:
		copy(at(addr, len(b)), b)
	}
	return nil
}

// Memory implements bridge.Program. It makes the pages present, as siw does when it pins them. So
// it returns an error now if the program does not have the memory, or may not write it.
func (p *process) Memory(addr, length uint64, write bool) ([]byte, error) {
	if !possible(addr, length) {
		return nil, syscall.EFAULT
	}
	page := uint64(unix.Getpagesize())
	first := addr &^ (page - 1)
	end := addr + length
	n := (end - first + page - 1) &^ (page - 1)
	// A range with holes gets no place in the table: Go's runtime may later map memory in a hole,
	// and cannot call the bridge when it does. MS_ASYNC only checks the mappings and writes
	// nothing.
	if _, _, e := unix.Syscall(unix.SYS_MSYNC, uintptr(first), uintptr(n), unix.MS_ASYNC); e != 0 {
		return nil, syscall.EFAULT
	}
	// First, so that memory which another thread unmaps now stays reserved.
	if !p.regions.add(addr, length) {
		return nil, syscall.ENOMEM
	}
	if err := p.present(first, n, page, write); err != nil {
		p.regions.remove(addr, length)
		return nil, err
	}
	return at(addr, int(length)), nil
}

// possible reports whether a program can have length bytes at addr. The upper half of the addresses
// is the kernel's. Processors differ in how much of the lower half programs have, up to 2^56 bytes.
func possible(addr, length uint64) bool {
	end := addr + length
	return addr != 0 && end >= addr && end <= 1<<63
}

// present makes n bytes of pages, from first on, present.
func (p *process) present(first, n, page uint64, write bool) error {
	advice := unix.MADV_POPULATE_READ
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	_, _, e := unix.Syscall(unix.SYS_MADVISE, uintptr(first), uintptr(n), uintptr(advice))
	// The memory lacks the rights or is a device's, or the kernel is older than 5.14.
	if e == unix.EINVAL {
		return p.touch(first, n/page, page, write)
	}
	if e != 0 {
		return syscall.EFAULT
	}
	return nil
}

// touch makes the kernel read from each page, or add 0 to a word of each page if write is set. It
// returns EFAULT if that is not possible.
func (p *process) touch(first, count, page uint64, write bool) error {
	for i := range count {
		var own uint32
		addr := first + i*page
		if !write {
			if err := p.transfer(unix.SYS_PROCESS_VM_READV, addr, make([]byte, 1)); err != nil {
				return err
			}
			continue
		}
		// It atomically adds 0 to the word at addr, and wakes nobody, because nobody sleeps at own.
		if _, _, e := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&own)),
			futexWakeOp, 0, 0, uintptr(addr), futexAdd); e != 0 {
			return syscall.EFAULT
		}
	}
	return nil
}

// From linux/futex.h: FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, and FUTEX_OP(FUTEX_OP_ADD, 0, 0, 0).
const (
	futexWakeOp = 5 | 128
	futexAdd    = 1 << 28
)
