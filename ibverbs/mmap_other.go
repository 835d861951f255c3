//go:build !linux

package ibverbs

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/govs-rdma/govs/provider"
)

// mapAnonymous allocates n bytes of zeroed memory on a page boundary, as on Linux. They are on the
// Go heap, because only the engine with a network in memory can be opened here, and it needs
// nothing else.
func mapAnonymous(n int, huge bool) ([]byte, error) {
	if huge {
		return nil, needsLinux("huge pages")
	}
	page := os.Getpagesize()
	b := make([]byte, n+page-1)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
	return b[skip : skip+n : skip+n], nil
}

// mapShared fails, because files are mapped on Linux only.
func mapShared(uintptr, int64, int, bool) ([]byte, error) { return nil, needsLinux("a mapped file") }

// unmap leaves the memory to the garbage collector.
func unmap([]byte) error { return nil }

// adviseHuge fails, because transparent huge pages are for Linux only.
func adviseHuge([]byte) error { return needsLinux("transparent huge pages") }

// populate does nothing, because there are no mapped files here.
func populate(uintptr, uintptr, bool) {}

// writeCalls does nothing, because there are no mapped files here.
func writeCalls(syscall.RawConn, [][]byte, int64) (int, error) { return 0, nil }

// needsLinux returns the error for a feature that this package has on Linux only.
func needsLinux(feature string) error {
	return &provider.UnsupportedError{Feature: feature, Reason: "package ibverbs has it on Linux only, this is " + runtime.GOOS}
}
