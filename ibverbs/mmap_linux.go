package ibverbs

import "golang.org/x/sys/unix"

// mapAnonymous maps n bytes, whole pages, of fresh zeroed memory.
func mapAnonymous(n int, huge bool) ([]byte, error) {
	flags := unix.MAP_ANON | unix.MAP_PRIVATE
	if huge {
		flags |= unix.MAP_HUGETLB
	}
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, flags)
}

// mapShared maps n bytes of an open file from offset off, which is at a page.
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

// populate has the kernel bring the pages of n bytes from address first on. The
// kernel refuses that before Linux 5.14.
func populate(first, n uintptr, write bool) {
	advice := unix.MADV_POPULATE_READ
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, first, n, uintptr(advice))
}
