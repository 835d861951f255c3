//go:build !schedules

package sched

import (
	"sync"
	"sync/atomic"
)

// Explored reports whether this build can run schedules.
const Explored = false

// Mutex is a lock of rank R.
type Mutex[R Rank] = sync.Mutex

// Flags and counters by which goroutines communicate.
type (
	Bool           = atomic.Bool
	Int64          = atomic.Int64
	Uint32         = atomic.Uint32
	Uint64         = atomic.Uint64
	Pointer[T any] = atomic.Pointer[T]
)

// Go starts a goroutine.
func Go(f func()) { go f() }

// Await receives from c.
func Await(c <-chan struct{}) { <-c }

// Yield sets the function that each step outside of a run calls. This build has no steps.
func Yield(func()) {}

// Step is a step that a test adds.
func Step() {}

// AssertHeld panics, in builds that can run schedules, unless the caller holds m.
func AssertHeld[R Rank](*Mutex[R]) {}
