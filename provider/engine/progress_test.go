package engine

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// countedPoller counts its polls. ready is what they find.
type countedPoller struct {
	transport.Poller
	polls, ready, spins int
}

func (p *countedPoller) Spin(n int) { p.spins += n }

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
			d.progress(cqs[i%len(cqs)], nil)
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
		d.progress(inGo, nil)
	}
	if n := p.polls - before; n != 10 {
		t.Errorf("a goroutine looks %d times at other streams, which have something; want 10", n)
	}
	p.ready = 0
	if n := polls(1 + 10*pollerTurns); n != 11 {
		t.Errorf("%d looks at other streams, which have nothing any more; want 11", n)
	}
}

// TestPollsThatTakeCount: completions that a program takes from a CQ with many QPs, whose looks are
// at all streams, count as work.
func TestPollsThatTakeCount(t *testing.T) {
	p := new(countedPoller)
	d := &device{poller: lanes{all: []*lane{{poller: p}, {poller: p}}}}
	for _, c := range []struct {
		direct []*qp
		want   int
	}{
		{nil, 2 * 3}, // in each lane
		{[]*qp{{}}, 0},
	} {
		q := &cq{dev: d, ring: make([]provider.WC, 4)}
		q.direct.Store(&c.direct)
		p.spins = 0
		for range 3 {
			q.push(provider.WC{}, false)
		}
		if n, err := q.Poll(make([]provider.WC, 8)); n != 3 || err != nil {
			t.Fatalf("%d direct QPs: Poll: %d, %v", len(c.direct), n, err)
		}
		if p.spins != c.want {
			t.Errorf("%d direct QPs: 3 completions count as %d, want %d", len(c.direct), p.spins, c.want)
		}
	}
}

// discard is a CompletionSink.
type discard struct{}

func (discard) Complete(*provider.WC, bool) (stored, due bool) { return true, false }
func (discard) Notify()                                        {}

// TestOutsidePollerLendsP: with one P, a program outside of Go that polls without end lets a
// goroutine run that is in a step of a connection, or was woken by its peer, and otherwise none.
func TestOutsidePollerLendsP(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	d := &device{poller: lanes{all: []*lane{{poller: new(countedPoller)}}}}
	d.prog.steps = make(chan struct{}, stepsAtOnce)
	c := &cq{dev: d, sink: discard{}}
	c.direct.Store(&[]*qp{{}})
	// runs returns in how many polls a goroutine runs that is ready. A poll can lose its P to the
	// scheduler's timer in any case, and each 61st time the scheduler runs the goroutine that has
	// yielded before the others.
	runs := func(prepare func()) (times int) {
		for range 9 {
			prepare()
			var ran atomic.Bool
			ended := make(chan struct{})
			go func() {
				ran.Store(true)
				close(ended)
			}()
			d.progress(c, nil)
			if ran.Load() {
				times++
			}
			<-ended
		}
		return times
	}
	if n := runs(func() {}); n > 2 {
		t.Errorf("other goroutines ran in %d of 9 polls, which costs two switches of threads", n)
	}
	w := &wire{readable: make(chan struct{}, 1), poller: acceptingPoller{}, woken: &d.prog.woken}
	if n := runs(func() { w.Ready(true, false) }); n < 7 {
		t.Errorf("a goroutine that the peer woke ran in %d of 9 polls", n)
	}
	if n := runs(func() {}); n > 2 {
		t.Errorf("other goroutines ran in %d of 9 polls after it had", n)
	}
	d.prog.steps <- struct{}{}
	if n := runs(func() {}); n < 7 {
		t.Errorf("a goroutine in a step ran in %d of 9 polls", n)
	}
}

// acceptingPoller watches for whatever it is told to.
type acceptingPoller struct{ transport.Poller }

func (acceptingPoller) WantRead(transport.Conn, bool) error { return nil }
