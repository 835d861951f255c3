package policy

import (
	"testing"
	"time"
)

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
		if got := Leased(c.polled, c.now); got != c.want {
			t.Errorf("polled %v, now %v: %v", c.polled, c.now, got)
		}
	}
}

// TestPolls: SomeMost polls that find nothing, and BudgetLong bytes, count the same.
func TestPolls(t *testing.T) {
	for moved, want := range map[int]uint64{
		0: 1, 1: 1, BudgetLong/SomeMost - 1: 1, BudgetLong / SomeMost: 2, BudgetLong: SomeMost + 1, 4 * BudgetLong: 4*SomeMost + 1,
	} {
		if got := Polls(moved); got != want {
			t.Errorf("%d bytes: %d, want %d", moved, got, want)
		}
	}
}
