package turns

import (
	"slices"
	"testing"

	"github.com/govs-rdma/govs/provider/engine/internal/policy"
)

// served plays one round of the streams that have work, and returns those that had a turn.
func served(s *Sharing, states []*State, work []int) (order []int) {
	var r Round
	r.Begin(s)
	var ready []int
	for i := range states {
		if work[i] > 0 {
			r.Add(states[i])
			ready = append(ready, i)
		}
	}
	for n, budget := r.Next(); n >= 0; n, budget = r.Next() {
		i := ready[n]
		spent := min(budget, work[i])
		work[i] -= spent
		order = append(order, i)
		r.Done(n, spent, work[i] > 0)
	}
	return order
}

// streams returns the states of n streams.
func streams(n int, long bool) []*State {
	states := make([]*State, n)
	for i := range states {
		states[i] = new(State)
		states[i].long.Store(long)
	}
	return states
}

func want(t *testing.T, what string, got []int, want ...int) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: turns of %v, want %v", what, got, want)
	}
}

// TestShortComesFirst: a stream with one message has its turn before those with much to do,
// wherever it stands among them, and these wait one round, so that the program can answer.
func TestShortComesFirst(t *testing.T) {
	const much = 1 << 30
	var s Sharing
	states := streams(4, false)
	work := []int{much, much, much, 0}
	for _, round := range []struct {
		what    string
		message int // for the last stream
		turns   []int
	}{
		{"nobody is known to have much", 0, []int{0, 1, 2}},
		{"the first long turn", 0, []int{0}},
		{"a message comes", 100, []int{3}},
		{"it was answered", 0, []int{1}},
		{"the next message", 100, []int{3}},
		{"one after the other", 100, []int{3, 2}},
		{"long turns go round", 0, []int{0}},
		{"long turns go round", 0, []int{1}},
		{"a message after that", 100, []int{3}},
	} {
		work[3] = round.message
		want(t, round.what, served(&s, states, work), round.turns...)
	}
}

// TestRoundIsBounded: however many streams are ready and however much they have to do, a
// round comes to no more than one long turn and all short ones.
func TestRoundIsBounded(t *testing.T) {
	for ready := 1; ready <= policy.Round; ready++ {
		var s Sharing
		states, work := streams(ready, false), make([]int, ready)
		for round := range 4 * policy.Round {
			before := 0
			for i := range work {
				if work[i] == 0 && (i+round)%3 == 0 {
					work[i] = 1 + (i*7919+round*104729)%(2<<20)
				}
				before += work[i]
			}
			served(&s, states, work)
			for i := range work {
				before -= work[i]
			}
			if before > policy.BudgetAllShort+policy.BudgetLong+policy.BudgetLong/4 {
				t.Fatalf("%d streams: round %d came to %d bytes", ready, round, before)
			}
		}
	}
}

// TestNewcomersComeLast: a stream that has been ready before has its turn before the streams
// of a flood, although these, new ones in each round, use more than a round has.
func TestNewcomersComeLast(t *testing.T) {
	var s Sharing
	var old State
	for round := range 100 {
		var r Round
		r.Begin(&s)
		var fresh [policy.Round - 1]State
		for i := range fresh {
			r.Add(&fresh[i])
		}
		r.Add(&old)
		first, all := -1, 0
		for i, _ := r.Next(); i >= 0; i, _ = r.Next() {
			if first < 0 {
				first = i
			}
			all += policy.BudgetOne
			r.Done(i, policy.BudgetOne, false) // an end costs more than a turn has
		}
		if round > 0 && first != policy.Round-1 {
			t.Fatalf("round %d: stream %d came first", round, first)
		}
		if all > policy.BudgetAllShort {
			t.Fatalf("round %d came to %d", round, all)
		}
	}
}

// TestLengths: a short stream has no more than policy.BudgetOne however few there are, and each its
// part of policy.BudgetAllShort. Long ones have policy.BudgetLong between them, and the last of
// them enough to be worth it. Those with short turns that have used more than theirs leave nothing
// for the others of their kind, but the long ones have theirs.
func TestLengths(t *testing.T) {
	round := func(shorts, longs, each int) (shortTurns, longTurns []int) {
		var s Sharing
		var r Round
		states := append(streams(longs, true), streams(shorts, false)...)
		for _, long := range states[:longs] {
			long.passed.Store(true)
		}
		r.Begin(&s)
		for _, state := range states {
			r.Add(state)
		}
		for i, budget := r.Next(); i >= 0; i, budget = r.Next() {
			if i < longs {
				longTurns = append(longTurns, budget)
			} else {
				shortTurns = append(shortTurns, budget)
			}
			r.Done(i, each, i < longs)
		}
		return shortTurns, longTurns
	}
	const k = 1 << 10
	for _, tc := range []struct {
		shorts, longs, each int
		wantShort, wantLong []int
	}{
		{1, 0, 100, []int{policy.BudgetOne}, nil},
		{0, 1, policy.BudgetLong, nil, []int{policy.BudgetLong}},
		{8, 0, 100, slices.Repeat([]int{policy.BudgetAllShort / 8}, 8), nil},
		{0, 3, 100 * k, nil, []int{policy.BudgetLong, policy.BudgetLong - 100*k, policy.BudgetLong / 4}},
		{6, 2, policy.BudgetOne, slices.Repeat([]int{policy.BudgetAllShort / 6}, 4),
			[]int{policy.BudgetLong, policy.BudgetOne}},
		{2, 1, policy.BudgetAllShort, []int{policy.BudgetOne}, []int{policy.BudgetLong}},
	} {
		short, long := round(tc.shorts, tc.longs, tc.each)
		if !slices.Equal(short, tc.wantShort) || !slices.Equal(long, tc.wantLong) {
			t.Errorf("%d short and %d long ones that use %d: turns of %v and %v, want %v and %v",
				tc.shorts, tc.longs, tc.each, short, long, tc.wantShort, tc.wantLong)
		}
	}
}

// TestNothingToDo: long streams that turn out to have nothing to do cost the others no
// rounds.
func TestNothingToDo(t *testing.T) {
	var s Sharing
	states := streams(8, true)
	work := []int{1, 1, 1, 1, 1, 1, 1, 1}
	want(t, "all in one round", served(&s, states, work), 0, 1, 2, 3, 4, 5, 6, 7)
}

func TestRoundDoesNotAllocate(t *testing.T) {
	var s Sharing
	var state State
	if n := testing.AllocsPerRun(100, func() {
		var r Round
		r.Begin(&s)
		r.Add(&state)
		for i, budget := r.Next(); i >= 0; i, budget = r.Next() {
			r.Done(i, budget, true)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestNobodyStarves: each stream that stays ready has a long turn within the number of rounds in
// which all others have theirs, or twice that number if messages keep coming. Where more streams
// are ready than a round has, each round has others of them, and it may take twice as long again.
func TestNobodyStarves(t *testing.T) {
	const most = policy.Round
	for _, all := range []int{most, most + 1, 2 * most, 2*most + 1, 3 * most, 4 * most} {
		var s Sharing
		states := streams(all, false)
		numbers := map[*State]int{}
		for i, state := range states {
			numbers[state] = i
		}
		short, last := states[0], make([]int, all)
		longest := 2 * all
		if all > most {
			longest = 4 * all
		}
		for round := range 40 * most {
			work := slices.Repeat([]int{1 << 30}, most)
			if i := slices.Index(states[:most], short); i >= 0 {
				work[i] = 1 // always
			}
			for _, i := range served(&s, states[:most], work) {
				last[numbers[states[i]]] = round
			}
			// As epoll has them: who was reported goes to the end.
			states = append(states[most:], states[:most]...)
			for i, at := range last {
				if wait := round - at; wait > longest {
					t.Fatalf("%d are ready: stream %d has waited for %d rounds", all, i, wait)
				}
			}
		}
	}
}

// TestQueuedComeLast: long streams that wait outside of the rounds have what a round has for long
// ones, after those in it, and none in every second round in which a stream has a message.
func TestQueuedComeLast(t *testing.T) {
	var s Sharing
	queued, short := State{}, State{}
	for round := range 6 {
		var r Round
		r.Begin(&s)
		if round >= 2 {
			r.Add(&short)
			n, _ := r.Next()
			r.Done(n, 100, false)
			if n, _ = r.Next(); n >= 0 {
				t.Fatal("the one stream of a round has two turns")
			}
		}
		all, turns := 0, 0
		for budget := r.Queued(&queued); budget > 0; budget = r.Queued(&queued) {
			if most := max(policy.BudgetLong-all, policy.BudgetLong/4); budget > most {
				t.Errorf("a turn of %d after %d, want at most %d", budget, all, most)
			}
			all += budget / 2
			r.DoneQueued(&queued, budget/2, true)
			turns++
		}
		least, most := policy.BudgetLong, policy.BudgetLong*5/4
		if round >= 2 && round%2 == 0 { // the message comes first, and the program may answer it
			least, most = 0, 0
		}
		if all < least || all > most {
			t.Errorf("round %d has given %d turns of %d bytes", round, turns, all)
		}
		if !queued.Long() {
			t.Errorf("after round %d the stream is not long", round)
		}
	}
}
