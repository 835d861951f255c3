//go:build schedules

package engine

import (
	"fmt"
	"slices"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// Polls read a stream and take what has completed, beside others that do so, arm the CQ, or read
// the same stream.

// pollInto polls the side's CQ a few times, with room for so many completions, and appends their
// WRIDs.
func (s *side) pollInto(times, room int, wrids *[]uint64) {
	s.t.Helper()
	for range times {
		wc := make([]provider.WC, room)
		for _, c := range wc[:testkit.Must(s.cq.Poll(wc))(s.t)] {
			*wrids = append(*wrids, c.WRID)
		}
	}
}

func init() {
	send := func(a *side) { a.send(provider.SendWR{Opcode: provider.WRSend}) }
	protocols = append(protocols,
		protocol{name: "polls of two goroutines, and arrivals", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				b.recv(provider.RecvWR{WRID: 1}, provider.RecvWR{WRID: 2}, provider.RecvWR{WRID: 3})
				send(a)
				send(a)
				var one, other []uint64
				return []func(){
						func() { b.pollInto(2, 1, &one) },
						func() { b.pollInto(2, 2, &other) },
						func() { b.dev.poller.Poll(); send(a) },
					}, func() error {
						var rest []uint64
						for _, c := range b.completions() {
							rest = append(rest, c.WRID)
						}
						all := slices.Concat(one, other)
						slices.Sort(all)
						all = append(all, rest...)
						if !slices.Equal(all, []uint64{1, 2, 3}) || !slices.IsSorted(one) || !slices.IsSorted(other) {
							return fmt.Errorf("the polls had %d and %d, and the CQ has %d; "+
								"want 1 to 3, each once and in order", one, other, rest)
						}
						return nil
					}
			}},
		protocol{name: "a poll, a request for an event, and an arrival", preemptions: 3,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{events: true}, params(false))
				b.recv(provider.RecvWR{WRID: 1})
				var armed, before bool
				var mine, others []uint64
				return []func(){
						func() {
							testkit.OK(w.t, b.cq.ReqNotify(false))
							armed = true
							b.pollInto(1, 1, &mine)
						},
						func() { b.pollInto(2, 1, &others) },
						func() { before = armed; send(a) },
					}, func() error {
						fired, _ := b.ch.pop()
						left := len(b.completions())
						switch {
						case len(mine)+len(others)+left != 1:
							return fmt.Errorf("%d, %d and %d completions, want 1 in all", len(mine), len(others), left)
						case (before || left > 0) && fired != b.cq:
							return fmt.Errorf("no event; armed before the arrival: %t, in the CQ: %d", before, left)
						}
						return nil
					}
			}},
	)
}
