package ibverbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
)

// openMapped maps a new file of n bytes, except its first 100, for an object.
func openMapped(t *testing.T, dir string, n, flags int) (*os.File, *mappedFile) {
	t.Helper()
	f, err := os.OpenFile(dir+"/file", os.O_RDWR|os.O_CREATE|os.O_TRUNC|flags, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) // the test may have closed it
	if err := f.Truncate(int64(n)); err != nil {
		t.Fatal(err)
	}
	return f, mapped(t, f, n)
}

// mapped maps n bytes of a file, except its first 100, for an object.
func mapped(t *testing.T, f *os.File, n int) *mappedFile {
	t.Helper()
	pages, err := mapFile(f, 0, n, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmap(pages); err != nil {
			t.Error(err)
		}
	})
	return newMappedFile(f, 100, pages[100:])
}

// TestWritesToMappedFile: a write to a mapped file is a system call, which leaves the mapping's
// pages out of the page table. It is a copy instead if the call would have another effect, or is
// refused. Either way the bytes are in the file and in the mapping.
func TestWritesToMappedFile(t *testing.T) {
	const size, off, n = 1 << 20, 70_000, 20_000
	for _, c := range []struct {
		name   string
		flags  int
		before func(f *os.File) error
		calls  bool
	}{
		{"an open file", 0, nil, true},
		{"a closed file", 0, (*os.File).Close, false},
		{"O_APPEND", os.O_APPEND, nil, false},
		{"O_APPEND later", 0, func(f *os.File) error {
			_, err := unix.FcntlInt(f.Fd(), unix.F_SETFL, unix.O_APPEND)
			return err
		}, false},
		{"O_SYNC", os.O_SYNC, nil, false},
		{"O_DSYNC", unix.O_DSYNC, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			f, m := openMapped(t, dir, size, c.flags)
			if c.before != nil {
				if err := c.before(f); err != nil {
					t.Fatal(err)
				}
			}
			b := bytes.Repeat([]byte("octets"), n)[:n]
			if wrote, err := m.WriteAt(b, off); wrote != n || err != nil {
				t.Fatalf("WriteAt: %d, %v; want %d", wrote, err, n)
			}
			if by := !present(t, m.mapping[off:]); by != c.calls {
				t.Errorf("written with a call: %t, want %t", by, c.calls)
			}
			all, err := os.ReadFile(dir + "/file")
			if err != nil {
				t.Fatal(err)
			}
			if len(all) != size || !bytes.Equal(all[100+off:][:n], b) {
				t.Errorf("the file has %d bytes, want %d, or others than were written", len(all), size)
			}
			if !bytes.Equal(m.mapping[off:][:n], b) {
				t.Error("the mapping has other bytes")
			}
		})
	}
}

// TestFileCallsTakeTurns: calls beyond the bound wait until others end, and then go on.
func TestFileCallsTakeTurns(t *testing.T) {
	_, m := openMapped(t, t.TempDir(), 1000, 0)
	for range cap(fileCalls) {
		fileCalls <- struct{}{}
	}
	done := make(chan error)
	b := []byte("octets")
	go func() {
		_, err := m.WriteAt(b, 5)
		done <- err
	}()
	go func() {
		_, err := m.ReadAt(make([]byte, 6), 20)
		done <- err
	}()
	select {
	case <-done:
		t.Error("a call more than the bound is over")
	case <-time.After(20 * time.Millisecond):
	}
	for range cap(fileCalls) {
		<-fileCalls
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if !bytes.Equal(m.mapping[5:][:len(b)], b) {
		t.Error("the bytes are not in the mapping")
	}
}

// TestSealedFile: the mapping of a memory file can still be written when a seal forbids calls.
func TestSealedFile(t *testing.T) {
	fd, err := unix.MemfdCreate("sealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "sealed")
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	m := mapped(t, f, 1<<20)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err != nil {
		t.Fatal(err)
	}
	b := bytes.Repeat([]byte{7}, 30_000)
	if n, err := m.WriteAt(b, 5); n != len(b) || err != nil {
		t.Fatalf("WriteAt: %d, %v; want %d", n, err, len(b))
	}
	got := make([]byte, len(b))
	if _, err := f.ReadAt(got, 105); err != nil || !bytes.Equal(got, b) {
		t.Errorf("the file has other bytes; %v", err)
	}
}

// TestMappedFileCutShort: a write beyond the end of a truncated file is an error, and does not
// extend the file.
func TestMappedFileCutShort(t *testing.T) {
	f, m := openMapped(t, t.TempDir(), 1<<20, 0)
	if err := f.Truncate(50_000); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 30_000} {
		if _, err := m.WriteAt(make([]byte, n), 1<<19); !errors.Is(err, syscall.EIO) {
			t.Errorf("%d bytes: %v, want EIO", n, err)
		}
	}
	if size, err := f.Seek(0, io.SeekEnd); size != 50_000 || err != nil {
		t.Errorf("the file has %d bytes, want 50000; %v", size, err)
	}
}

// TestFileSizeLimit: if the process's limit forbids calls, the mapping is written.
func TestFileSizeLimit(t *testing.T) {
	const size, limit = 1 << 20, 100_000
	f, m := openMapped(t, t.TempDir(), size, 0)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	b := bytes.Repeat([]byte("limit"), 5000)
	_, across := m.WriteAt(b, limit-10_000) // a call can write a part of it
	_, beyond := m.WriteAt(b, 2*limit)
	if err := errors.Join(across, beyond, unix.Setrlimit(unix.RLIMIT_FSIZE, &was)); err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{limit - 10_000, 2 * limit} {
		got := make([]byte, len(b))
		if _, err := f.ReadAt(got, 100+off); err != nil || !bytes.Equal(got, b) {
			t.Errorf("the file has other bytes from %d on; %v", off, err)
		}
	}
}

// TestWritesWhileFileChanges: writes go on while the program closes the file. While the file is
// truncated again and again they succeed or return EIO, and the process goes on.
func TestWritesWhileFileChanges(t *testing.T) {
	const size, changes = 1 << 20, 100
	write := func(m *mappedFile, expected error, over *atomic.Bool) error {
		b := make([]byte, 30_000)
		v := [][]byte{b[:10_000], b[10_000:25_000], b[25_000:]}
		for i := int64(0); !over.Load(); i++ {
			_, err := m.WriteVectorAt(v, i*10_007%(size-100-int64(len(b))))
			if err != nil && (expected == nil || !errors.Is(err, expected)) {
				return err
			}
		}
		return nil
	}
	for _, c := range []struct {
		name     string
		change   func(f *os.File, i int) error
		expected error
	}{
		{"closed", func(f *os.File, i int) error {
			if i != changes/2 {
				return nil
			}
			return f.Close()
		}, nil},
		{"cut short", func(f *os.File, _ int) error {
			return errors.Join(f.Truncate(0), f.Truncate(size))
		}, syscall.EIO},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, m := openMapped(t, t.TempDir(), size, 0)
			var over atomic.Bool
			done := make(chan error, 2)
			for range cap(done) {
				go func() { done <- write(m, c.expected, &over) }()
			}
			var err error
			for i := range changes {
				err = errors.Join(err, c.change(f, i))
				time.Sleep(100 * time.Microsecond)
			}
			over.Store(true)
			if err := errors.Join(err, <-done, <-done); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMappedFileDiskFull: writing to a hole for which the disk has no room is an error, and the
// bytes beside it can be written.
func TestMappedFileDiskFull(t *testing.T) {
	testkit.NeedRoot(t, "only root can mount a small tmpfs")
	dir := t.TempDir()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine, and the mount with the thread
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Errorf("mount: %v", err)
			return
		}
		if err := unix.Mount("full", dir, "tmpfs", 0, "size=256k"); err != nil {
			t.Errorf("mount: %v", err)
			return
		}
		writeToFullDisk(t, dir)
	}()
	<-done
}

// writeToFullDisk writes to a file of 1 MiB on a disk with room for 256 KiB. It does not run on the
// test's goroutine.
func writeToFullDisk(t *testing.T, dir string) {
	f, err := os.Create(dir + "/file")
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Error(err)
		return
	}
	pages, err := mapFile(f, 0, 1<<20, true)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = unmap(pages) }()
	m := newMappedFile(f, 0, pages)
	b := bytes.Repeat([]byte{1}, 64<<10)
	for off := int64(0); off < 1<<20; off += int64(len(b)) {
		switch _, err := m.WriteAt(b, off); {
		case off < 256<<10 && err != nil:
			t.Errorf("64 KiB at %d, where there is room: %v", off, err)
		case off >= 256<<10 && (!errors.Is(err, syscall.ENOSPC) || !errors.Is(err, syscall.EIO)):
			t.Errorf("64 KiB at %d: %v, want ENOSPC and EIO", off, err)
		}
	}
	const room = 100_000 // bytes before those that have no room
	v := slices.Collect(slices.Chunk(make([]byte, 3*len(b)), len(b)))
	n, err := m.WriteVectorAt(v, 256<<10-room)
	if n != room || !errors.Is(err, syscall.ENOSPC) || !errors.Is(err, syscall.EIO) {
		t.Errorf("a vector: %d bytes, error %v; want %d, ENOSPC and EIO", n, err, room)
	}
	if _, err := m.WriteAt(b[:100], 1<<19); !errors.Is(err, syscall.EIO) {
		t.Errorf("100 bytes: %v, want EIO", err)
	}
	if _, err := m.WriteAt(b[:100], 200); err != nil {
		t.Errorf("100 bytes that are there: %v", err)
	}
}

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
		page - 1: false, page: true, page + 100: true, 2 * page: true, 3*page - 101: true,
		3*page - 100: false, 3 * page: false,
	} {
		if m.holds(begin+uintptr(at)) != want {
			t.Errorf("a fault at byte %d: inside is %t, want %t", at, !want, want)
		}
	}
}
