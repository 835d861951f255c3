package bulk

import (
	"fmt"
	"os"
	"runtime/debug"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestCopyFaults: a fault in a copy is a panic of its goroutine with the address, as it is with the
// built-in one, wherever the octets are missing.
func TestCopyFaults(t *testing.T) {
	const size, end, n = 1 << 20, 1 << 19, 64 << 10
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	p, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(p) }()
	if err := file.Truncate(end); err != nil {
		t.Fatal(err)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	b := make([]byte, n)
	first, last := uintptr(unsafe.Pointer(&p[end])), uintptr(unsafe.Pointer(&p[end+n]))
	for what, f := range map[string]func(){
		"to the end of a file":   func() { Copy(p[end-5000:], b) },
		"from the end of a file": func() { Copy(b, p[end-5000:]) },
		"after the end":          func() { Copy(p[end+1:], b) },
	} {
		func() {
			defer func() {
				fault, ok := recover().(interface{ Addr() uintptr })
				if !ok || fault.Addr() < first || fault.Addr() >= last {
					t.Errorf("%s: no panic with an address after the end", what)
				}
			}()
			f()
		}()
	}
}

// BenchmarkCopy copies as a receiver does: the source has just been written, and the
// destination, 1 MiB of huge pages as AllocMR has them, was written 1 MiB ago.
func BenchmarkCopy(b *testing.B) {
	const ring, region, socket = 128 << 10, 1 << 20, 8 << 20
	src, dst, in := huge(b, ring+64), huge(b, region), huge(b, socket)
	for _, n := range []int{1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10} {
		for name, f := range map[string]func(dst, src []byte) int{"Copy": Copy, "copy": builtin} {
			b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
				b.SetBytes(ring)
				at, from := 0, 0
				for b.Loop() {
					copy(src, in[from:][:ring])
					from = (from + ring) % socket
					for i := 0; i < ring; i += n {
						f(dst[at:][:n], src[i+16:][:n])
						at = (at + n) % region
					}
				}
			})
		}
	}
}

func huge(b *testing.B, n int) []byte {
	const page = 2 << 20
	p, err := unix.Mmap(-1, 0, n+2*page, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = unix.Munmap(p) })
	if err := unix.Madvise(p, unix.MADV_HUGEPAGE); err != nil {
		b.Fatal(err)
	}
	p = p[-uintptr(unsafe.Pointer(&p[0]))&(page-1):][:n:n]
	clear(p)
	return p
}

func builtin(dst, src []byte) int { return copy(dst, src) }
