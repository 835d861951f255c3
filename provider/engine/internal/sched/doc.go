// Package sched has the locks, flags and goroutines of the engine, so that a test can decide in
// which order goroutines take their steps.
//
// In the normal build every type is an alias of one of sync or sync/atomic and every function is
// inlined: the package costs nothing. With the build tag "schedules" each operation that another
// goroutine can see is a step, and two things are added:
//
//   - The order of locks is always checked: a lock that a goroutine waits for must come after all
//     locks that it holds. Each rank names the one before it ([First], [After]).
//   - [Run] executes a few goroutines, the actors, one at a time. Before each step a [Chooser]
//     decides which actor goes next. [Search] enumerates schedules up to a number of preemptions,
//     [Random] draws them from a seed, [Replay] repeats one.
//
// Outside of a run, [Yield] sets a function that is called at each step, for tests that load the
// whole engine.
//
// This is stateless model checking of the code itself, not of a model of it. It does not find
// effects of weak memory (all steps are sequentially consistent, as Go's atomics are), nor races of
// plain reads and writes between two steps, which the race detector finds.
package sched

// Rank is the place of a lock in the order of locks. Its type names the rank before it; only its
// zero value is used.
type Rank interface{ Depth() int }

// First is embedded by the rank of the lock that comes before all others.
type First struct{}

// Depth implements Rank.
func (First) Depth() int { return 0 }

// After is embedded by the rank of a lock that comes directly after the lock of rank R.
type After[R Rank] struct{}

// Depth implements Rank.
func (After[R]) Depth() int {
	var r R
	return r.Depth() + 1
}

// Leaf is embedded, beside After, by the rank of a lock under which no step is taken: the holder
// takes only other leaves, touches no flag and does not wait. Taking it is no step either, because
// an actor that holds it can't be interrupted. That keeps the number of schedules small.
type Leaf struct{}

func (Leaf) leaf() {} //nolint:unused // builds with the tag ask for it

// Nests is embedded, beside After, by the rank of locks of which one goroutine may hold several.
// Code that does so must explain why the order among them is safe.
type Nests struct{}

func (Nests) nests() {} //nolint:unused // builds with the tag ask for it
