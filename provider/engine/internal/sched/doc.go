// Package sched has the locks, flags and goroutines of the engine, so that a test can decide in
// which order goroutines take their steps.
//
// In the normal build every type is an alias of the one of sync or sync/atomic and every function
// is inlined: the seam costs nothing. With the build tag "schedules" each operation that another
// goroutine can see is a step, and two things are added:
//
//   - The order of locks is checked, always: a lock that is waited for must come after all locks
//     that the goroutine holds. The order is the one in which the ranks name each other ([First],
//     [After]).
//   - [Run] executes a few goroutines, the actors, one at a time. Before each step a [Chooser]
//     decides which actor goes next. [Search] enumerates schedules up to a number of preemptions,
//     [Random] draws them from a seed, [Replay] repeats one.
//
// Outside of a run, [Yield] has something done at each step, for tests that load the whole engine.
//
// This is stateless model checking of the code itself, not of a model of it. What it can't see:
// effects of weak memory (all steps are sequentially consistent, as Go's atomics are), and plain
// reads and writes between two steps, which are for the race detector.
package sched

// Rank is the place of a lock in the order of locks. Its type names the lock before it; the zero
// value is all that is used of it.
type Rank interface{ Depth() int }

// First is embedded by the rank of the lock that comes before all others.
type First struct{}

// Depth implements Rank.
func (First) Depth() int { return 0 }

// After is embedded by the rank of a lock that comes after the one of rank R.
type After[R Rank] struct{}

// Depth implements Rank.
func (After[R]) Depth() int {
	var r R
	return r.Depth() + 1
}

// Leaf is embedded, beside After, by the rank of a lock under which no step is taken: no lock that
// is not a leaf, no flag, no wait. Taking it is no step either, because an actor that holds it can't
// be interrupted. That keeps the number of schedules small.
type Leaf struct{}

func (Leaf) leaf() {}

// Nests is embedded, beside After, by the rank of locks of which one goroutine may hold several.
// The order among those is for the code that does it to explain.
type Nests struct{}

func (Nests) nests() {}
