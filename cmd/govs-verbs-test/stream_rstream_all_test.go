//go:build !race

package main

import (
	"fmt"
	"testing"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rstream"
)

// TestStreamWithRstreamAll has rstream and our end go through all 33 sizes of rstream -S all, which
// itself takes a million round trips, and no option of rstream changes that. So each size has two
// runs of its own, one of round trips and one in each direction. Our end dials in one of them, and
// listens in the other, in turns.
func TestStreamWithRstreamAll(t *testing.T) {
	if testing.Short() {
		t.Skip("67 pairs of processes: make check leaves them out")
	}
	b := newBridged(t)
	for i, size := range rstream.Sizes(true) {
		trips := rstreamCase{
			flags: fmt.Sprintf("-T v -T b -S %d -C 1 -I 20", size),
			ours:  fmt.Sprintf("--verify -S %d -C 1 -I 20", size),
			says:  " 1       20", row: fmt.Sprintf("%9d           20 ", size),
		}
		oneWay := rstreamCase{
			flags: fmt.Sprintf("-T v -T b -S %d -C 20 -I 1", size),
			ours:  fmt.Sprintf("--verify -S %d -C 20 -I 1", size),
			says:  " 20      1", row: fmt.Sprintf("%9d           40 ", size),
		}
		dials, listens := trips, oneWay
		if i%2 == 1 {
			dials, listens = oneWay, trips
		}
		t.Run(fmt.Sprintf("%d, we dial", size), func(t *testing.T) {
			dials.weDial(t, "127.0.0.1", b.of(t).launch, onEngine...)
		})
		t.Run(fmt.Sprintf("%d, we listen", size), func(t *testing.T) {
			listens.weListen(t, "127.0.0.1", b.of(t).launch, onEngine...)
		})
	}
	// More messages in one direction than an rsocket has numbers for.
	t.Run("70000 transfers", func(t *testing.T) {
		rstreamCase{flags: "-T v -T b -S 64 -C 70000 -I 1", ours: "--verify -S 64 -C 70000 -I 1",
			says: " 70k     1", row: "       64       140000 "}.
			weListen(t, "127.0.0.1", b.of(t).launch, onEngine...)
	})
}

// TestStreamSizesOfRstream has both go through rstream's four sizes without options, over a
// connection for round trips and one for bandwidth.
func TestStreamSizesOfRstream(t *testing.T) {
	if testing.Short() {
		t.Skip("111,000 round trips: make check leaves them out")
	}
	b := newBridged(t)
	rstreamCase{flags: "-T v -T b", ours: "--verify", slow: true,
		says: "1m_bw     1m      100     1       200m", row: "  1048576          200 "}.
		weDial(t, "127.0.0.1", b.of(t).launch, onEngine...)
}
