package remote

import "syscall"

// mapPages returns page-aligned memory off the Go heap.
func mapPages(n int) ([]byte, error) {
	return syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON)
}

func unmapPages(b []byte) error { return syscall.Munmap(b) }
