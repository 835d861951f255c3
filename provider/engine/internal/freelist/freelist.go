// Package freelist lends objects that are used for a short time and needed again.
package freelist

import (
	"sync/atomic"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// List lends objects that are too large to allocate for each use, and too large for every QP to
// have one. sync.Pool is unsuitable because it drops objects at random times, so allocations on the
// data path could not be ruled out.
//
// New and Idle are set before the first call. Methods may be called concurrently. An object belongs
// to the caller of Get until that calls Put. A List must not be copied.
type List[T any] struct {
	New  func() *T
	Idle func(*T) bool // whether a returned object holds nothing of the stream that had it

	// hot is the object that was put last, or nil. A poller that spins gets and puts one at each
	// look, and needs no lock for that.
	hot atomic.Pointer[T]

	mu   sched.Mutex[locks.FreeList]
	free [policy.Kept]*T
	n    int
	made int // in the list and lent
}

// Get lends an object until Put.
func (l *List[T]) Get() *T {
	if l.hot.Load() != nil {
		if x := l.hot.Swap(nil); x != nil {
			return x
		}
	}
	l.mu.Lock()
	if l.n > 0 {
		l.n--
		x := l.free[l.n]
		l.free[l.n] = nil
		l.mu.Unlock()
		return x
	}
	l.made++
	l.mu.Unlock()
	return l.New()
}

// Put returns an object of Get. x must hold nothing of the stream to which it was lent, because the
// next stream would get that. So Put panics if x is not idle.
func (l *List[T]) Put(x *T) {
	if !l.Idle(x) {
		panic("engine: a receive context, a batch or a part is given back with something in use")
	}
	if l.hot.Load() == nil && l.hot.CompareAndSwap(nil, x) {
		return
	}
	l.mu.Lock()
	if l.n < len(l.free) {
		l.free[l.n] = x
		l.n++
	} else {
		l.made--
	}
	l.mu.Unlock()
}

// Lent returns how many objects are lent.
func (l *List[T]) Lent() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.made - l.n
	if l.hot.Load() != nil {
		n--
	}
	return n
}

// Made returns how many objects exist, in the list and lent.
func (l *List[T]) Made() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.made
}

// All returns the objects in the list, which stay there. Tests check what the next borrower would
// get.
func (l *List[T]) All() []*T {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := append([]*T{}, l.free[:l.n]...)
	if x := l.hot.Load(); x != nil {
		all = append(all, x)
	}
	return all
}
