//go:build linux

package transport

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// fdRef is a file descriptor that can be closed while others use it. Its number returns to the
// system only after the last use, so that no read or write ever hits a descriptor that was opened
// later under the same number.
type fdRef struct {
	fd    int
	state atomic.Uint32 // users, and fdClosed
}

const fdClosed = 1 << 31

// acquire begins a use of fd. It returns false if fd is closed.
func (r *fdRef) acquire() bool {
	if r.state.Add(1)&fdClosed == 0 {
		return true
	}
	r.release()
	return false
}

func (r *fdRef) release() {
	if r.state.Add(^uint32(0)) == fdClosed {
		r.destroy()
	}
}

// close refuses new uses. It returns false if fd was closed before.
func (r *fdRef) close() bool {
	for {
		old := r.state.Load()
		if old&fdClosed != 0 {
			return false
		}
		if r.state.CompareAndSwap(old, old|fdClosed) {
			if old == 0 {
				r.destroy()
			}
			return true
		}
	}
}

func (r *fdRef) closed() bool { return r.state.Load()&fdClosed != 0 }

// destroy may be reached twice, by close and by an acquire that failed right after it; the swap
// lets only one of them continue.
func (r *fdRef) destroy() {
	if r.state.CompareAndSwap(fdClosed, fdClosed|fdClosed>>1) {
		_ = closeFD(r.fd) // Linux frees the number whatever close returns
	}
}

var tracker atomic.Pointer[func(fd int, open bool)]

// TrackDescriptors makes the package call f for each descriptor that it opens from now on, and
// before it closes one. It is for a library in a program that forks: the child must close the
// descriptors, because a connection ends only when no process has its socket any more. f may be
// called concurrently.
//
// From then on the descriptors are above 2, because the program may have closed 0, 1 or 2 and may
// still write to the standard streams.
func TrackDescriptors(f func(fd int, open bool)) { tracker.Store(&f) }

// opened reports a new descriptor. It returns the descriptor's number, which may be a new one.
func opened(fd int) int {
	f := tracker.Load()
	if f == nil {
		return fd
	}
	if fd <= unix.Stderr {
		if above, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, unix.Stderr+1); err == nil {
			_ = unix.Close(fd)
			fd = above
		}
	}
	(*f)(fd, true)
	return fd
}

// closing reports that a descriptor is about to be closed.
func closing(fd int) {
	if f := tracker.Load(); f != nil {
		(*f)(fd, false)
	}
}

// closeFD closes a descriptor for which opened was called.
func closeFD(fd int) error {
	closing(fd)
	return unix.Close(fd)
}
