//go:build linux && cgo && !race

// The race detector's own code looks at memory before the program's does, and does not survive a
// fault.

package main

import (
	"errors"
	"syscall"
	"testing"
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

// TestBadAddresses: memory that the program does not have is EFAULT, and the program goes on.
func TestBadAddresses(t *testing.T) {
	page := uint64(unix.Getpagesize())
	none := pages(t, 2, unix.PROT_NONE)
	readable := pages(t, 2, unix.PROT_READ)
	writable := pages(t, 2, unix.PROT_READ|unix.PROT_WRITE)
	p := new(process)
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
			t.Errorf("registering %s: %d octets, %v", x.what, len(mem), err)
		}
	}
}

var seen byte

// TestBadCommand: a command that lies in memory which the program does not have.
func TestBadCommand(t *testing.T) {
	err := func() (err error) {
		defer guard(func(e error) { err = e })()
		seen = at(8, 64)[0]
		return nil
	}()
	if !errors.Is(err, syscall.EFAULT) {
		t.Errorf("an access to the first page: %v, want EFAULT", err)
	}
	if got := negative(err); got != -int(syscall.EFAULT) {
		t.Errorf("C is returned %d", got)
	}
}

// TestGuardPassesOn: what is no fault of the program's is not hidden.
func TestGuardPassesOn(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a panic of the bridge was taken for a fault of the program")
		}
	}()
	func() {
		defer guard(func(error) { t.Error("it was taken for EFAULT") })()
		var list []int
		_ = list[len(t.Name())]
	}()
}
