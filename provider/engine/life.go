package engine

import (
	"math"
	"sync/atomic"
)

// life counts what depends on an object, so that closing in the wrong order
// says EBUSY, and remembers that the object is closed. It is safe for
// concurrent use; the zero value is alive and has no dependants.
type life struct {
	n atomic.Int64 // dependants, or lifeClosed
}

const lifeClosed = math.MinInt64

// hold adds a dependant. It reports false if the object is closed.
func (l *life) hold() bool {
	for {
		n := l.n.Load()
		if n < 0 {
			return false
		}
		if l.n.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// drop takes back one hold.
func (l *life) drop() {
	if l.n.Add(-1) < 0 {
		panic("engine: an object lost more dependants than it had")
	}
}

// held reports whether there is a dependant.
func (l *life) held() bool { return l.n.Load() > 0 }

// closed reports whether end has succeeded.
func (l *life) closed() bool { return l.n.Load() < 0 }

// end closes the object. first is true for the one call that did it, busy is
// true if dependants forbid it; neither, if it was closed before.
func (l *life) end() (first, busy bool) {
	for {
		switch n := l.n.Load(); {
		case n < 0:
			return false, false
		case n > 0:
			return false, true
		}
		if l.n.CompareAndSwap(0, lifeClosed) {
			return true, false
		}
	}
}
