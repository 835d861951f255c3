//go:build !linux

package ibverbs

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/govs-rdma/govs/provider"
)

// mapAnonymous allocates n bytes of zeroed memory that begin on a page, as they do on
// Linux. They are on the Go heap: of the devices only the engine with a network in memory
// can be opened here, and it needs no more.
func mapAnonymous(n int, huge bool) ([]byte, error) {
	if huge {
		return nil, needsLinux("huge pages")
	}
	page := os.Getpagesize()
	b := make([]byte, n+page-1)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
	return b[skip : skip+n : skip+n], nil
}

// mapShared would map a file.
func mapShared(uintptr, int64, int, bool) ([]byte, error) { return nil, needsLinux("a mapped file") }

// unmap leaves the memory to the garbage collector.
func unmap([]byte) error { return nil }

// adviseHuge would ask for transparent huge pages.
func adviseHuge([]byte) error { return needsLinux("transparent huge pages") }

// populate is for mapped files, which are not here.
func populate(uintptr, uintptr, bool) {}

// writeCalls is for mapped files, too.
func writeCalls(syscall.RawConn, [][]byte, int64) (int, error) { return 0, nil }

// needsLinux makes the error of what this package does on Linux only.
func needsLinux(feature string) error {
	return &provider.UnsupportedError{Feature: feature, Reason: "package ibverbs has it on Linux only, this is " + runtime.GOOS}
}
