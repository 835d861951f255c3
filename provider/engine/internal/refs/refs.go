// Package refs counts the dependants of an object, and objects whose number is limited.
package refs

import (
	"math"
	"sync/atomic"
	"syscall"
)

// Count counts the dependants of an object, so that closing in the wrong order returns EBUSY, and
// remembers that the object is closed. It is safe for concurrent use. The zero value is open and
// has no dependants. It belongs to the object that contains it, and must not be copied.
type Count struct {
	n atomic.Int64 // dependants, or ended
}

const ended = math.MinInt64

// Hold adds a dependant. It reports false if the object is closed.
func (c *Count) Hold() bool {
	for {
		n := c.n.Load()
		if n < 0 {
			return false
		}
		if c.n.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Drop undoes one Hold. Without one it panics.
func (c *Count) Drop() {
	if c.n.Add(-1) < 0 {
		panic("engine: an object lost more dependants than it had")
	}
}

// Held reports whether there is a dependant.
func (c *Count) Held() bool { return c.n.Load() > 0 }

// Len returns how many dependants there are. It is negative if the object is closed.
func (c *Count) Len() int64 { return c.n.Load() }

// Closed reports whether End has succeeded.
func (c *Count) Closed() bool { return c.n.Load() < 0 }

// End closes the object. first is true for the call that closed it, busy is true if dependants
// prevent that. Both are false if the object was closed before.
func (c *Count) End() (first, busy bool) {
	for {
		switch n := c.n.Load(); {
		case n < 0:
			return false, false
		case n > 0:
			return false, true
		}
		if c.n.CompareAndSwap(0, ended) {
			return true, false
		}
	}
}

// Limit counts objects of one kind. It is safe for concurrent use once Max is set, and must not be
// copied.
type Limit struct {
	Max int64
	n   atomic.Int64
}

// Take counts one more object. At the maximum it returns ENOMEM, as drivers do.
func (l *Limit) Take() error {
	if l.n.Add(1) > l.Max {
		l.n.Add(-1)
		return syscall.ENOMEM
	}
	return nil
}

// Give undoes one Take.
func (l *Limit) Give() { l.n.Add(-1) }

// Len returns how many objects are counted.
func (l *Limit) Len() int { return int(l.n.Load()) }
