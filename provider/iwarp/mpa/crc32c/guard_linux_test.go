package crc32c

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

// fenced returns octets between two pages that fault when they are accessed.
func fenced(t *testing.T, pages int) []byte {
	t.Helper()
	page := unix.Getpagesize()
	m, err := unix.Mmap(-1, 0, (pages+2)*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(m); err != nil {
			t.Error(err)
		}
	})
	inner := m[page : (pages+1)*page]
	for _, fence := range [][]byte{m[:page], m[(pages+1)*page:]} {
		if err := unix.Mprotect(fence, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return inner
}

// No octet outside the slices is read or written, because that would end the test process with a
// fault.
func TestFences(t *testing.T) {
	r := source(t)
	src, dst := fenced(t, 2), fenced(t, 2)
	r.Read(src)
	each(t, func(t *testing.T, f implementation) {
		for n := range len(src) + 1 {
			if n > 1600 && n%97 != 0 && n != len(src) {
				continue
			}
			for _, ends := range []struct {
				name string
				src  []byte
				dst  []byte
			}{
				{"after", src[len(src)-n:], dst[len(dst)-n:]},
				{"before", src[:n], dst[:n]},
				{"after src, before dst", src[len(src)-n:], dst[:n]},
				{"before src, after dst", src[:n], dst[len(dst)-n:]},
			} {
				want := reference(1, ends.src)
				if got := f.update(1, ends.src); got != want {
					t.Fatalf("%d octets, fence %s: %#08x, want %#08x", n, ends.name, got, want)
				}
				if got := f.copy(1, ends.dst, ends.src); got != want || !bytes.Equal(ends.dst, ends.src) {
					t.Fatalf("%d octets copied, fence %s: %#08x, want %#08x", n, ends.name, got, want)
				}
			}
		}
	})
}
