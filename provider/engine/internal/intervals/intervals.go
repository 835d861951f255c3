// Package intervals has sets of address intervals, and finds those that overlap with another one.
package intervals

import (
	"math/bits"
	"math/rand/v2"
	"unsafe"
)

// Interval is where a slice lies: the octets from lo to before hi. Value is the owner's.
//
// An Interval is in one Set at most. The owner guards a Set and all Intervals that are in it, or
// in the ring of one that is in it, by one lock.
type Interval[T any] struct {
	Value  T
	lo, hi uintptr

	// Of the tree, a treap ordered by lo and hi: it is as deep as a tree that is built in random
	// order. max is the highest hi of the subtree.
	left, right *Interval[T]
	max         uintptr
	priority    uint64

	// A ring of intervals of the same octets, of which one is in the tree. nil for one that is
	// alone.
	before, after *Interval[T]
}

// New returns the interval of b.
func New[T any](b []byte, v T) *Interval[T] { return new(Interval[T]).Reset(b, v) }

// Reset makes n, which is in no set and no ring, the interval of b, and returns it. It allocates
// nothing.
func (n *Interval[T]) Reset(b []byte, v T) *Interval[T] {
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	*n = Interval[T]{Value: v, lo: lo, hi: lo + uintptr(len(b)), priority: rand.Uint64()}
	return n
}

// Join adds v, which is in no ring, to the ring of n.
func (n *Interval[T]) Join(v *Interval[T]) {
	if n.after == nil {
		n.before, n.after = n, n
	}
	v.before, v.after = n, n.after
	n.after.before = v
	n.after = v
}

// Leave takes n out of its ring and returns one that remains, nil if n was alone.
func (n *Interval[T]) Leave() *Interval[T] {
	rest := n.after
	if rest == nil {
		return nil
	}
	n.before.after, rest.before = rest, n.before
	if rest.after == rest {
		rest.before, rest.after = nil, nil
	}
	n.before, n.after = nil, nil
	return rest
}

// Set is a set of intervals. The zero value is empty. To find those that overlap with another
// interval takes logarithmic time for each that is found.
type Set[T any] struct{ root *Interval[T] }

// Insert adds v, which is in no set.
func (t *Set[T]) Insert(v *Interval[T]) {
	v.left, v.right, v.max = nil, nil, v.hi
	before, after := t.root.splitBy(v)
	t.root = join(join(before, v), after)
}

// Remove takes v out of the set. It panics if v is not in it.
func (t *Set[T]) Remove(v *Interval[T]) { t.root = t.root.without(v) }

// Find returns one of the same octets as v, nil if there is none.
func (t *Set[T]) Find(v *Interval[T]) *Interval[T] {
	n := t.root
	for n != nil && (n.lo != v.lo || n.hi != v.hi) {
		if v.less(n) {
			n = n.left
		} else {
			n = n.right
		}
	}
	return n
}

// Replace puts w, of the same octets, in the place of v, if v is in the set.
func (t *Set[T]) Replace(v, w *Interval[T]) {
	if t.Find(v) == v {
		t.Remove(v)
		t.Insert(w)
	}
}

// Overlapping calls f for all that have an octet in common with v.
func (t *Set[T]) Overlapping(v *Interval[T], f func(*Interval[T])) { t.root.overlapping(v, f) }

func (n *Interval[T]) overlapping(v *Interval[T], f func(*Interval[T])) {
	for n != nil && n.max > v.lo {
		n.left.overlapping(v, f)
		if n.lo >= v.hi {
			return
		}
		if n.hi > v.lo {
			f(n)
		}
		n = n.right
	}
}

// less orders intervals by lo, then by hi, and those of the same octets by priority. Two
// priorities are the same once in 2^64.
func (n *Interval[T]) less(v *Interval[T]) bool {
	switch {
	case n.lo != v.lo:
		return n.lo < v.lo
	case n.hi != v.hi:
		return n.hi < v.hi
	}
	// Not by priority alone: intervals of the same octets, ordered as their priorities are, would
	// be a list. The lowest bits say nothing about the order of the numbers.
	return bits.Reverse64(n.priority) < bits.Reverse64(v.priority)
}

// splitBy divides the tree n into what is less than v and what is not.
func (n *Interval[T]) splitBy(v *Interval[T]) (before, after *Interval[T]) {
	if n == nil {
		return nil, nil
	}
	if n.less(v) {
		n.right, after = n.right.splitBy(v)
		n.measure()
		return n, after
	}
	before, n.left = n.left.splitBy(v)
	n.measure()
	return before, n
}

// join makes one tree of two, all of a being less than all of b.
func join[T any](a, b *Interval[T]) *Interval[T] {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.priority > b.priority:
		a.right = join(a.right, b)
		a.measure()
		return a
	}
	b.left = join(a, b.left)
	b.measure()
	return b
}

// without is the tree n without v, which is in it.
func (n *Interval[T]) without(v *Interval[T]) *Interval[T] {
	switch {
	case n == nil:
		panic("engine: an interval is not in its set")
	case n == v:
		return join(n.left, n.right)
	case v.less(n):
		n.left = n.left.without(v)
	default:
		n.right = n.right.without(v)
	}
	n.measure()
	return n
}

func (n *Interval[T]) measure() {
	n.max = n.hi
	if n.left != nil {
		n.max = max(n.max, n.left.max)
	}
	if n.right != nil {
		n.max = max(n.max, n.right.max)
	}
}
