// Package rundown implements rundown protection: it counts the uses of an object, and the end of
// the object refuses new uses and waits for those in progress.
package rundown

import (
	// The compiler inlines methods of sync/atomic only in packages that import it themselves, and
	// package sched has its types under other names.
	_ "sync/atomic"

	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// Gate admits uses of something until it is shut. Shut waits for the uses in progress. Enter and
// Leave are one atomic addition each. The gate can be opened again, if the caller ensures that no
// other goroutine shuts it at the same time.
//
// All methods but Init and InitShut, which come first, may be called concurrently. The Gate belongs
// to the object that contains it, and must not be copied. It records nothing about the goroutines
// that are inside: if one does not call Leave, Shut waits forever.
type Gate struct {
	n       sched.Int64   // uses in progress, plus shutBit while shut
	drained chan struct{} // holds one token: check n again
}

const shutBit = 1 << 62

// Init makes the gate an open one without uses.
func (g *Gate) Init() { g.drained = make(chan struct{}, 1) }

// InitShut makes the gate a shut one without uses. Open opens it later.
func (g *Gate) InitShut() {
	g.Init()
	g.n.Store(shutBit)
}

// Enter begins a use. It reports false if the gate is shut.
func (g *Gate) Enter() bool {
	if g.n.Add(1) < shutBit {
		return true
	}
	g.Leave()
	return false
}

// Leave ends a use.
func (g *Gate) Leave() {
	if g.n.Add(-1) == shutBit {
		g.wake()
	}
}

// wake makes one of the goroutines that wait in Shut check again. A token that is already there
// does so as well.
func (g *Gate) wake() {
	select {
	case g.drained <- struct{}{}:
	default:
	}
}

// Shut refuses further uses, and returns when none is in progress. It may be called several times,
// even concurrently.
func (g *Gate) Shut() {
	for {
		n := g.n.Load()
		if n >= shutBit || g.n.CompareAndSwap(n, n+shutBit) {
			break
		}
	}
	// A goroutine that tries to enter is counted for a moment, and leaves with a token.
	for g.n.Load() != shutBit {
		sched.Await(g.drained)
	}
	g.wake() // another goroutine that waits here
}

// Open undoes Shut. A goroutine that enters sees what was written before Open.
func (g *Gate) Open() { g.n.Add(-shutBit) }

// IsShut reports whether Shut was called.
func (g *Gate) IsShut() bool { return g.n.Load() >= shutBit }

// Uses returns how many uses are in progress, which other goroutines may change at any time.
func (g *Gate) Uses() int64 { return g.n.Load() &^ shutBit }
