package main

import "testing"

// TestStreamWithRstreamAll has rstream and our end go through all sizes of -S all, round trips and
// bandwidth, both ways at the same time. That is a million round trips, each of which takes several
// times as long under the race detector.
func TestStreamWithRstreamAll(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("runs without the race detector, and not with -short: it has a million round trips")
	}
	b := newBridged(t)
	c := rstreamCase{flags: "-T v -T b -S all", ours: "--verify --size all", slow: true,
		says: "6m_bw     6m      100     1       1.1g", row: "  6291456          200 "}
	t.Run("both ways", func(t *testing.T) {
		t.Run("we dial", func(t *testing.T) {
			t.Parallel()
			c.weDial(t, "127.0.0.1", b.of(t).launch, onEngine...)
		})
		t.Run("we listen", func(t *testing.T) {
			t.Parallel()
			c.weListen(t, "127.0.0.1", b.of(t).launch, onEngine...)
		})
	})
}
