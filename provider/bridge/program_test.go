package bridge

import (
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// testProgram is a program that a bridge serves. A mapping is its memory, and its descriptors are
// in a table.
type testProgram struct {
	t   *testing.T
	mem []byte

	mu    sync.Mutex
	files map[int]File
	owned map[int]bool
	next  int  // bytes of mem in use
	pins  int  // calls of Memory without a call of Release
	full  bool // descriptors cannot be adopted

	registering func() // called before memory is registered; may be nil
	releasing   func() // called before memory is released; may be nil
}

// newProgram makes a program with some memory. When the test ends, all that the bridge owned must
// be closed.
func newProgram(t *testing.T) *testProgram {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, 1<<24, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	p := &testProgram{t: t, mem: mem, files: map[int]File{}, owned: map[int]bool{}}
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for fd := range p.owned {
			t.Errorf("the bridge still owns descriptor %d", fd)
		}
		if p.pins != 0 {
			t.Errorf("%d pieces of memory are not released", p.pins)
		}
		_ = unix.Munmap(mem)
	})
	return p
}

func (p *testProgram) base() uint64 { return uint64(uintptr(unsafe.Pointer(&p.mem[0]))) }

// alloc returns n bytes of the program's memory and their address.
func (p *testProgram) alloc(n int) ([]byte, uint64) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	at := (p.next + 63) &^ 63
	if at+n > len(p.mem) {
		p.t.Fatal("the program's memory is used up")
	}
	p.next = at + n
	return p.mem[at : at+n : at+n], p.base() + uint64(at)
}

func (p *testProgram) Memory(addr, length uint64, _ bool) ([]byte, error) {
	mem, err := p.at(addr, length)
	if err == nil {
		p.mu.Lock()
		p.pins++
		p.mu.Unlock()
		if p.registering != nil {
			p.registering()
		}
	}
	return mem, err
}

func (p *testProgram) Release(uint64, uint64) {
	if p.releasing != nil {
		p.releasing()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pins--
}

func (p *testProgram) at(addr, length uint64) ([]byte, error) {
	off := addr - p.base()
	if addr < p.base() || off > uint64(len(p.mem)) || length > uint64(len(p.mem))-off {
		return nil, syscall.EFAULT
	}
	return p.mem[off : off+length : off+length], nil
}

func (p *testProgram) ReadMemory(addr uint64, b []byte) error {
	m, err := p.at(addr, uint64(len(b)))
	copy(b, m)
	return err
}

func (p *testProgram) WriteMemory(addr uint64, b []byte) error {
	m, err := p.at(addr, uint64(len(b)))
	copy(m, b)
	return err
}

func (p *testProgram) Adopt(fd int, f File) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full {
		return syscall.EMFILE
	}
	p.files[fd] = f
	return nil
}

func (p *testProgram) File(fd int) File {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.files[fd]
}

func (p *testProgram) Own(fd int, open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if open {
		p.owned[fd] = true
	} else {
		delete(p.owned, fd)
	}
}

// close closes a descriptor of the program.
func (p *testProgram) close(fd int) {
	p.t.Helper()
	p.mu.Lock()
	f := p.files[fd]
	delete(p.files, fd)
	p.mu.Unlock()
	if f != nil {
		f.Close()
	}
	if err := unix.Close(fd); err != nil {
		p.t.Errorf("closing descriptor %d: %v", fd, err)
	}
}

// pollIn waits ms milliseconds for something to read, even if signals interrupt it, as the Go
// runtime's do.
func pollIn(fd, ms int) bool {
	for end := time.Now().Add(time.Duration(ms) * time.Millisecond); ; {
		left := max(time.Until(end).Milliseconds(), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left))
		if !errors.Is(err, unix.EINTR) {
			return n == 1 && err == nil
		}
	}
}

// epollWait waits for at most one event and returns the number of events, even if a signal
// interrupts it. epoll_wait is not restarted after a signal's handler, whatever its flags
// (signal(7)).
func epollWait(t *testing.T, epoll int, wait time.Duration) int {
	t.Helper()
	for end := time.Now().Add(wait); ; {
		left := max(time.Until(end).Milliseconds(), 0)
		n, err := unix.EpollWait(epoll, make([]unix.EpollEvent, 1), int(left))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}
