//go:build linux

package transport

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

var tracker atomic.Pointer[func(fd int, open bool)]

// TrackDescriptors makes the package call f for each descriptor that it opens from now on, and
// before it closes one. It is for a library in a program that forks: the child must close the
// descriptors, because a connection ends only when no process has its socket any more. f may be
// called concurrently.
func TrackDescriptors(f func(fd int, open bool)) { tracker.Store(&f) }

// opened reports a new descriptor.
func opened(fd int) {
	if f := tracker.Load(); f != nil {
		(*f)(fd, true)
	}
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
