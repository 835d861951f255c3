package bridge

import (
	"container/heap"
	"sync"
	"syscall"
)

// handles holds the objects of one open device by the numbers that the program uses. As in the
// kernel, all kinds of objects share the numbers, and a new object gets the lowest free one.
type handles struct {
	mu   sync.RWMutex
	list []any // nil where a number is free
	free numbers
}

// numbers allocates numbers from 0 on. take returns the lowest free one, in logarithmic time.
type numbers struct {
	fresh uint32 // this number and all higher ones were never taken
	given given
}

func (n *numbers) take() uint32 {
	if len(n.given) > 0 {
		return heap.Pop(&n.given).(uint32)
	}
	n.fresh++
	return n.fresh - 1
}

// give frees a number.
func (n *numbers) give(id uint32) { heap.Push(&n.given, id) }

// given holds freed numbers: a [heap.Interface] whose first element is the lowest.
type given []uint32

func (g given) Len() int           { return len(g) }
func (g given) Less(i, j int) bool { return g[i] < g[j] }
func (g given) Swap(i, j int)      { g[i], g[j] = g[j], g[i] }
func (g *given) Push(id any)       { *g = append(*g, id.(uint32)) }
func (g *given) Pop() any {
	last := len(*g) - 1
	id := (*g)[last]
	*g = (*g)[:last]
	return id
}

// add gives x a number.
func (h *handles) add(x any) uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := h.free.take()
	if int(id) == len(h.list) {
		h.list = append(h.list, nil)
	}
	h.list[id] = x
	return id
}

// lookup returns the object of kind T with a number. It returns ENOENT if there is none, EINVAL if
// the object is of another kind, and EBUSY if it is being destroyed.
func lookup[T any](h *handles, id uint32) (x T, err error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return find[T](h, id)
}

// find returns the object of kind T with a number, with the errors of lookup. mu is held.
func find[T any](h *handles, id uint32) (x T, err error) {
	if int64(id) >= int64(len(h.list)) {
		return x, syscall.ENOENT
	}
	if y, ok := h.list[id].(T); ok {
		return y, nil
	}
	switch h.list[id].(type) {
	case nil:
		return x, syscall.ENOENT
	case leaving:
		return x, syscall.EBUSY
	}
	return x, syscall.EINVAL
}

// remove removes the object of kind T with a number, and calls destroy. If destroy fails, the
// object keeps its number. If there is no object, remove returns the errors of lookup.
func remove[T any](h *handles, id uint32, destroy func(T) error) error {
	h.mu.Lock()
	x, err := find[T](h, id)
	if err != nil {
		h.mu.Unlock()
		return err
	}
	h.list[id] = leaving{}
	h.mu.Unlock()
	err = destroy(x)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.list[id] = x
		return err
	}
	h.list[id] = nil
	h.free.give(id)
	return nil
}

// leaving takes the number of an object that is being destroyed.
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
