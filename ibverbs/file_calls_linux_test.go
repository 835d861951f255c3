package ibverbs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// openMapped maps a new file of n octets, all of it but the first 100, for an object.
func openMapped(t *testing.T, dir string, n, flags int) (*os.File, *mappedFile) {
	t.Helper()
	f, err := os.OpenFile(dir+"/file", os.O_RDWR|os.O_CREATE|os.O_TRUNC|flags, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) // may be closed already
	if err := f.Truncate(int64(n)); err != nil {
		t.Fatal(err)
	}
	return f, mapped(t, f, n)
}

// mapped maps n octets of a file, all but the first 100, for an object.
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
	return newMappedFile(f, 100, pages[100:], true)
}

// TestWritesToMappedFile: a write to a mapped file is a system call, which leaves the mapping's
// pages out of the page table, unless the call would do something else than a copy to these, or is
// refused. Either way the octets are in the file and in the mapping.
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
				t.Errorf("the file has %d octets, want %d, or others than were written", len(all), size)
			}
			if !bytes.Equal(m.mapping[off:][:n], b) {
				t.Error("the mapping has other octets")
			}
		})
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
		t.Errorf("the file has other octets; %v", err)
	}
}

// TestMappedFileCutShort: a write beyond the end of a file that was cut short is an error, and
// doesn't make the file longer.
func TestMappedFileCutShort(t *testing.T) {
	f, m := openMapped(t, t.TempDir(), 1<<20, 0)
	if err := f.Truncate(50_000); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 30_000} {
		if _, err := m.WriteAt(make([]byte, n), 1<<19); !errors.Is(err, syscall.EIO) {
			t.Errorf("%d octets: %v, want EIO", n, err)
		}
	}
	if size, err := f.Seek(0, io.SeekEnd); size != 50_000 || err != nil {
		t.Errorf("the file has %d octets, want 50000; %v", size, err)
	}
}

// TestMappedFileDiskFull: octets of a hole for which the disk has no room are an error, and what
// is beside them can be written.
func TestMappedFileDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a small tmpfs")
	}
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

// writeToFullDisk writes to a file of 1 MiB where there is room for 256 KiB. It runs on another
// goroutine than the test's.
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
	m := newMappedFile(f, 0, pages, true)
	b := bytes.Repeat([]byte{1}, 64<<10)
	for off := int64(0); off < 1<<20; off += int64(len(b)) {
		switch _, err := m.WriteAt(b, off); {
		case off < 256<<10 && err != nil:
			t.Errorf("64 KiB at %d, where there is room: %v", off, err)
		case off >= 256<<10 && (!errors.Is(err, syscall.ENOSPC) || !errors.Is(err, syscall.EIO)):
			t.Errorf("64 KiB at %d: %v, want ENOSPC and EIO", off, err)
		}
	}
	if _, err := m.WriteAt(b[:100], 1<<19); !errors.Is(err, syscall.EIO) {
		t.Errorf("100 octets: %v, want EIO", err)
	}
	if _, err := m.WriteAt(b[:100], 200); err != nil {
		t.Errorf("100 octets that are there: %v", err)
	}
}
