package ibverbs

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// mapAnonymous maps n octets, whole pages, of fresh zeroed memory.
func mapAnonymous(n int, huge bool) ([]byte, error) {
	flags := unix.MAP_ANON | unix.MAP_PRIVATE
	if huge {
		flags |= unix.MAP_HUGETLB
	}
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, flags)
}

// mapShared maps n octets of an open file from offset off, which is at a page.
func mapShared(fd uintptr, off int64, n int, write bool) ([]byte, error) {
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	return unix.Mmap(int(fd), off, n, prot, unix.MAP_SHARED)
}

// unmap ends what mapAnonymous or mapShared has mapped.
func unmap(pages []byte) error { return unix.Munmap(pages) }

// adviseHuge asks for transparent huge pages.
func adviseHuge(pages []byte) error { return unix.Madvise(pages, unix.MADV_HUGEPAGE) }

// populate has the kernel bring the pages of n octets from address first on. The
// kernel refuses that before Linux 5.14.
func populate(first, n uintptr, write bool) {
	advice := unix.MADV_POPULATE_READ
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, first, n, uintptr(advice))
}

// takesCalls reports whether a call that writes to a file up to end does what a copy to its mapped
// pages does, and not more: the file is open and not cut short before end, so that the call doesn't
// make it longer. The call doesn't append, and goes neither past the page cache nor on to the disk;
// whoever shares the open file may change that at any time.
func takesCalls(conn syscall.RawConn, end int64) bool {
	var takes bool
	err := conn.Control(func(fd uintptr) {
		var st unix.Stat_t
		flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
		takes = err == nil && flags&(unix.O_APPEND|unix.O_DIRECT|unix.O_DSYNC) == 0 &&
			unix.Fstat(int(fd), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size >= end
	})
	return err == nil && takes
}
