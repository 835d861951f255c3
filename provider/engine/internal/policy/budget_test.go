package policy

import (
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestReadLimit: whatever is left of a budget, a read takes the rest of an FPDU and the next
// header. Beyond the rest, it takes no more than a read may, and no more FPDUs than the budget pays
// for.
func TestReadLimit(t *testing.T) {
	for d := range CostShift(11) {
		for budget := -BudgetMost; budget <= BudgetMost; budget += 4093 {
			for rest := 0; rest <= 64<<10; rest += 1021 {
				n := d.ReadLimit(rest, budget)
				most := max(ReadLeast, min(ReadMost, budget>>d))
				if n < max(rest+ReadAhead, min(ReadLeast, rest+most)) || n > rest+most {
					t.Fatalf("shift %d, budget %d, rest %d: a read of %d", d, budget, rest, n)
				}
				if n > max(rest+ReadAhead, budget-budget/4, ReadLeast) {
					t.Fatalf("shift %d, budget %d, rest %d: a read of %d is over the budget", d, budget, rest, n)
				}
			}
		}
	}
}

// TestSpent: a read costs its bytes and its FPDUs. CostShift increases at once, but not for the end
// of a turn, and decreases by one, after full reads only.
func TestSpent(t *testing.T) {
	for before := range CostShift(11) {
		for n := 1; n <= ReadMost; n += 1 + n/7 {
			for fpdus := 0; fpdus <= n/20+1; fpdus += 1 + fpdus/5 {
				for _, full := range []bool{false, true} {
					d := before
					if cost := d.Spent(n, fpdus, full); cost != n+fpdus*FPDUCost {
						t.Fatalf("%d bytes and %d FPDUs cost %d", n, fpdus, cost)
					}
					rest := n < BudgetEnd && fpdus <= 2
					if d > before && rest || d < before && (!full || d != before-1) {
						t.Fatalf("%d bytes and %d FPDUs, full %t: the shift is %d after %d", n, fpdus, full, d, before)
					}
				}
			}
		}
	}
}

// TestCostShiftFirst: the first reads of a stream are as if it had received FPDUs without payload.
func TestCostShiftFirst(t *testing.T) {
	var d CostShift
	if d.Spent(20*100, 100, true); d != CostShiftFirst {
		t.Errorf("FPDUs without payload have shift %d, want %d", d, CostShiftFirst)
	}
}

// TestBatch plays all that a socket does in up to four calls, from all numbers of whole batches
// before them: a batch is never shorter than BatchSlow, longer than BatchOctets only after
// WholeBatches, and after a full socket at most twice what it took before.
func TestBatch(t *testing.T) {
	var play func(b Batch, left, row, since int)
	plays := 0
	check := func(b Batch, row int) {
		limit := b.Limit()
		if row >= WholeBatches && limit != BatchMost || row < WholeBatches && (limit < BatchSlow || limit > BatchOctets) {
			t.Fatalf("%d bytes after %d whole batches: %+v", limit, row, b)
		}
	}
	play = func(b Batch, left, row, since int) {
		check(b, row)
		if plays++; left == 0 {
			return
		}
		for _, n := range []int{1, BatchSlow, int(b.Limit()) / 2, int(b.Limit())} {
			for _, whole := range []bool{false, true} {
				next, again := b, 0
				if next.Took(n, whole); whole {
					again = row + 1
				}
				if next.target < b.target || n < int(b.target) && next.target > b.target && row+1 < WholeBatches {
					t.Fatalf("%d bytes of %+v: %+v", n, b, next)
				}
				play(next, left-1, again, since+n)
			}
		}
		next := b
		next.Full()
		if want := min(max(2*min(since, BatchOctets), BatchSlow), BatchOctets); next.Limit() != uint64(want) {
			t.Fatalf("full after %d bytes: %d, want %d", since, next.Limit(), want)
		}
		play(next, left-1, 0, 0)
	}
	b := NewBatch()
	for row := range WholeBatches + 2 {
		play(b, 4, row, row)
		b.Took(1, true)
	}
	testkit.Equal(t, "plays", plays, (WholeBatches+2)*(1+9+81+729+6561))
}

// TestBudgets: whatever others do, a budget is bounded, and a stream that has one can go on. One of
// several polled streams has less than a sole one.
func TestBudgets(t *testing.T) {
	for n, want := range []int{BudgetOne, BudgetSole, BudgetOne, BudgetOne} {
		testkit.Equal(t, "the budget of a stream", BudgetOfPoll(n), want)
	}
	for n := 1; n <= WholeBatches; n++ {
		if budget := BudgetOfShort(n); budget <= 0 || budget > BudgetOne || (n-1)*budget > BudgetAllShort {
			t.Errorf("one of %d short streams has %d", n, budget)
		}
	}
	for left := -BudgetMost; left <= BudgetMost; left += 509 {
		budget := BudgetOfLong(left)
		if (budget == 0) != (left <= 0) || budget > BudgetLong || budget > max(left, BudgetLong/4) {
			t.Errorf("a long stream has %d, of %d that are left", budget, left)
		}
		if got := BudgetOfBatch(left); got < BatchLeast || got > max(left, BatchLeast) {
			t.Errorf("a batch has %d, of %d that are left", got, left)
		}
		if got, want := BudgetOfPost(left, false), max(left, BudgetSole); got != want {
			t.Errorf("posts have %d where others leave %d, want %d", got, left, want)
		}
		if got := BudgetOfPost(left, true); got != left {
			t.Errorf("answers have %d where others leave %d", got, left)
		}
	}
}

// TestLeased: a lease lasts for LeaseTime after a Poll.
func TestLeased(t *testing.T) {
	for _, c := range []struct {
		polled, now time.Duration
		want        bool
	}{
		{0, 0, false},
		{0, time.Hour, false},
		{1, 1, true},
		{time.Hour, time.Hour + LeaseTime - 1, true},
		{time.Hour, time.Hour + LeaseTime, false},
		{time.Hour, time.Hour - 1, true}, // the Poll began after now was asked for
	} {
		what := "polled " + c.polled.String() + ", now " + c.now.String()
		testkit.Equal(t, what, Leased(c.polled, c.now), c.want)
	}
}

// TestPolls: SomeMost polls that find nothing, and BudgetLong bytes, count the same.
func TestPolls(t *testing.T) {
	for moved, want := range map[int]uint64{
		0: 1, 1: 1, BudgetLong/SomeMost - 1: 1, BudgetLong / SomeMost: 2, BudgetLong: SomeMost + 1,
		4 * BudgetLong: 4*SomeMost + 1,
	} {
		testkit.Equal(t, "polls for the bytes that have moved", Polls(moved), want)
	}
}
