package engine

import "github.com/govs-rdma/govs/provider/engine/internal/sched"

// gate admits uses of something until it is shut, and lets the one who shuts it wait
// for the uses in progress. enter and leave are one atomic addition. It can be opened
// again, by whoever sees to it that nobody else shuts it meanwhile.
type gate struct {
	n       sched.Int64   // uses in progress, plus gateShut while shut
	drained chan struct{} // holds one token: look at n again
}

const gateShut = 1 << 62

func (g *gate) init() { g.drained = make(chan struct{}, 1) }

// prepare is init for a gate that can be entered before init, because nobody has shut it
// yet. A goroutine that is about to shut such a gate calls prepare first, and makes sure
// that no other does so at the same time.
func (g *gate) prepare() {
	if g.drained == nil {
		g.init()
	}
}

// initShut is init for a gate that is opened later.
func (g *gate) initShut() {
	g.init()
	g.n.Store(gateShut)
}

// enter begins a use. It reports false if the gate is shut.
func (g *gate) enter() bool {
	if g.n.Add(1) < gateShut {
		return true
	}
	g.leave()
	return false
}

// leave ends a use.
func (g *gate) leave() {
	if g.n.Add(-1) == gateShut {
		g.wake()
	}
}

// wake has one of those who wait in shut look again. A token that is there already
// does that as well.
func (g *gate) wake() {
	select {
	case g.drained <- struct{}{}:
	default:
	}
}

// shut lets no further use begin, and returns when none is in progress. It may
// be called several times, also concurrently.
func (g *gate) shut() {
	for {
		n := g.n.Load()
		if n >= gateShut || g.n.CompareAndSwap(n, n+gateShut) {
			break
		}
	}
	// Whoever tries to enter is counted for a moment, and leaves with a token.
	for g.n.Load() != gateShut {
		sched.Await(g.drained)
	}
	g.wake() // who else waits here
}

// open undoes shut. What was written before it is seen by whoever enters.
func (g *gate) open() { g.n.Add(-gateShut) }

// isShut reports whether shut was called.
func (g *gate) isShut() bool { return g.n.Load() >= gateShut }
