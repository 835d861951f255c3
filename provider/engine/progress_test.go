package engine

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// countedPoller counts its polls. ready is what they find.
type countedPoller struct {
	transport.Poller
	polls, ready int
	serves       int
}

func (p *countedPoller) Poll() int {
	p.polls++
	return p.ready
}

func (p *countedPoller) Serve() int   { p.serves++; return p.ready }
func (p *countedPoller) BeforeSleep() {}

// TestLastPollTakesNoLease: a program that arms its CQ and polls once more before it sleeps takes
// no lease. A poll of a program outside of Go is several, and many goroutines may arm at the same
// time: if these began a lease, the progress goroutine would leave the streams to those that
// sleep.
func TestLastPollTakesNoLease(t *testing.T) {
	p := new(countedPoller)
	d := &device{poller: eventLoops{all: []*eventLoop{{poller: p}}}}
	inGo := &cq{dev: d, ch: &compChannel{dev: d}, ring: make([]provider.WC, 1)}
	inGo.ch.wake.init()
	for name, c := range map[string]*cq{"in Go": inGo, "outside": {dev: d, sink: discard{}}} {
		c.direct.Store(&[]*qp{}) // as with many QPs
		poll := func(what string, polls, serves int) {
			p.polls, p.serves = 0, 0
			if n, err := c.Poll(make([]provider.WC, 1)); n != 0 || err != nil {
				t.Fatalf("%s, %s: %d completions, %v", name, what, n, err)
			}
			if p.polls != polls || p.serves != serves {
				t.Errorf("%s, %s: %d polls and %d others, want %d and %d", name, what,
					p.polls, p.serves, polls, serves)
			}
		}
		poll("not armed", 1, 0)
		testkit.OK(t, c.ReqNotify(false))
		poll("armed", 0, 1)
		poll("armed still", 0, 1)
		c.push(provider.WC{}, false) // wakes the program
		c.pop(make([]provider.WC, 1))
		poll("awake", 1, 0)
	}
}

// TestPollerServesOthers: a poller of a CQ with few QPs polls the device's other streams each
// 64th time, and a program outside of Go each time while these have something. All such pollers of
// the device know that, whichever of them has seen it.
func TestPollerServesOthers(t *testing.T) {
	p := new(countedPoller)
	d := &device{poller: eventLoops{all: []*eventLoop{{poller: p}}}}
	cqs := make([]*cq, 2)
	for i := range cqs {
		cqs[i] = &cq{dev: d, sink: discard{}}
		cqs[i].direct.Store(&[]*qp{{}}) // without a connection
	}
	polls := func(count int) int {
		before := p.polls
		for i := range count {
			d.progress(cqs[i%len(cqs)])
		}
		return p.polls - before
	}
	testkit.Equal(t, "polls of other streams, which have nothing", polls(10*policy.SomeMost), 10)
	p.ready = 1
	for polls(1) == 0 { // the poll that finds it
	}
	testkit.Equal(t, "polls of other streams, which have something", polls(100), 100)
	inGo := &cq{dev: d}
	inGo.direct.Store(&[]*qp{{}})
	before := p.polls
	for range 10 * policy.SomeMost {
		d.progress(inGo)
	}
	testkit.Equal(t, "a goroutine's polls of others, which have something", p.polls-before, 10)
	p.ready = 0
	testkit.Equal(t, "polls of other streams, which have nothing any more",
		polls(1+10*policy.SomeMost), 11)
}

// TestDueAll: a poll of all streams is due after policy.SomeMost polls of some, and after
// policy.BudgetLong bytes.
func TestDueAll(t *testing.T) {
	for moved, want := range map[int]int{
		0: 10, policy.BudgetLong / 2: 10 * policy.SomeMost / 2, policy.BudgetLong: 10 * policy.SomeMost,
	} {
		var p progressState
		due := 0
		for range 10 * policy.SomeMost {
			if p.dueAll(moved) {
				due++
			}
		}
		what := fmt.Sprintf("%d bytes a poll: polls of all streams", moved)
		testkit.Within(t, what, due, want, want+want/10)
	}
}

// TestPollsThatTakeReceive: a program that always finds completions in the ring of a CQ with many
// QPs polls the streams of all loops, once for each policy.SomeMost that it has taken, before it
// takes more. Where there is one P, whose other goroutines wait for this one anyhow, it does not.
func TestPollsThatTakeReceive(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	const all = policy.SomeMost
	ones := slices.Repeat([]int{1}, 3*all+1)
	for _, c := range []struct {
		name   string
		procs  int
		direct []*qp
		takes  []int // of each poll
		polls  int
	}{
		{"one by one", 2, nil, ones, 3},
		{"one too few", 2, nil, ones[:all], 0},
		{"more at once", 2, nil, []int{2 * all, 2 * all, 2 * all}, 2},
		{"few after many", 2, nil, []int{2 * all, 1, 1, 1, 1}, 1},
		{"none after many: a poll that finds nothing has received", 2, nil, []int{2 * all, 0}, 1},
		{"few QPs, which are polled directly", 2, []*qp{{}}, []int{all, all, all}, 0},
		{"one P", 1, nil, []int{all, all, all}, 0},
	} {
		runtime.GOMAXPROCS(c.procs)
		pollers := []*countedPoller{new(countedPoller), new(countedPoller)}
		d := &device{poller: eventLoops{all: []*eventLoop{{poller: pollers[0]}, {poller: pollers[1]}}}}
		d.poller.all[1].streams.Store(1)
		q := &cq{dev: d, ring: make([]provider.WC, 2*policy.SomeMost)}
		q.direct.Store(&c.direct)
		for _, want := range c.takes {
			for range want {
				q.push(provider.WC{}, false)
			}
			n, err := q.Poll(make([]provider.WC, 2*all))
			if n != want || err != nil {
				t.Fatalf("%s: Poll: %d, %v; want %d", c.name, n, err, want)
			}
		}
		for i, p := range pollers {
			testkit.Equal(t, fmt.Sprintf("%s: polls of loop %d", c.name, i), p.polls, c.polls)
		}
	}
}

// funcPoller is a poller whose Poll calls f.
type funcPoller struct {
	transport.Poller
	f func()
}

func (p *funcPoller) Poll() int {
	p.f()
	return 0
}

// TestReceiveFirstLosesNothing: receiving that does not return, because a handler panics or ends
// the goroutine, leaves the completions in the ring that the poll would have returned.
func TestReceiveFirstLosesNothing(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	for name, f := range map[string]func(){
		"panic": func() { panic("a handler") }, "Goexit": runtime.Goexit,
	} {
		q := filled(&funcPoller{f: f}, 2*policy.SomeMost)
		if n, err := q.Poll(make([]provider.WC, policy.SomeMost)); n != policy.SomeMost || err != nil {
			t.Fatalf("Poll: %d, %v", n, err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer func() { _ = recover() }()
			_, _ = q.Poll(make([]provider.WC, policy.SomeMost))
			t.Errorf("%s: the poll has returned, and so has not received", name)
		}()
		<-ended
		if n, err := q.Poll(make([]provider.WC, 2*policy.SomeMost)); n != policy.SomeMost || err != nil {
			t.Errorf("%s: the next poll: %d, %v; want the %d that are left", name, n, err, policy.SomeMost)
		}
	}
}

// TestReceiveComesFirst: a poll that returns less than it could has emptied the CQ, also of what
// its own receiving has brought.
func TestReceiveComesFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	var q *cq
	q = filled(&funcPoller{f: func() { q.push(provider.WC{}, false) }}, policy.SomeMost)
	for i, want := range []int{policy.SomeMost, 1} {
		n, err := q.Poll(make([]provider.WC, 2*policy.SomeMost))
		if n != want || err != nil || q.seen.Load() != 0 {
			t.Errorf("poll %d: %d, %v, and %d are left; want %d and none", i, n, err, q.seen.Load(), want)
		}
	}
}

// filled returns a CQ with many QPs, whose device has p as its only poller, and n completions.
func filled(p transport.Poller, n int) *cq {
	q := &cq{dev: &device{poller: eventLoops{all: []*eventLoop{{poller: p}}}},
		ring: make([]provider.WC, 2*policy.SomeMost)}
	q.direct.Store(new([]*qp))
	for range n {
		q.push(provider.WC{}, false)
	}
	return q
}

// discard is a CompletionSink.
type discard struct{}

func (discard) Complete(*provider.WC, bool) (stored, due bool) { return true, false }
func (discard) Notify()                                        {}

// TestOutsidePollerLendsP: with one P, a program outside of Go that polls without end lets a
// goroutine run that is in a step of a connection, or was woken by its peer, and otherwise none.
func TestOutsidePollerLendsP(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	d := &device{poller: eventLoops{all: []*eventLoop{{poller: new(countedPoller)}}}}
	d.prog.steps = make(chan struct{}, policy.StepsAtOnce)
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
			d.progress(c)
			if ran.Load() {
				times++
			}
			<-ended
		}
		return times
	}
	// Each costs two switches of threads.
	testkit.Within(t, "polls in which other goroutines ran", runs(func() {}), 0, 2)
	testkit.Within(t, "polls in which one ran that the peer woke", runs((*cmDevice)(d).Woke), 7, 9)
	testkit.Within(t, "polls in which other goroutines ran after it had", runs(func() {}), 0, 2)
	d.prog.steps <- struct{}{}
	testkit.Within(t, "polls in which a goroutine ran that was in a step", runs(func() {}), 7, 9)
}
