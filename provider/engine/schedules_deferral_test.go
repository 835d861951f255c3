//go:build schedules

package engine

import (
	"fmt"
	"slices"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// Posts that wait for others are transmitted by whichever goroutine posts the last of them, finds
// the CQ empty, or arms it. None of them may leave that to another one that does not see it.

// burst makes a post n Sends that complete, so that as many more are expected.
func (w *stage) burst(a, b *side, n int) {
	w.t.Helper()
	b.recv(make([]provider.RecvWR, 16)...)
	for range n {
		a.send(signalled(provider.WRSend, 1))
	}
	w.serve()
	if err := a.wantSuccesses(slices.Repeat([]uint64{1}, n)...); err != nil {
		w.t.Fatal(err)
	}
	if err := b.wantSuccesses(make([]uint64, n)...); err != nil {
		w.t.Fatal(err)
	}
	a.cq.took() // as if it had not found the CQ empty after that
}

// wantRung returns an error unless the n messages that a has posted since its burst have come to b,
// or the timer knows that a's QP waits.
func wantRung(a, b *side, n int) error {
	list, d := &a.cq.deferred, a.qp.sq.deferral.Load()
	first := list.first == &d.place
	if d.Waits() && !first || !d.Waits() && first || first != list.some.Load() {
		return fmt.Errorf("posts wait: %t; the QP is the CQ's first: %t, of any: %t",
			d.Waits(), first, list.some.Load())
	}
	a.qp.transmitDeferred()
	b.dev.poller.Poll()
	return b.wantSuccesses(make([]uint64, n)...)
}

func init() {
	send := func(a *side) { a.send(signalled(provider.WRSend, 1)) }
	protocols = append(protocols,
		protocol{name: "a post that waits, and a request for an event", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{events: true}, params(false))
				w.burst(a, b, 3)
				return []func(){
					func() { send(a) },
					func() { w.t.Helper(); _ = a.cq.ReqNotify(false) },
				}, func() error { return b.wantSuccesses(0) }
			}},
		protocol{name: "posts that wait, and an empty CQ", preemptions: 3,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				w.burst(a, b, 3)
				return []func(){
					func() { send(a); send(a) },
					func() { a.dev.progress(a.cq) },
				}, func() error { return wantRung(a, b, 2) }
			}},
		protocol{name: "a post that waits, and a request for an event of its receives", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{events: true, separateCQs: true}, params(false))
				w.burst(a, b, 3)
				return []func(){
					func() { send(a) },
					func() { w.t.Helper(); _ = a.recvCQ.ReqNotify(false) },
				}, func() error { return b.wantSuccesses(0) }
			}},
		protocol{name: "posts that wait, the last of them, and an empty CQ", preemptions: 3,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				w.burst(a, b, 3)
				return []func(){
					func() { send(a); send(a); send(a) },
					func() { send(a) },
					func() { a.dev.progress(a.cq) },
				}, func() error { return wantRung(a, b, 4) }
			}},
		protocol{name: "posts of two bursts at the same time", preemptions: 3,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				w.burst(a, b, 3)
				return []func(){
					func() { send(a); send(a) },
					func() { send(a); a.completions(); send(a) },
					func() { send(a); a.completions(); send(a) },
				}, func() error { return wantRung(a, b, 6) }
			}},
		protocol{name: "posts that wait, and the end of the queue pair", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				w.burst(a, b, 3)
				return []func(){
						func() { _, _ = a.qp.PostSend([]provider.SendWR{signalled(provider.WRSend, 1)}) },
						func() { _ = a.qp.Close() },
						func() { _ = a.cq.transmitLate(forever, sinceEpoch()) },
					}, func() error {
						a.cq.transmitDeferred()
						if a.cq.deferred.some.Load() || a.qp.sq.deferral.Load().place.listed {
							return fmt.Errorf("a queue pair that is closed still waits")
						}
						for i, wc := range a.completions() {
							if i > 0 || wc.WRID != 1 {
								return fmt.Errorf("completion %d is %+v", i+1, wc)
							}
						}
						return nil
					}
			}},
	)
}
