package engine

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/frames"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// startProgress starts the device's progress goroutines, one for each loop. They serve every stream
// that no program polls: streams of applications that wait for a completion event, and targets of
// one-sided operations that the application does not know of.
func (d *device) startProgress() {
	p := &d.prog
	p.batches.New = func() *frames.Batch { return frames.New(&d.chunks) }
	p.batches.Idle = (*frames.Batch).Idle
	p.contexts.New = newRxContext
	p.contexts.Idle = (*rxContext).idle
	p.partsMost = policy.PartsMost
	p.parts.New = func() *rxPart { return new(rxPart) }
	p.parts.Idle = (*rxPart).idle
	p.ended, p.first = make(chan struct{}), make(chan struct{})
	p.awake = make(chan struct{}, 1)
	p.steps = make(chan struct{}, policy.StepsAtOnce)
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	p.running.Store(int32(len(d.poller.all)))
	for i, l := range d.poller.all {
		go func() {
			defer func() {
				if i == 0 {
					close(p.first)
				}
				if p.running.Add(-1) == 0 {
					close(p.ended)
				}
			}()
			d.serve(ctx, l.poller, i == 0)
		}()
	}
}

// serve is the loop of a progress goroutine. It returns when ctx ends, or after the poller has
// failed.
func (d *device) serve(ctx context.Context, poller transport.Poller, first bool) {
	for {
		if err := poller.Wait(ctx); err != nil {
			if ctx.Err() == nil {
				d.fail(err)
			}
			return
		}
		if first {
			d.prog.isAwake()
		}
		for busy := 0; busy < servesInRow && poller.Serve() > 0; busy++ {
			// A goroutine that a completion has woken goes first. A stream that remains ready may
			// also belong to a goroutine that lost its P in the middle of a turn, and needs one
			// again.
			if first {
				d.prog.isAwake()
			}
			runtime.Gosched()
		}
	}
}

// servesInRow is after how many calls of Serve the goroutine checks ctx.
const servesInRow = 64

// isAwake lets a goroutine in pollNetpoller go on.
func (p *progressState) isAwake() {
	select {
	case p.awake <- struct{}{}:
	default:
	}
}

// serveAndYield serves what is ready, and lets other goroutines run. Goroutines of connections that
// come or go call it between two steps. The scheduler prefers goroutines that have just been woken
// to those that have yielded. So in a flood of connections the progress goroutine, and a polling
// goroutine of the program, would otherwise wait for all of them.
//
// It does not count as a poll for the lease. Otherwise strangers, who can connect as often as they
// like, would keep the progress goroutines from leaving the streams to a program that spins.
func (d *device) serveAndYield() {
	d.poller.Serve()
	runtime.Gosched()
}

// step runs f, a step in setting up or ending a connection. f must not wait for anything that takes
// long, and the caller holds no lock.
func (d *device) step(f func()) {
	d.prog.steps <- struct{}{}
	defer func() { <-d.prog.steps }()
	d.serveAndYield()
	f()
}

// yieldP lets the goroutines run that wait for this goroutine's P: one that is in a step, or one of
// a start-up that was woken. It is for a program outside of Go that polls without end. Each poll
// gets the P back before the scheduler, which counts the calls, can give it to another goroutine,
// so with one P a connection would wait for 10 ms or more. Because it costs two switches of
// threads, it runs only for connections that come or go.
func (p *progressState) yieldP() {
	if len(p.steps) > 0 || p.woken.Load() && p.woken.Swap(false) {
		runtime.Gosched()
	}
}

// progress moves data on behalf of a poller that found c empty. It never waits and does not
// allocate. It reads the streams of a CQ with few QPs directly, which saves the call that asks
// which of them have something. It leaves streams that wait for room, and those of CQs with many
// QPs, to the poller.
//
// It polls all streams of the device only after policy.SomeMost calls or policy.BudgetLong bytes.
// Otherwise the answers to a well-behaved peer would wait beside a peer with much traffic: the p99
// of its round trips was 1.5 times as long (ci/bench/victim, kinds reader and tiny). For a program
// outside of Go (CQOptions.Sink), whose polls take longer, it polls all each time while other
// streams have something. Such a program may spin on one CQ and be the target of Writes on other
// QPs.
func (d *device) progress(c *cq) {
	c.foundEmpty()
	if c.deferred.some.Load() {
		c.transmitSome(true)
	}
	direct := *c.direct.Load()
	budget := policy.BudgetOfPoll(len(direct))
	ready := c.sink != nil && d.prog.ready.Load()
	all := ready || len(direct) == 0
	moved := 0
	var sole *stream // if it waits for room
	for _, q := range direct {
		s := q.stream.Load()
		if s == nil {
			continue
		}
		used, ok := s.rx.pollDirect(budget)
		if !ok {
			runtime.Gosched() // to the holder of the lock, if that has no P
		}
		moved += used
		if s.tx.blocked.Load() {
			all = true
			if len(direct) == 1 {
				sole = s
				s.tx.sole.Store(true)
			}
		}
	}
	if d.prog.dueAll(moved) || all {
		if found := d.pollAll(c) > 0; c.sink != nil && found != ready {
			d.prog.ready.Store(found)
		}
	}
	if sole != nil && sole.tx.sole.Load() {
		sole.tx.sole.Store(false) // valid for this Poll only, which found no room
	}
	if c.sink != nil {
		d.prog.yieldP()
	}
}

// pollAll polls all streams on behalf of a poller of c, and returns how many had something. If
// c is armed, the program is about to sleep, and this last poll takes no lease. One poll of a
// program outside of Go is several of these, and goroutines may arm their CQs at the same time.
// Such polls would begin a lease that nobody holds.
func (d *device) pollAll(c *cq) int {
	c.mu.Lock()
	armed := c.arm != armNone
	c.mu.Unlock()
	if armed {
		return d.poller.Serve()
	}
	return d.poller.Poll()
}

// dueAll counts a poll of some streams that moved so many bytes, and reports whether a poll of all
// streams is due.
func (p *progressState) dueAll(moved int) bool {
	n := policy.Polls(moved)
	return p.polls.Add(n)%policy.SomeMost < n
}

// fail is called when a poller has failed, so that arrivals are no longer seen. It raises
// EventDeviceFatal once, and ends all connections, so that no program waits forever.
func (d *device) fail(err error) {
	if d.fatal.Swap(true) {
		return // another progress goroutine has reported it
	}
	d.raise(provider.AsyncEvent{Type: provider.EventDeviceFatal})
	d.qpnMu.Lock()
	qps := slices.Collect(maps.Values(d.qpns))
	d.qpnMu.Unlock()
	for _, q := range qps {
		if q != nil {
			q.mu.Lock()   // enterRTS has returned, or finds the device failed
			q.mu.Unlock() //nolint:staticcheck // waits for the holder
			q.abort(fmt.Errorf("%w: %w", errDeviceFatal, err))
		}
	}
}
