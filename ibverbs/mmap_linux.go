package ibverbs

import "golang.org/x/sys/unix"

// mapAnonymous maps n bytes of zeroed memory. n is a multiple of the page size.
func mapAnonymous(n int, huge bool) ([]byte, error) {
	flags := unix.MAP_ANON | unix.MAP_PRIVATE
	if huge {
		flags |= unix.MAP_HUGETLB
	}
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, flags)
}

// mapShared maps n bytes of an open file from offset off, a multiple of the page size.
func mapShared(fd uintptr, off int64, n int, write bool) ([]byte, error) {
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	return unix.Mmap(int(fd), off, n, prot, unix.MAP_SHARED)
}

// unmap unmaps the pages that mapAnonymous or mapShared mapped.
func unmap(pages []byte) error { return unix.Munmap(pages) }

// adviseHuge asks for transparent huge pages.
func adviseHuge(pages []byte) error { return unix.Madvise(pages, unix.MADV_HUGEPAGE) }

// populate makes the kernel read the pages of n bytes from address first on. Linux before 5.14 does
// not support that.
func populate(first, n uintptr, write bool) {
	advice := unix.MADV_POPULATE_READ
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, first, n, uintptr(advice))
}
