// Package freelist lends objects that are used for a short time and needed again.
package freelist

import (
	"sync/atomic"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// List lends objects that are too large to allocate for each use and too large
// for every QP to have one. sync.Pool would do but for its dropping objects at random times,
// which makes allocations on the data path impossible to rule out.
//
// New and Idle are set before the first call. Methods may be called concurrently. An object
// belongs to whoever got it until that one puts it back; a List must not be copied.
type List[T any] struct {
	New  func() *T
	Idle func(*T) bool // whether what is put back holds nothing of the stream that had it

	// hot is what was put last, or nil. A poller that spins takes and puts one at
	// each look: here that costs it no lock.
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

// Put gives back what Get has lent. x must not hold anything of the stream that it was
// lent to: the next one would get that. So Put panics if x is not idle.
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

// Made returns how many objects there are, those in the list and those lent.
func (l *List[T]) Made() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.made
}

// All returns the objects that are in the list, which stay there: tests look at what the next
// borrower would get.
func (l *List[T]) All() []*T {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := append([]*T{}, l.free[:l.n]...)
	if x := l.hot.Load(); x != nil {
		all = append(all, x)
	}
	return all
}
