//go:build schedules

package sched

import "sync/atomic"

// Bool is atomic.Bool, each operation a step.
type Bool struct{ v atomic.Bool }

// Load is a step.
func (b *Bool) Load() bool { Step(); return b.v.Load() }

// Store is a step.
func (b *Bool) Store(v bool) { Step(); b.v.Store(v) }

// Swap is a step.
func (b *Bool) Swap(v bool) bool { Step(); return b.v.Swap(v) }

// CompareAndSwap is a step.
func (b *Bool) CompareAndSwap(from, to bool) bool { Step(); return b.v.CompareAndSwap(from, to) }

// Int64 is atomic.Int64, each operation a step.
type Int64 struct{ v atomic.Int64 }

// Load is a step.
func (i *Int64) Load() int64 { Step(); return i.v.Load() }

// Store is a step.
func (i *Int64) Store(v int64) { Step(); i.v.Store(v) }

// Add is a step.
func (i *Int64) Add(d int64) int64 { Step(); return i.v.Add(d) }

// CompareAndSwap is a step.
func (i *Int64) CompareAndSwap(from, to int64) bool { Step(); return i.v.CompareAndSwap(from, to) }

// Uint32 is atomic.Uint32, each operation a step.
type Uint32 struct{ v atomic.Uint32 }

// Load is a step.
func (i *Uint32) Load() uint32 { Step(); return i.v.Load() }

// Store is a step.
func (i *Uint32) Store(v uint32) { Step(); i.v.Store(v) }

// Add is a step.
func (i *Uint32) Add(d uint32) uint32 { Step(); return i.v.Add(d) }

// Swap is a step.
func (i *Uint32) Swap(v uint32) uint32 { Step(); return i.v.Swap(v) }

// CompareAndSwap is a step.
func (i *Uint32) CompareAndSwap(from, to uint32) bool { Step(); return i.v.CompareAndSwap(from, to) }

// Uint64 is atomic.Uint64, each operation a step.
type Uint64 struct{ v atomic.Uint64 }

// Load is a step.
func (i *Uint64) Load() uint64 { Step(); return i.v.Load() }

// Store is a step.
func (i *Uint64) Store(v uint64) { Step(); i.v.Store(v) }

// Add is a step.
func (i *Uint64) Add(d uint64) uint64 { Step(); return i.v.Add(d) }

// Pointer is atomic.Pointer, each operation a step.
type Pointer[T any] struct{ v atomic.Pointer[T] }

// Load is a step.
func (p *Pointer[T]) Load() *T { Step(); return p.v.Load() }

// Store is a step.
func (p *Pointer[T]) Store(v *T) { Step(); p.v.Store(v) }

// Swap is a step.
func (p *Pointer[T]) Swap(v *T) *T { Step(); return p.v.Swap(v) }

// CompareAndSwap is a step.
func (p *Pointer[T]) CompareAndSwap(from, to *T) bool { Step(); return p.v.CompareAndSwap(from, to) }
