package bridge

import (
	"sync"
	"syscall"
)

// handles are the objects of one open device, by the numbers that the program names them with: as
// in the kernel, all kinds together, and a new one gets the lowest number that is free.
type handles struct {
	mu   sync.RWMutex
	list []any // nil where a number is free
}

// add gives x a number.
func (h *handles) add(x any) uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, y := range h.list {
		if y == nil {
			h.list[i] = x
			return uint32(i)
		}
	}
	h.list = append(h.list, x)
	return uint32(len(h.list) - 1)
}

// lookup returns the object of kind T with a number. Commands that use an object return EINVAL if
// there is none.
func lookup[T any](h *handles, id uint32) (x T, err error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if int64(id) < int64(len(h.list)) {
		if x, ok := h.list[id].(T); ok {
			return x, nil
		}
	}
	return x, syscall.EINVAL
}

// remove takes the object of kind T with a number out, and calls destroy. If that fails, the object
// is there again, with the same number. Commands that destroy an object return ENOENT if there is
// none, EINVAL for one of another kind, and EBUSY while somebody else destroys it.
func remove[T any](h *handles, id uint32, destroy func(T) error) error {
	h.mu.Lock()
	x, err := leave[T](h, id)
	h.mu.Unlock()
	if err != nil {
		return err
	}
	err = destroy(x)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.list[id] = x
		return err
	}
	h.list[id] = nil
	return nil
}

// leave puts leaving in the place of the object of kind T with a number, and returns that. mu is
// held.
func leave[T any](h *handles, id uint32) (x T, err error) {
	if int64(id) >= int64(len(h.list)) {
		return x, syscall.ENOENT
	}
	switch y := h.list[id].(type) {
	case T:
		h.list[id] = leaving{}
		return y, nil
	case nil:
		return x, syscall.ENOENT
	case leaving:
		return x, syscall.EBUSY
	}
	return x, syscall.EINVAL
}

// leaving has the number of an object that is being destroyed.
type leaving struct{}

// all returns the objects of kind T.
func all[T any](h *handles) (list []T) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, y := range h.list {
		if x, ok := y.(T); ok {
			list = append(list, x)
		}
	}
	return list
}
