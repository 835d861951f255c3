//go:build linux && !race

// Without the race detector: the program looks at memory that its peer writes.

package engine

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// oneSided is a program that writes to its peer's memory, and waits until what it wrote is there.
type oneSided struct {
	a        *side
	src, dst *region
	posts    int
	took     []time.Duration
}

func newOneSided(t *testing.T, opts Options) *oneSided {
	t.Helper()
	a, b := pair(t, transport.NewTCP(nil), tcpAddr, opts, sideOptions{}, params(true))
	return &oneSided{a: a, src: a.reg(1, provider.AccessLocalWrite),
		dst: b.reg(1, provider.AccessLocalWrite|provider.AccessRemoteWrite)}
}

// post posts a Write of one byte.
func (p *oneSided) post(flags provider.SendFlags) {
	p.a.send(provider.SendWR{Opcode: provider.WRRDMAWrite, Flags: flags,
		SGList: []provider.SGE{p.src.sge(0, 1)}, RemoteAddr: p.dst.to(0), RKey: p.dst.m.stag})
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

// reap takes n completions.
func (p *oneSided) reap(n int) {
	for wc := make([]provider.WC, 4); n > 0; {
		n -= testkit.Must(p.a.cq.Poll(wc))(p.a.t)
	}
}

// TestCallsLikeAtOnce: a program that posts and then waits elsewhere than at its CQ has its posts
// transmitted as early as with TransmitAtOnce, in the same run and in turns with that.
func TestCallsLikeAtOnce(t *testing.T) {
	for _, tc := range []struct {
		name  string
		calls int
		call  func(p *oneSided, i int)
	}{
		{"a single post, after a burst and a while", 60, func(p *oneSided, _ int) {
			for range 4 {
				p.post(provider.SendSignaled)
			}
			p.reap(4)
			for range 1000 {
				testkit.Must(p.a.cq.Poll(make([]provider.WC, 1)))(p.a.t)
			}
			time.Sleep(3 * time.Millisecond)
			p.call(provider.SendSignaled)
			p.reap(1)
		}},
		{"each call is signalled", 500, func(p *oneSided, _ int) {
			p.call(provider.SendSignaled)
			p.reap(1)
		}},
		{"each 64th call is signalled", 1000, func(p *oneSided, i int) {
			if i%64 != 63 {
				p.call(0)
				return
			}
			p.call(provider.SendSignaled)
			p.reap(1)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testkit.Once(t, func() error {
				waits, once := newOneSided(t, Options{}), newOneSided(t, Options{TransmitAtOnce: true})
				for i := range tc.calls {
					tc.call(waits, i)
					tc.call(once, i)
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
