//go:build linux

package transport

import "sync/atomic"

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
