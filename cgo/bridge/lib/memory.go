//go:build linux && cgo

package main

import (
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// faulted is deferred by a function that accesses the program's memory, with what
// debug.SetPanicOnFault(true) has returned: memory that the program does not have is EFAULT then.
func faulted(before bool, err *error) {
	debug.SetPanicOnFault(before)
	switch r := recover().(type) {
	case nil:
	case interface{ Addr() uintptr }: // a fault
		*err = syscall.EFAULT
	case error:
		if r.Error() != nilFault {
			panic(r)
		}
		*err = syscall.EFAULT
	default:
		panic(r)
	}
}

// nilFault is what the runtime says of an address in the first page.
const nilFault = "runtime error: invalid memory address or nil pointer dereference"

// at returns n octets of the program's memory.
func at(addr uint64, n int) []byte {
	// The address is the program's; the runtime of Go knows nothing of that memory.
	p := *(*unsafe.Pointer)(unsafe.Pointer(&addr))
	return unsafe.Slice((*byte)(p), n)
}

// ReadMemory implements bridge.Program.
func (p *process) ReadMemory(addr uint64, b []byte) (err error) {
	if addr == 0 || addr+uint64(len(b)) < addr {
		return syscall.EFAULT
	}
	defer faulted(debug.SetPanicOnFault(true), &err)
	copy(b, at(addr, len(b)))
	return nil
}

// WriteMemory implements bridge.Program.
func (p *process) WriteMemory(addr uint64, b []byte) (err error) {
	if addr == 0 || addr+uint64(len(b)) < addr {
		return syscall.EFAULT
	}
	defer faulted(debug.SetPanicOnFault(true), &err)
	copy(at(addr, len(b)), b)
	return nil
}

// Memory implements bridge.Program. It makes the pages present, as siw does when it pins them, so
// that memory which the program does not have, or may not write, shows now.
func (p *process) Memory(addr, length uint64, write bool) ([]byte, error) {
	mem, err := p.present(addr, length, write)
	if err == nil {
		p.regions.add(addr, length)
	}
	return mem, err
}

func (p *process) present(addr, length uint64, write bool) ([]byte, error) {
	page := uint64(unix.Getpagesize())
	first := addr &^ (page - 1)
	end := addr + length
	if addr == 0 || end < addr || end > 1<<47 {
		return nil, syscall.EFAULT
	}
	n := (end - first + page - 1) &^ (page - 1)
	advice := unix.MADV_POPULATE_READ
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	_, _, e := unix.Syscall(unix.SYS_MADVISE, uintptr(first), uintptr(n), uintptr(advice))
	// Rights that the memory has not, a kernel before 5.14, or memory of a device.
	if e == unix.EINVAL {
		if err := touch(first, n/page, page, write); err != nil {
			return nil, err
		}
		return at(addr, int(length)), nil
	}
	if e != 0 {
		return nil, syscall.EFAULT
	}
	return at(addr, int(length)), nil
}

// touch reads, and writes if write is set, an octet of each page as it is. EFAULT if that can't be.
func touch(first, count, page uint64, write bool) (err error) {
	defer faulted(debug.SetPanicOnFault(true), &err)
	for i := range count {
		word := (*uint32)(unsafe.Pointer(unsafe.SliceData(at(first+i*page, 4))))
		if write {
			atomic.AddUint32(word, 0)
		} else {
			atomic.LoadUint32(word)
		}
	}
	return nil
}
