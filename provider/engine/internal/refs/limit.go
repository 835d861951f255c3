package refs

import (
	"sync/atomic"
	"syscall"
)

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
