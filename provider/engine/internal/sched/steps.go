//go:build schedules

package sched

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
)

// Explored reports whether this build can run schedules.
const Explored = true

// Mutex is a lock of rank R.
type Mutex[R Rank] struct {
	mu   sync.Mutex
	held atomic.Bool
}

// Lock locks m. In a run an actor that waits for m is not chosen until m is free.
func (m *Mutex[R]) Lock() {
	var r R
	w := holder()
	w.check(r)
	x := active.Load()
	_, leaf := any(r).(interface{ leaf() })
	switch {
	case x == nil:
		if !leaf {
			Step()
		}
		m.mu.Lock()
	case leaf:
		if !m.mu.TryLock() {
			x.fail("%s is contended, which is a leaf: a step was taken under it", rankName(r))
			x.stop() // m.mu.Lock would block forever: its holder would not be chosen
		}
	default:
		x.step()
		if !m.mu.TryLock() {
			x.wait(func() bool { return !m.held.Load() })
			if !m.mu.TryLock() {
				panic("sched: a lock that nobody holds can't be taken")
			}
		}
	}
	m.held.Store(true)
	w.add(r)
}

// yield is the function that a step outside of a run calls, nil for none.
var yield atomic.Pointer[func()]

// Yield sets the function that each step outside of a run calls, nil for none. If it occasionally
// calls runtime.Gosched, goroutines meet at steps where they otherwise seldom would.
func Yield(f func()) {
	if f == nil {
		yield.Store(nil)
		return
	}
	yield.Store(&f)
}

// TryLock tries to lock m and reports whether it did. It waits for nothing, so the order of locks
// does not restrict it. Locks that are taken while m is held are still checked against m.
func (m *Mutex[R]) TryLock() bool {
	var r R
	Step()
	if !m.mu.TryLock() {
		return false
	}
	m.held.Store(true)
	holder().add(r)
	return true
}

// Unlock unlocks m. It is a step, because others may try the lock before it is free.
func (m *Mutex[R]) Unlock() {
	var r R
	if _, leaf := any(r).(interface{ leaf() }); !leaf {
		Step()
	}
	holder().remove(r)
	m.held.Store(false)
	m.mu.Unlock()
}

func rankName(r Rank) string { return reflect.TypeOf(r).Name() }

// holding is the set of locks that one goroutine holds.
type holding struct{ ranks []Rank }

// holdings are the locks that goroutines outside of a run hold, by the address of the runtime's
// record of the goroutine. An entry outlives its goroutine: the next goroutine that gets the record
// uses it.
var holdings [64]struct {
	mu sync.Mutex
	of map[uintptr]*holding
}

// holder returns the holding of the calling goroutine.
func holder() *holding {
	if x := active.Load(); x != nil {
		return &x.current.holding
	}
	id := goroutine()
	some := &holdings[id>>8%uintptr(len(holdings))]
	some.mu.Lock()
	defer some.mu.Unlock()
	h := some.of[id]
	if h == nil {
		if some.of == nil {
			some.of = make(map[uintptr]*holding)
		}
		h = new(holding)
		some.of[id] = h
	}
	return h
}

// check panics if waiting for a lock of rank r may end in a deadlock.
func (h *holding) check(r Rank) {
	for _, held := range h.ranks {
		_, nests := any(r).(interface{ nests() })
		switch d := held.Depth() - r.Depth(); {
		case d < 0, d == 0 && nests:
		default:
			panic(fmt.Sprintf("sched: %s is taken while %s is held, against the order of locks",
				rankName(r), rankName(held)))
		}
	}
}

// AssertHeld panics unless the caller holds m. It is not a step.
func AssertHeld[R Rank](m *Mutex[R]) {
	var r R
	held := func(x Rank) bool { return x.Depth() == r.Depth() }
	if !m.held.Load() || !slices.ContainsFunc(holder().ranks, held) {
		panic(fmt.Sprintf("sched: the caller does not hold %s", rankName(r)))
	}
}

func (h *holding) add(r Rank) { h.ranks = append(h.ranks, r) }

func (h *holding) remove(r Rank) {
	for i := len(h.ranks) - 1; i >= 0; i-- {
		if h.ranks[i].Depth() == r.Depth() {
			h.ranks = append(h.ranks[:i], h.ranks[i+1:]...)
			return
		}
	}
	// Locked by another goroutine, or by this one before or after a run: nothing to check.
}

// Step is a step that a test adds.
func Step() {
	if x := active.Load(); x != nil {
		x.step()
	} else if f := yield.Load(); f != nil {
		(*f)()
	}
}

// Go starts a goroutine: in a run one more actor.
func Go(f func()) {
	if x := active.Load(); x != nil {
		x.add(f)
		return
	}
	go f()
}

// Await receives from c.
func Await(c <-chan struct{}) {
	x := active.Load()
	if x == nil {
		<-c
		return
	}
	x.step()
	for {
		select {
		case <-c:
			return
		default:
		}
		x.wait(func() bool { return len(c) > 0 })
	}
}
