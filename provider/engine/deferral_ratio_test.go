//go:build linux && !race

// Without the race detector: the program looks at memory that its peer writes.

package engine

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// oneSided is a program that writes to its peer's memory, and waits until what it wrote is there.
type oneSided struct {
	a, b     *side
	src, dst *region
	posts    int
	took     []time.Duration
}

func newOneSided(t *testing.T, opts Options, sink provider.CompletionSink) *oneSided {
	t.Helper()
	opts.Network = transport.NewTCP(nil)
	a, b := newSide(t, opts, sideOptions{sink: sink}), newSide(t, opts, sideOptions{})
	a.join(b, opts.Network, tcpAddr, params(true))
	return &oneSided{a: a, b: b, src: a.reg(1, provider.AccessLocalWrite),
		dst: b.reg(1, provider.AccessLocalWrite|provider.AccessRemoteWrite)}
}

// second is a program with a QP of its own on the same device, and the same CQ.
func (p *oneSided) second() *oneSided {
	a, b := *p.a, *p.b
	a.down, b.down = make(chan error, 1), make(chan error, 1)
	so := sideOptions{cap: a.qp.initAttr().Cap}
	a.qp, b.qp = a.newQP(so), b.newQP(so)
	a.join(&b, transport.NewTCP(nil), tcpAddr, params(true))
	a.t.Cleanup(func() {
		testkit.OK(a.t, a.qp.Close())
		testkit.OK(a.t, b.qp.Close())
	})
	return &oneSided{a: &a, b: &b, src: a.reg(1, provider.AccessLocalWrite),
		dst: b.reg(1, provider.AccessLocalWrite|provider.AccessRemoteWrite)}
}

// post posts a Write of one byte.
func (p *oneSided) post(flags provider.SendFlags) {
	p.a.send(provider.SendWR{Opcode: provider.WRRDMAWrite, Flags: flags,
		SGList: []provider.SGE{p.src.sge(0, 1)}, RemoteAddr: p.dst.to(0), RKey: p.dst.m.STag()})
}

// burst posts n signalled Writes.
func (p *oneSided) burst(n int) {
	for range n {
		p.post(provider.SendSignaled)
	}
}

// call writes another value, waits until the peer has it, and notes how long that took.
func (p *oneSided) call(flags provider.SendFlags) {
	p.posts++
	p.src.b[0] = byte(p.posts)
	began := time.Now()
	for p.post(flags); p.dst.b[0] != byte(p.posts); {
		runtime.Gosched()
	}
	p.took = append(p.took, time.Since(began))
}

// outsideRing is the ring of a program outside of Go, which takes completions from it by itself.
type outsideRing struct{ came, taken atomic.Uint32 }

func (r *outsideRing) Complete(*provider.WC, bool) (stored, due bool) {
	r.came.Add(1)
	return true, false
}
func (r *outsideRing) Notify()       {}
func (r *outsideRing) Taken() uint32 { return r.taken.Load() }
func (r *outsideRing) Waits() bool   { return false }

// reap takes n completions.
func (p *oneSided) reap(n int) {
	if r, ok := p.a.cq.sink.(*outsideRing); ok {
		for r.came.Load()-r.taken.Load() < uint32(n) {
			testkit.Must(p.a.cq.Poll(nil))(p.a.t)
		}
		r.taken.Add(uint32(n))
		return
	}
	for wc := make([]provider.WC, 4); n > 0; {
		n -= testkit.Must(p.a.cq.Poll(wc))(p.a.t)
	}
}

// reapElsewhere has another goroutine take n completions, and counts those that it has taken.
func (p *oneSided) reapElsewhere(n int64) (taken *atomic.Int64, wait func()) {
	taken = new(atomic.Int64)
	var poller sync.WaitGroup
	poller.Go(func() {
		for wc := make([]provider.WC, 4); taken.Load() < n; runtime.Gosched() {
			got, err := p.a.cq.Poll(wc)
			if err != nil {
				p.a.t.Error(err)
				got = int(n)
			}
			taken.Add(int64(got))
		}
	})
	return taken, poller.Wait
}

// TestCallsLikeAtOnce: if a program posts and then waits elsewhere than at its CQ, its posts are
// transmitted as early as with TransmitAtOnce, in the same run and in turns with that.
func TestCallsLikeAtOnce(t *testing.T) {
	for _, tc := range []struct {
		name    string
		outside bool // of Go
		calls   int
		begin   func(p *oneSided) (call func(i int))
	}{
		{"a single post, after a burst and a while", false, 60, func(p *oneSided) func(int) {
			return func(int) {
				p.burst(4)
				p.reap(4)
				for range 1000 {
					testkit.Must(p.a.cq.Poll(make([]provider.WC, 1)))(p.a.t)
				}
				time.Sleep(3 * time.Millisecond)
				p.call(provider.SendSignaled)
				p.reap(1)
			}
		}},
		{"each call is signalled", false, 500, func(p *oneSided) func(int) {
			return func(int) {
				p.call(provider.SendSignaled)
				p.reap(1)
			}
		}},
		{"each 64th call is signalled", false, 1000, func(p *oneSided) func(int) {
			return func(i int) {
				if i%64 != 63 {
					p.call(0)
					return
				}
				p.call(provider.SendSignaled)
				p.reap(1)
			}
		}},
		{"another goroutine polls", false, 200, func(p *oneSided) func(int) {
			return func(int) {
				taken, wait := p.reapElsewhere(5)
				for p.burst(4); taken.Load() < 4; {
					runtime.Gosched()
				}
				p.call(provider.SendSignaled)
				wait()
			}
		}},
		{"another QP is in a run", false, 500, func(p *oneSided) func(int) {
			busy := p.second()
			return func(i int) {
				busy.burst(4)
				busy.reap(4)
				p.call(0)
				if i%32 == 31 {
					p.call(provider.SendSignaled)
					p.reap(1)
				}
			}
		}},
		{"outside of Go, a single post after a burst and a while", true, 60, func(p *oneSided) func(int) {
			return func(int) {
				p.burst(4)
				p.reap(4)
				time.Sleep(3 * time.Millisecond)
				p.call(provider.SendSignaled)
				p.reap(1)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testkit.Once(t, func() error {
				var sinks [2]provider.CompletionSink
				if tc.outside {
					sinks = [2]provider.CompletionSink{&outsideRing{}, &outsideRing{}}
				}
				waits := newOneSided(t, Options{}, sinks[0])
				once := newOneSided(t, Options{TransmitAtOnce: true}, sinks[1])
				callWaits, callOnce := tc.begin(waits), tc.begin(once)
				for i := range tc.calls {
					callWaits(i)
					callOnce(i)
				}
				slices.Sort(waits.took)
				slices.Sort(once.took)
				at := func(p *oneSided, percent int) time.Duration { return p.took[len(p.took)*percent/100] }
				t.Logf("p50 %v and %v, p90 %v and %v at once", at(waits, 50), at(once, 50), at(waits, 90), at(once, 90))
				// A post that waits for the timer takes ten times as long as one that does not.
				if at(waits, 50) > 2*at(once, 50) || at(waits, 90) > 3*at(once, 90) {
					return fmt.Errorf("p50 is %v, at once %v; p90 is %v, at once %v",
						at(waits, 50), at(once, 50), at(waits, 90), at(once, 90))
				}
				return nil
			})
		})
	}
}
