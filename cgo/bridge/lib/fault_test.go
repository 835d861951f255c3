//go:build linux && cgo

package main

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/govs-rdma/govs/ci/testkit"
	"golang.org/x/sys/unix"
)

// pages maps n pages with protection prot, and returns their address.
func pages(t *testing.T, n, prot int) uint64 {
	t.Helper()
	mem := testkit.Must(unix.Mmap(-1, 0, n*unix.Getpagesize(), prot,
		unix.MAP_PRIVATE|unix.MAP_ANON))(t)
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
}

// TestBadAddresses: accessing memory that the program does not have returns EFAULT, and the program
// continues.
func TestBadAddresses(t *testing.T) {
	page := uint64(unix.Getpagesize())
	none := pages(t, 2, unix.PROT_NONE)
	readable := pages(t, 2, unix.PROT_READ)
	writable := pages(t, 2, unix.PROT_READ|unix.PROT_WRITE)
	p := &process{pid: os.Getpid()}
	buf := make([]byte, 64)
	for what, addr := range map[string]uint64{
		"address 0": 0, "the first page": 8, "memory without rights": none + 10,
		"an address that no program has": 1 << 63,
		"one that is not canonical":      0x0100_0000_0000_0000, "the last": ^uint64(0) - 3,
	} {
		for name, err := range map[string]error{"reading": p.ReadMemory(addr, buf),
			"writing": p.WriteMemory(addr, buf)} {
			if !errors.Is(err, syscall.EFAULT) {
				t.Errorf("%s %s: %v, want EFAULT", name, what, err)
			}
		}
		if _, err := p.Memory(addr, 64, true); !errors.Is(err, syscall.EFAULT) {
			t.Errorf("registering %s: %v, want EFAULT", what, err)
		}
	}
	testkit.OK(t, p.ReadMemory(readable, buf))
	if err := p.WriteMemory(readable, buf); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("writing memory that can be read only: %v", err)
	}
	testkit.OK(t, p.WriteMemory(writable+page-32, buf)) // across pages
	for _, x := range []struct {
		what   string
		addr   uint64
		length uint64
		write  bool
		ok     bool
	}{
		{"what can be read, for reading", readable, 2 * page, false, true},
		{"what can be read, for writing", readable, page, true, false},
		{"what can be written", writable + 1, 2*page - 1, true, true},
		{"memory that has no end", writable, ^uint64(0), true, false},
		{"memory that wraps around", ^uint64(0) - 10, 100, false, false},
	} {
		mem, err := p.Memory(x.addr, x.length, x.write)
		if (err == nil) != x.ok || x.ok && uint64(len(mem)) != x.length {
			t.Errorf("registering %s: %d bytes, %v", x.what, len(mem), err)
		}
	}
}

// TestPossible: programs have addresses of 47 to 56 bits.
func TestPossible(t *testing.T) {
	for _, x := range []struct {
		addr, length uint64
		want         bool
	}{
		{0, 1, false}, {1, 1, true}, {1<<47 - 4096, 4096, true}, {1<<52 - 4096, 4096, true},
		{1<<56 - 1, 1, true}, {1<<63 - 1, 1, true}, {1<<63 - 1, 2, false}, {1 << 63, 1, false},
		{1, ^uint64(0) - 1, false}, {^uint64(0), 1, false}, {^uint64(0) - 4096, 8192, false},
	} {
		if got := possible(x.addr, x.length); got != x.want {
			t.Errorf("%d bytes at %#x: %v, want %v", x.length, x.addr, got, x.want)
		}
	}
}

// TestNoPlace: no place in the table of regions has memory that is not the program's, not even
// while its registration fails.
func TestNoPlace(t *testing.T) {
	p := &process{pid: os.Getpid()}
	if _, err := p.Memory(pages(t, 2, unix.PROT_READ), 1<<46, false); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("registering 64 TiB: %v, want EFAULT", err)
	}
	if p.regions.taken != 0 {
		t.Error("it got a place")
	}
}

// TestTouch: pages are made present and stay unchanged even without Linux 5.14's advice.
func TestTouch(t *testing.T) {
	page := uint64(unix.Getpagesize())
	p := &process{pid: os.Getpid()}
	none := pages(t, 1, unix.PROT_NONE)
	readable := pages(t, 2, unix.PROT_READ)
	writable := pages(t, 2, unix.PROT_READ|unix.PROT_WRITE)
	for i := range byte(8) {
		at(writable, 8)[i] = i + 100
	}
	for _, x := range []struct {
		what  string
		addr  uint64
		write bool
		want  error
	}{
		{"no rights, for reading", none, false, syscall.EFAULT},
		{"no rights, for writing", none, true, syscall.EFAULT},
		{"what can be read, for reading", readable, false, nil},
		{"what can be read, for writing", readable, true, syscall.EFAULT},
		{"what can be written, for reading", writable, false, nil},
		{"what can be written, for writing", writable, true, nil},
	} {
		if err := p.touch(x.addr, 1, page, x.write); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", x.what, err, x.want)
		}
	}
	testkit.OK(t, p.touch(writable, 2, page, true))
	for i, x := range at(writable, 8) {
		if int(x) != i+100 {
			t.Errorf("byte %d is %d, want %d", i, x, i+100)
		}
	}
}

// taker is a File that accepts everything.
type taker struct{ closed bool }

func (*taker) Write(b []byte) (int, error) { return len(b), nil }
func (f *taker) Close()                    { f.closed = true }

// TestWrite: a command reaches its descriptor's object without an allocation, until the descriptor
// is closed.
func TestWrite(t *testing.T) {
	p := &process{pid: os.Getpid(), frames: func(addr uint64, _ int) bool { return addr != 0 }}
	p.files.Store(&[]*openFile{nil})
	f := new(taker)
	object := p.number(f)
	buf := make([]byte, 32)
	if got := testing.AllocsPerRun(100, func() {
		if n, err := p.write(object, unsafe.Pointer(&buf[0]), 32); n != 32 || err != nil {
			t.Fatalf("%d bytes taken, %v", n, err)
		}
	}); got != 0 {
		t.Errorf("%v allocations for a command", got)
	}
	for what, want := range map[uint64]error{0: syscall.EINVAL, 7: syscall.EINVAL,
		8: syscall.EFAULT} {
		if _, err := p.write(object, nil, what); !errors.Is(err, want) {
			t.Errorf("%d bytes at NULL: %v, want %v", what, err, want)
		}
	}
	p.close(object)
	if _, err := p.write(object, unsafe.Pointer(&buf[0]), 32); !f.closed || !errors.Is(err,
		syscall.EBADF) {
		t.Errorf("after the close: %v, want EBADF; the object is closed: %v", err, f.closed)
	}
	if again := p.number(f); again != object {
		t.Errorf("the next object has the number %d, want %d again", again, object)
	}
}

// patience limits how long a test waits for an event that must come.
const patience = 2 * time.Minute

// waiter is a File whose commands wait.
type waiter struct{ begun, end, closed chan struct{} }

func (f *waiter) Write(b []byte) (int, error) {
	close(f.begun)
	<-f.end
	return len(b), nil
}

func (f *waiter) Close() { close(f.closed) }

// TestCloseBesideACommand: closing a descriptor does not wait for another thread's command, for
// example a CONNECT to a peer that does not answer. As in the kernel, the object ends with that
// command.
func TestCloseBesideACommand(t *testing.T) {
	p := &process{pid: os.Getpid(), frames: func(uint64, int) bool { return true }}
	p.files.Store(&[]*openFile{nil})
	f := &waiter{make(chan struct{}), make(chan struct{}), make(chan struct{})}
	object := p.number(f)
	buf := make([]byte, 32)
	written := make(chan error, 1)
	go func() {
		_, err := p.write(object, unsafe.Pointer(&buf[0]), 32)
		written <- err
	}()
	<-f.begun
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		p.close(object)
	}()
	select {
	case <-returned:
	case <-time.After(patience):
		t.Fatal("close waits for the command")
	}
	select {
	case <-f.closed:
		t.Error("the object has ended, and a command uses it")
	default:
	}
	if _, err := p.write(object, unsafe.Pointer(&buf[0]), 32); !errors.Is(err, syscall.EBADF) {
		t.Errorf("a command after the close: %v, want EBADF", err)
	}
	close(f.end)
	testkit.OK(t, <-written)
	<-f.closed
}
