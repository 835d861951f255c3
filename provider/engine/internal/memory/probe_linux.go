package memory

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"golang.org/x/sys/unix"
)

// populates reports whether the kernel has MADV_POPULATE_READ (from Linux 5.14 on). It tries memory
// that certainly exists, because a refusal is EINVAL as well.
var populates = sync.OnceValue(func() bool {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Munmap(page) }()
	return unix.Madvise(page, unix.MADV_POPULATE_READ) == nil
})

// probe returns EFAULT, as ibv_reg_mr does, if buf is memory that can't be read, or, with write,
// that can't be written. Without that, the first byte placed there would end the process.
//
// The result is only valid at this moment. A program that later unmaps or protects the memory of a
// region still ends the process: unlike a region that the kernel has pinned, the engine's region is
// only the program's own memory.
func probe(buf []byte, write bool) error {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(buf)))
	end := start + uintptr(len(buf))
	if len(buf) <= policy.ProbeMost && populates() {
		page := uintptr(os.Getpagesize())
		first := start &^ (page - 1)
		advice := unix.MADV_POPULATE_READ
		if write {
			advice = unix.MADV_POPULATE_WRITE
		}
		_, _, errno := syscall.Syscall(syscall.SYS_MADVISE, first, (end-first+page-1)&^(page-1), uintptr(advice))
		if errno == 0 {
			return nil
		}
		if errno == unix.EFAULT || errno == unix.EHWPOISON {
			return fmt.Errorf("the memory is mapped but can't be read or written, as beyond the end of "+
				"a mapped file: %w", syscall.EFAULT)
		}
		// The list of mappings shows what was wrong, or that nothing was, because memory of devices
		// can't be populated.
	}
	// In /proc/self there are none once the main thread of a C program has ended.
	maps, err := os.Open("/proc/thread-self/maps")
	if err != nil {
		return nil // without /proc nothing is known
	}
	defer maps.Close()
	return probeMaps(maps, start, end, write)
}

// probeMaps looks for start to end in the lines of /proc/thread-self/maps, which are in ascending
// order.
func probeMaps(maps io.Reader, start, end uintptr, write bool) error {
	lines := bufio.NewScanner(maps)
	for lines.Scan() && start < end {
		addresses, rights, _ := strings.Cut(lines.Text(), " ")
		low, high, _ := strings.Cut(addresses, "-")
		from, err1 := strconv.ParseUint(low, 16, 64)
		to, err2 := strconv.ParseUint(high, 16, 64)
		if err1 != nil || err2 != nil || to <= uint64(start) {
			continue
		}
		if from > uint64(start) {
			break
		}
		switch {
		case !strings.HasPrefix(rights, "r"):
			return fmt.Errorf("the memory is mapped without PROT_READ: %w", syscall.EFAULT)
		case write && !strings.HasPrefix(rights, "rw"):
			return fmt.Errorf("the rights ask for writing, and the memory is mapped without "+
				"PROT_WRITE: %w", syscall.EFAULT)
		}
		start = uintptr(to)
	}
	if lines.Err() != nil {
		return nil // a line longer than a path can be: nothing is known
	}
	if start < end {
		return fmt.Errorf("not all of the memory is mapped: %w", syscall.EFAULT)
	}
	return nil
}
