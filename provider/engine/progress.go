package engine

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync/atomic"

	"github.com/govs-rdma/govs/provider/engine/internal/frames"
	"github.com/govs-rdma/govs/provider/engine/internal/freelist"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// An eventLoop is a progress goroutine's part of a device: the poller that it serves. Connections
// in the start-up, and refused ones, are in the first loop. A stream enters the loop that has the
// fewest streams, and stays there until its socket is closed. So one goroutine keeps its order, its
// turns and its data in the caches.
type eventLoop struct {
	poller  transport.Poller
	streams atomic.Int32 // that have not ended
}

// unassign is called once for each result of assign, when the stream has ended.
func (l *eventLoop) unassign() { l.streams.Add(-1) }

// eventLoops are the event loops of a device.
type eventLoops struct {
	all  []*eventLoop
	next atomic.Uint32 // where the next Poll begins
}

// open makes n loops.
func (l *eventLoops) open(network transport.Network, n int) error {
	for range n {
		poller, err := network.NewPoller()
		if err != nil {
			l.close()
			return err
		}
		l.all = append(l.all, &eventLoop{poller: poller})
	}
	return nil
}

// close closes the pollers. Their goroutines have ended, or were never started.
func (l *eventLoops) close() {
	for _, each := range l.all {
		_ = each.poller.Close()
	}
}

// first returns the poller of connections that have no stream.
func (l *eventLoops) first() transport.Poller { return l.all[0].poller }

// assign returns the loop for a new stream. Streams that begin at the same time may give one loop a
// few more than another.
func (l *eventLoops) assign() *eventLoop {
	best := l.all[0]
	for _, each := range l.all[1:] {
		if each.streams.Load() < best.streams.Load() {
			best = each
		}
	}
	best.streams.Add(1)
	return best
}

// Poll polls one loop after the other until one has something ready, and returns for how many
// streams. Each call begins with another loop. It skips loops without streams; connections that
// have ended and wait for their peers are served by the loop's own goroutine.
func (l *eventLoops) Poll() int {
	if len(l.all) == 1 {
		return l.all[0].poller.Poll()
	}
	return l.untilReady(transport.Poller.Poll)
}

// Serve polls once, for a goroutine that will not poll again, and takes no lease.
func (l *eventLoops) Serve() int { return l.untilReady(transport.Poller.Serve) }

func (l *eventLoops) untilReady(poll func(transport.Poller) int) int {
	at := int(l.next.Add(1) % uint32(len(l.all)))
	for range l.all {
		if each := l.all[at]; at == 0 || each.streams.Load() > 0 {
			if n := poll(each.poller); n > 0 {
				return n
			}
		}
		if at++; at == len(l.all) {
			at = 0
		}
	}
	return 0
}

// BeforeSleep makes all progress goroutines take their streams over at once.
func (l *eventLoops) BeforeSleep() {
	for _, each := range l.all {
		each.poller.BeforeSleep()
	}
}

// progressState is what a device needs to move data for all its QPs.
type progressState struct {
	batches    freelist.List[frames.Batch]
	contexts   freelist.List[rxContext]
	parts      freelist.List[rxPart]
	kept       atomic.Int64 // contexts that streams keep between turns
	partsMost  int64        // upper limit of partOctets
	partOctets atomic.Int64 // of long parts
	ahead      atomic.Int64 // pieces that are read ahead from objects

	polls atomic.Uint64 // polls of some streams (policy.Polls)
	ready atomic.Bool   // streams had something when an outside poller last polled all
	steps chan struct{} // capacity policy.StepsAtOnce
	woken atomic.Bool   // a goroutine of a start-up was woken and may not have run yet

	cancel  context.CancelFunc
	running atomic.Int32  // progress goroutines
	ended   chan struct{} // closed when the last of them has ended
	first   chan struct{} // closed when the first loop's has ended: the others go on if its poller fails

	netpolled  atomic.Int64  // when pollNetpoller last woke the netpoller, as a time since epoch
	netpolling atomic.Bool   // a goroutine is in pollNetpoller
	awake      chan struct{} // has a token if the first progress goroutine has run since it was taken
}

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

// stopProgress ends the progress goroutines and waits until they have ended. There are no QPs any
// more. It closes lingering connections at once.
func (d *device) stopProgress() {
	d.closing.stop()
	d.stalls.stop()
	d.prog.cancel()
	<-d.prog.ended
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

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

// keepContext reports whether one more stream may keep its receive context, because part of a long
// FPDU has come. It may until it has stood still from one check of stalled streams to the next.
func (p *progressState) keepContext() bool {
	if p.kept.Add(1) <= policy.ContextsKept {
		return true
	}
	p.kept.Add(-1)
	return false
}
