// Package turns shares the time of a poller among the streams that are ready at the same time, so
// that a stream with little to do does not wait for streams with much.
//
// A turn is one call of a stream's handler, and a budget is what the stream may do in it. A budget
// is counted in bytes, so it needs no clock and is the same on every run. Work that costs more than
// its bytes counts as the bytes that take as long (about 0.35 ns each over loopback, with CRC). A
// stream is long if its last turn ended before its work did, otherwise short. A round is one Poll.
//
// In each round the short streams come first, with small budgets, until they have used
// policy.BudgetAllShort together. Then the long streams come, until they have used one large budget
// together. Among streams of one kind, the one whose last turn is longest ago comes first. If
// streams of both kinds are ready, the long ones have a turn only in every second round, so that a
// program that was woken by a message can answer it first. The first of the long streams remembers
// whether it was passed over, because the next round has other streams if more than policy.Round
// are ready.
//
// Long streams may also wait outside of the rounds, in a queue of the poller. They get the rest of
// a round after the streams in it (Queued).
package turns

import (
	"math/bits"
	"sync/atomic"

	"github.com/govs-rdma/govs/provider/engine/internal/policy"
)

// State is the state of a stream between rounds. Its zero value is for a stream that has had no
// turn.
type State struct {
	served atomic.Uint64 // the number of its last turn; 0: it has had none
	long   atomic.Bool
	passed atomic.Bool // it was passed over since, as the first long stream
}

// Long reports whether the stream's last turn ended before its work did.
func (s *State) Long() bool { return s.long.Load() }

func (s *State) setLong(long bool) {
	if s.long.Load() != long {
		s.long.Store(long)
	}
}

// Sharing is the state of a poller between rounds. Its zero value is ready to use. Rounds of
// several goroutines may overlap.
type Sharing struct {
	turns atomic.Uint64
}

// Round is one Poll's use of a Sharing. Only one goroutine may use it.
type Round struct {
	sharing *Sharing
	states  [policy.Round]*State
	n       int
	short   uint64 // short streams that have not had their turn in this round
	long    uint64 // long streams that have not
	shorts  int    // how many short streams were added
	begun   bool   // the turns of the long streams have begun
	left    int    // the rest of policy.BudgetAllShort, and then of policy.BudgetLong
}

// Begin begins a round of s.
func (r *Round) Begin(s *Sharing) { r.sharing, r.left = s, policy.BudgetAllShort }

// Add adds a stream that is ready. Its number is how many were added before it. A new stream comes
// after all others of its kind, as if it had just had a turn.
func (r *Round) Add(s *State) {
	if s.served.Load() == 0 {
		s.served.Store(r.sharing.turns.Add(1))
	}
	if s.long.Load() {
		r.long |= 1 << r.n
	} else {
		r.short |= 1 << r.n
		r.shorts++
	}
	r.states[r.n] = s
	r.n++
}

// Next returns the number of the next stream, and its budget in bytes; -1 when the round is over.
// Call Done before the next call of Next.
func (r *Round) Next() (number, budget int) {
	if r.short != 0 && r.left > 0 && !r.begun {
		return r.pick(&r.short), policy.BudgetOfShort(r.shorts)
	}
	if !r.begun {
		if r.long == 0 || r.pass() {
			return -1, 0
		}
		r.begun, r.left = true, policy.BudgetLong
	}
	budget = policy.BudgetOfLong(r.left)
	if r.long == 0 || budget == 0 {
		return -1, 0
	}
	return r.pick(&r.long), budget
}

// Queued returns the budget of the first long stream that waits outside of the round; 0 if it has
// no turn in this round. It is called after Next has returned -1. If it returns a budget, call
// DoneQueued before the next call.
func (r *Round) Queued(s *State) (budget int) {
	if !r.begun {
		if r.passes(s) {
			return 0
		}
		r.begun, r.left = true, policy.BudgetLong
	}
	if budget = policy.BudgetOfLong(r.left); budget > 0 {
		r.serve(s)
	}
	return budget
}

// DoneQueued records the end of a turn of Queued; the arguments are as for Done.
func (r *Round) DoneQueued(s *State, spent int, more bool) {
	r.left -= max(spent, policy.CallCost)
	s.setLong(more)
}

// pass reports whether the long streams must wait for the next round.
func (r *Round) pass() bool { return r.passes(r.states[r.first(r.long)]) }

// passes reports whether they must, where s is the first of them.
func (r *Round) passes(s *State) bool {
	if r.shorts == 0 || s.passed.Load() {
		return false
	}
	s.passed.Store(true)
	return true
}

// first returns the stream of a set whose last turn is longest ago.
func (r *Round) first(set uint64) int {
	best, first := -1, uint64(0)
	for rest := set; rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros64(rest)
		if at := r.states[i].served.Load(); best < 0 || at < first {
			best, first = i, at
		}
	}
	return best
}

// pick removes the stream whose last turn is longest ago from a set, and returns its number.
func (r *Round) pick(set *uint64) int {
	best := r.first(*set)
	*set &^= 1 << best
	r.serve(r.states[best])
	return best
}

// serve records that s has its turn.
func (r *Round) serve(s *State) {
	s.served.Store(r.sharing.turns.Add(1))
	if s.passed.Load() {
		s.passed.Store(false)
	}
}

// Done records how many bytes the turn of a stream has used, and whether the turn ended
// before the stream's work did.
func (r *Round) Done(number, spent int, more bool) {
	r.left -= max(spent, policy.CallCost)
	r.states[number].setLong(more)
}
