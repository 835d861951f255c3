package main

import "testing"

// TestStreamWithRstreamAll has rstream and our end go through round trips and bandwidth, over a
// connection each: rstream's four sizes when we dial, and all 33 of -S all when we listen. These
// are a million round trips, each of which takes several times as long under the race detector, and
// three times as long where rstream blocks: with -S all it does not.
func TestStreamWithRstreamAll(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("runs without the race detector, and not with -short: it has a million round trips")
	}
	b := newBridged(t)
	t.Run("four sizes, we dial", func(t *testing.T) {
		rstreamCase{flags: "-T v -T b", ours: "--verify", slow: true,
			says: "1m_bw     1m      100     1       200m", row: "  1048576          200 "}.
			weDial(t, "127.0.0.1", b.of(t).launch, onEngine...)
	})
	t.Run("all sizes, we listen", func(t *testing.T) {
		rstreamCase{flags: "-T n -S all", ours: "--size all", slow: true,
			says: "6m_bw     6m      100     1       1.1g", row: "  6291456          200 "}.
			weListen(t, "127.0.0.1", b.of(t).launch, onEngine...)
	})
}
