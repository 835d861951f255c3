package engine

import (
	"testing"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// countedPoller counts its polls. ready is what they find.
type countedPoller struct {
	transport.Poller
	polls, ready int
}

func (p *countedPoller) Poll() int {
	p.polls++
	return p.ready
}

// TestPollerServesOthers: a poller of a CQ with few QPs looks at the device's other streams each
// 64th time, and a program outside of Go each time while these have something. All such pollers of
// the device know that, whichever of them has seen it.
func TestPollerServesOthers(t *testing.T) {
	p := new(countedPoller)
	d := &device{poller: lanes{all: []*lane{{poller: p}}}}
	cqs := make([]*cq, 2)
	for i := range cqs {
		cqs[i] = &cq{dev: d, sink: discard{}}
		cqs[i].direct.Store(&[]*qp{{}}) // without a connection
	}
	polls := func(looks int) int {
		before := p.polls
		for i := range looks {
			d.progress(cqs[i%len(cqs)])
		}
		return p.polls - before
	}
	if n := polls(10 * pollerTurns); n != 10 {
		t.Errorf("%d looks at other streams, which have nothing; want 10", n)
	}
	p.ready = 1
	for polls(1) == 0 { // the look that finds it
	}
	if n := polls(100); n != 100 {
		t.Errorf("%d of 100 looks are at other streams, which have something", n)
	}
	inGo := &cq{dev: d}
	inGo.direct.Store(&[]*qp{{}})
	before := p.polls
	for range 10 * pollerTurns {
		d.progress(inGo)
	}
	if n := p.polls - before; n != 10 {
		t.Errorf("a goroutine looks %d times at other streams, which have something; want 10", n)
	}
	p.ready = 0
	if n := polls(1 + 10*pollerTurns); n != 11 {
		t.Errorf("%d looks at other streams, which have nothing any more; want 11", n)
	}
}

// discard is a CompletionSink.
type discard struct{}

func (discard) Complete(*provider.WC, bool) (stored, due bool) { return true, false }
func (discard) Notify()                                        {}
