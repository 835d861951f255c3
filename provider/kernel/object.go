//go:build cgo && linux && !nokernel

package kernel

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// object is the lifetime of anything that is made and closed. C crashes or hangs when a parent is
// destroyed before its children; libsiw, for example, unmaps a CQ's memory even if the kernel
// refuses to destroy the CQ. So an object with children is not destroyed.
type object struct {
	mu       sync.RWMutex
	closed   bool
	children atomic.Int64
}

// enter keeps the object open until leave, for the duration of one call. Calls must not nest: if
// Close came between two enters of one goroutine, both would deadlock.
func (o *object) enter() error {
	o.mu.RLock()
	if o.closed {
		o.mu.RUnlock()
		return os.ErrClosed
	}
	return nil
}

func (o *object) leave() { o.mu.RUnlock() }

// hold keeps the object from being closed until release: for a child, or for a long call.
func (o *object) hold() error {
	if err := o.enter(); err != nil {
		return err
	}
	defer o.leave()
	o.children.Add(1)
	return nil
}

func (o *object) release() { o.children.Add(-1) }

// close calls destroy once, when no call is running and no child exists.
func (o *object) close(destroy func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	if o.children.Load() > 0 {
		return syscall.EBUSY
	}
	if err := destroy(); err != nil {
		return err
	}
	o.closed = true
	return nil
}

// holdAll holds each of the objects or none.
func holdAll(objects ...*object) error {
	for i, o := range objects {
		if err := o.hold(); err != nil {
			releaseAll(objects[:i]...)
			return err
		}
	}
	return nil
}

func releaseAll(objects ...*object) {
	for _, o := range objects {
		o.release()
	}
}

// opError wraps the error of a failed C call as the contract requires; nil stays nil.
func opError(op, object string, err error) error {
	if err == nil {
		return nil
	}
	return &provider.Error{Op: op, Object: object, Err: err}
}

// A registry finds Go objects by the number that C stores as the context of a CQ, QP or id. Unlike
// pointers, numbers are never reused, so a late event cannot be attributed to a newer object. The
// registry keeps its objects from being garbage collected.
type registry[T any] struct {
	mu   sync.RWMutex
	last uintptr
	m    map[uintptr]T
}

func (r *registry[T]) add(v T) uintptr {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil {
		r.m = make(map[uintptr]T)
	}
	r.last++
	r.m[r.last] = v
	return r.last
}

func (r *registry[T]) remove(token uintptr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.m, token)
}

func (r *registry[T]) get(token uintptr) (T, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	v, ok := r.m[token]
	return v, ok
}

var (
	cqs registry[*cq]
	qps registry[*qp]
	ids registry[*id]
	mrs registry[*mr]
)
