package ibverbs

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// call is the arguments of a fake system call, and its result: at most n bytes.
type call struct {
	slices, at int
	n          int
	err        error
}

// TestWriteVectors: the next call writes what a system call leaves out, and exactly the bytes
// written before an error count.
func TestWriteVectors(t *testing.T) {
	const slice, off, most = 1000, 50, 1 << 30
	for _, c := range []struct {
		name   string
		slices int
		empty  bool // there are empty slices between them
		calls  []call
		n      int
		err    error
	}{
		{"one call", 4, false, []call{{4, 0, most, nil}}, 4000, nil},
		{"no octets", 0, true, nil, 0, nil},
		{"empty slices", 3, true, []call{{6, 0, most, nil}}, 3000, nil},
		{"short in a slice", 4, false,
			[]call{{4, 0, 1001, nil}, {3, 1001, 1, nil}, {3, 1002, most, nil}}, 4000, nil},
		{"short at the end of a slice", 4, false,
			[]call{{4, 0, 1000, nil}, {3, 1000, most, nil}}, 4000, nil},
		{"short before an empty slice", 2, true,
			[]call{{4, 0, 1000, nil}, {2, 1000, most, nil}}, 2000, nil},
		{"interrupted", 2, false, []call{{2, 0, -1, unix.EINTR}, {2, 0, 500, nil},
			{2, 500, -1, unix.EINTR}, {2, 500, most, nil}}, 2000, nil},
		{"an error", 2, false, []call{{2, 0, -1, unix.ENOSPC}}, 0, unix.ENOSPC},
		{"an error after a part", 4, false,
			[]call{{4, 0, 2500, nil}, {2, 2500, -1, unix.ENOSPC}}, 2500, unix.ENOSPC},
		{"nothing after a part", 4, false, []call{{4, 0, 2500, nil}, {2, 2500, 0, nil}}, 2500, nil},
		{"more slices than a call takes", maxVectors + 2, false,
			[]call{{maxVectors, 0, most, nil}, {2, maxVectors * slice, most, nil}},
			(maxVectors + 2) * slice, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := bytes.Repeat([]byte("octets of slices. "), c.slices*slice/18+1)[:c.slices*slice]
			v := slices.Collect(slices.Chunk(b, slice))
			if c.empty {
				v = between(v, nil)
			}
			was := slices.Clone(v)
			var got []byte
			calls := c.calls
			n, err := writeVectors(v, off, func(v [][]byte, at int64) (int, error) {
				if len(calls) == 0 {
					t.Fatalf("another call, at %d", at-off)
				}
				want := calls[0]
				calls = calls[1:]
				if len(v) != want.slices || at != int64(off+want.at) || len(got) != want.at {
					t.Fatalf("a call with %d slices at %d, want %d at %d",
						len(v), at-off, want.slices, want.at)
				}
				all := bytes.Join(v, nil)
				if want.err == nil {
					want.n = min(want.n, len(all))
					got = append(got, all[:want.n]...)
				}
				return want.n, want.err
			})
			if n != c.n || !errors.Is(err, c.err) || len(calls) > 0 {
				t.Errorf("%d octets, error %v; want %d, %v; %d calls are left",
					n, err, c.n, c.err, len(calls))
			}
			if !bytes.Equal(got, b[:c.n]) {
				t.Error("other octets")
			}
			if !slices.EqualFunc(v, was, func(a, b []byte) bool {
				return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
			}) {
				t.Error("the caller's slices have changed")
			}
		})
	}
}

// between returns v with s before, between and after its slices.
func between(v [][]byte, s []byte) [][]byte {
	all := [][]byte{s}
	for _, x := range v {
		all = append(all, x, s)
	}
	return all
}

// TestVectorsToMappedFile: vectors reach a mapped file with a system call, or through its pages if
// the program has closed it. A descriptor that another file has got is not written to.
func TestVectorsToMappedFile(t *testing.T) {
	const size, off, n = 1 << 20, 70_000, 250_000
	for _, closed := range []bool{false, true} {
		dir := t.TempDir()
		f, m := openMapped(t, dir, size, 0)
		if closed {
			fd := f.Fd()
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			otherFile(t, dir+"/other", int(fd), size)
		}
		b := bytes.Repeat([]byte("octets"), n)[:n]
		v := between(slices.Collect(slices.Chunk(b, 60_000)), nil)
		if wrote, err := m.WriteVectorAt(v, off); wrote != n || err != nil {
			t.Fatalf("closed %t: WriteVectorAt: %d, %v; want %d", closed, wrote, err, n)
		}
		if by := !present(t, m.mapping[off:]); by == closed {
			t.Errorf("closed %t: written with a call: %t", closed, by)
		}
		want := slices.Concat(make([]byte, 100+off), b, make([]byte, size-100-off-n))
		if got, err := os.ReadFile(dir + "/file"); err != nil || !bytes.Equal(got, want) {
			t.Errorf("closed %t: other octets in the file, error %v", closed, err)
		}
		if got, err := os.ReadFile(dir + "/other"); closed &&
			(err != nil || !bytes.Equal(got, make([]byte, size))) {
			t.Errorf("another file with the descriptor was written, error %v", err)
		}
	}
}

// otherFile opens a new file of n bytes whose descriptor is fd, which is free.
func otherFile(t *testing.T, path string, fd, n int) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(n)); err != nil {
		t.Fatal(err)
	}
	if int(f.Fd()) == fd {
		return
	}
	got, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(got) })
	if got != fd {
		t.Fatalf("the descriptor %d is not free any more", fd)
	}
}

// TestVectorsToFileCutShort: of a vector the bytes before the end of a truncated file count, and
// the file keeps its end.
func TestVectorsToFileCutShort(t *testing.T) {
	const end = 64 << 10 // whole pages
	f, m := openMapped(t, t.TempDir(), 1<<20, 0)
	if err := f.Truncate(end); err != nil {
		t.Fatal(err)
	}
	b := bytes.Repeat([]byte{1}, 3*end)
	n, err := m.WriteVectorAt(slices.Collect(slices.Chunk(b, 20_000)), 10_000)
	if n != 40_000 || !errors.Is(err, syscall.EIO) {
		t.Errorf("%d octets, error %v; want 40000, EIO", n, err)
	}
	info, err := f.Stat()
	if err != nil || info.Size() != end {
		t.Errorf("the file has %v octets, want %d; error %v", info.Size(), end, err)
	}
	got := make([]byte, n)
	if _, err := f.ReadAt(got, 10_100); err != nil || !bytes.Equal(got, b[:n]) {
		t.Errorf("other octets, error %v", err)
	}
}
