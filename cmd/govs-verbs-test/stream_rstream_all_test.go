//go:build !race

package main

import (
	"fmt"
	"testing"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rstream"
)

// TestStreamWithRstreamAll makes rstream and our end use all 33 sizes of rstream -S all. rstream
// itself takes a million round trips for that, and no option changes this. So each size has its
// own run: in turns one of round trips, in which our end dials, and one in each direction, in
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

// TestStreamManyTransfers: an rsocket has fewer numbers than the 70,000 messages that go each way.
// rstream's four sizes without options, which are 111,000 round trips and as many messages each
// way, are among those of TestStreamWithRstreamAll.
func TestStreamManyTransfers(t *testing.T) {
	b := newBridged(t)
	c := rstreamCase{flags: "-T v -T b -S 64 -C 70000 -I 1", ours: "--verify -S 64 -C 70000 -I 1",
		says: "custom    64      70k     1", row: "       64       140000 "}
	c.weDial(t, "127.0.0.1", b.of(t).launch, onEngine...)
}
