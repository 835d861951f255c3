//go:build !race

package main

import (
	"fmt"
	"testing"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rstream"
)

// TestStreamWithRstreamAll has rstream and our end go through all 33 sizes of rstream -S all, which
// itself takes a million round trips, and no option of rstream changes that. So each size has a run
// of its own: in turns one of round trips, in which our end dials, and one in each direction, in
// which it listens.
func TestStreamWithRstreamAll(t *testing.T) {
	if testing.Short() {
		t.Skip("33 pairs of processes: make check leaves them out")
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
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			if i%2 == 0 {
				trips.weDial(t, "127.0.0.1", b.of(t).launch, onEngine...)
			} else {
				oneWay.weListen(t, "127.0.0.1", b.of(t).launch, onEngine...)
			}
		})
	}
}

// TestStreamSizesOfRstream has both go through rstream's four sizes without options, over a
// connection for round trips and one for bandwidth: 100,000 messages of 64 octets each way, which
// are more than an rsocket has numbers for.
func TestStreamSizesOfRstream(t *testing.T) {
	if testing.Short() {
		t.Skip("111,000 round trips: make check leaves them out")
	}
	b := newBridged(t)
	rstreamCase{flags: "-T v -T b", ours: "--verify", slow: true,
		says: "1m_bw     1m      100     1       200m", row: "  1048576          200 "}.
		weDial(t, "127.0.0.1", b.of(t).launch, onEngine...)
}
