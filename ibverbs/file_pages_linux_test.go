package ibverbs

import (
	"encoding/binary"
	"os"
	"testing"
	"unsafe"
)

// A mapped file's pages are in the page table before they are accessed.
func TestPopulate(t *testing.T) {
	page := os.Getpagesize()
	f, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(100 * page)); err != nil {
		t.Fatal(err)
	}
	for _, write := range []bool{false, true} {
		pages, err := mapFile(f, 0, 100*page, true)
		if err != nil {
			t.Fatal(err)
		}
		// The region begins inside a page, and the wanted bytes end in page 59. The kernel may read
		// more pages.
		const before, first, last = 123, 40, 59
		for i := first; i <= last; i++ {
			if present(t, pages[i*page:]) {
				t.Fatalf("page %d is there before anybody wants it", i)
			}
		}
		mapping(pages[before:]).populate(int64(first*page), (last-first)*page+1, write)
		for i := first; i <= last; i++ {
			if !present(t, pages[i*page:]) {
				t.Errorf("write %t: page %d is not there", write, i)
			}
		}
		if err := unmap(pages); err != nil {
			t.Fatal(err)
		}
	}
}

// present reports whether the page that b begins with is in the page table
// (Documentation/admin-guide/mm/pagemap.rst of the kernel).
func present(t *testing.T, b []byte) bool {
	t.Helper()
	pagemap, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer pagemap.Close()
	var entry [8]byte
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) / uintptr(os.Getpagesize())
	if _, err := pagemap.ReadAt(entry[:], int64(at)*int64(len(entry))); err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint64(entry[:])>>63 != 0
}

// The address of a fault is exact or, on s390x, the address of its page. Neighbours of a mapping
// are not part of it.
func TestFaultsOfMapping(t *testing.T) {
	page := os.Getpagesize()
	pages, err := mapAnonymous(4*page, false)
	if err != nil {
		t.Fatal(err)
	}
	defer unmap(pages)
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(pages)))
	m := mapping(pages[page+100 : 3*page-100])
	for at, want := range map[int]bool{
		page - 1: false, page: true, page + 100: true, 2 * page: true, 3*page - 101: true, 3*page - 100: false, 3 * page: false,
	} {
		if m.holds(begin+uintptr(at)) != want {
			t.Errorf("a fault at byte %d: inside is %t, want %t", at, !want, want)
		}
	}
}
