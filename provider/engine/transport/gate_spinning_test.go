//go:build linux

package transport

import (
	"testing"
	"time"
)

// TestSpinning: what counts as spinning. The times are far enough from the limits for a machine
// that stands still in between.
func TestSpinning(t *testing.T) {
	for _, c := range []struct {
		name                  string
		long                  time.Duration // since the count began
		polls, taken, attends uint32
		yielding              bool
		want, begun           bool // begun: the next count has begun
	}{
		{name: "nothing", long: 0},
		{name: "few polls so far", polls: spinsLeast - 1},
		{name: "enough polls", polls: spinsLeast, want: true, begun: true},
		{name: "enough at work, who have not looked", taken: spinsLeast, want: true, begun: true},
		{name: "the same, to whom the sockets are left", taken: spinsLeast, yielding: true},
		{name: "they have looked once", polls: 1, taken: spinsLeast - 1, yielding: true, want: true, begun: true},
		{name: "one is about to sleep", polls: 100, attends: 1, begun: true},
		{name: "few for that long", polls: 10 * spinsLeast, long: time.Hour, begun: true},
		{name: "nothing for long", long: time.Hour, begun: true},
		{name: "counts that would overflow", polls: 1<<32 - 1, taken: 1<<32 - 1, want: true, begun: true},
	} {
		var g gate
		g.polls.Store(c.polls)
		g.taken.Store(c.taken)
		g.attends.Store(c.attends)
		g.yielding.Store(c.yielding)
		began := time.Now().Add(-c.long)
		g.counted.at = began
		if got := g.spinning(); got != c.want {
			t.Errorf("%s: spinning is %v", c.name, got)
		}
		// A machine that stands still for longer than lookAround ends any count.
		if begun := g.counted.at != began; begun != c.begun && time.Since(began) < lookAround {
			t.Errorf("%s: the next count has begun: %v", c.name, begun)
		}
		if c.begun && g.spinning() {
			t.Errorf("%s: what was counted counts again", c.name)
		}
	}
}

// TestYieldSeesAttend: one that calls attend between the count and the yielding has not seen that
// the sockets are left to it.
func TestYieldSeesAttend(t *testing.T) {
	var g gate
	g.polls.Store(spinsLeast)
	g.counted.at = time.Now()
	if !g.spinning() {
		t.Skip("the machine stood still")
	}
	g.attends.Add(1)
	if g.yield(); g.yielding.Load() {
		t.Error("the sockets are left to one that is about to sleep")
	}
}
