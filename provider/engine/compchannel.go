package engine

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/refs"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// pollsInRow is how often a goroutine polls before it sleeps if the clock does not move.
const pollsInRow = 4096

// compChannel is a completion channel: a queue of CQs that have fired. A CQ is in the queue once,
// with a count of its events, so the queue needs no memory of its own.
type compChannel struct {
	dev  *device
	refs refs.Count
	wake signal

	pace pace

	// polledInVain is when a goroutine that is about to sleep began to poll in vain, as a time
	// since epoch. It is 0 if none has.
	polledInVain atomic.Int64

	mu          sched.Mutex[locks.CompChannel]
	first, last *cq // linked by cq.next
}

// CreateCompChannel implements provider.Device.
func (d *device) CreateCompChannel() (provider.CompChannel, error) {
	const op = "ibv_create_comp_channel"
	if !d.refs.Hold() {
		return nil, failClosed(op, DeviceName)
	}
	ch := &compChannel{dev: d}
	ch.wake.init()
	return ch, nil
}

// fire queues an event of c. It neither blocks nor allocates.
func (ch *compChannel) fire(c *cq) {
	ch.mu.Lock()
	if c.refs.Closed() { // forget has been, or will be, called
		ch.mu.Unlock()
		return
	}
	c.events++
	if !c.queued {
		ch.append(c)
	}
	ch.mu.Unlock()
	ch.wake.set()
}

func (ch *compChannel) append(c *cq) {
	c.queued, c.next = true, nil
	if ch.last == nil {
		ch.first = c
	} else {
		ch.last.next = c
	}
	ch.last = c
}

// pop takes the oldest event, nil if there is none. more reports whether there are others.
func (ch *compChannel) pop() (c *cq, more bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	c = ch.first
	if c == nil {
		return nil, false
	}
	ch.first = c.next
	if ch.first == nil {
		ch.last = nil
	}
	c.queued, c.next = false, nil
	if c.events--; c.events > 0 {
		ch.append(c)
	}
	return c, ch.first != nil
}

// forget drops the events of c.
func (ch *compChannel) forget(c *cq) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	c.events = 0
	if !c.queued {
		return
	}
	var prev *cq
	for at := ch.first; at != c; at = at.next {
		prev = at
	}
	if prev == nil {
		ch.first = c.next
	} else {
		prev.next = c.next
	}
	if ch.last == c {
		ch.last = prev
	}
	c.queued, c.next = false, nil
}

// Next implements provider.CompChannel. Several goroutines may wait; each
// event goes to one of them.
func (ch *compChannel) Next(ctx context.Context) (provider.CQ, error) {
	const op = "ibv_get_cq_event"
	for {
		if ch.refs.Closed() {
			return nil, failClosed(op, "completion channel")
		}
		if c, more := ch.pop(); c != nil {
			if more {
				ch.wake.set() // for the next waiter
			}
			return c, nil
		}
		if err := ch.sleep(ctx); err != nil {
			return nil, fail(op, "completion channel", err)
		}
	}
}

// sleep waits for an event, or returns the error of ctx. It polls for events first if the last wait
// was short and the caller has not polled for completions already (cq.BusyWait).
func (ch *compChannel) sleep(ctx context.Context) error {
	limit := ch.dev.opts.BusyWait
	began := time.Now()
	vain := false
	if at := ch.polledInVain.Swap(0); at != 0 && began.Sub(epoch)-time.Duration(at) < 2*limit {
		vain = true
	} else if limit > 0 && ch.pace.brief.Load() {
		if ch.pollUntil(began.Add(limit)) {
			ch.pace.found()
			return nil
		}
		vain = true
		ch.dev.poller.BeforeSleep() // the polls may have begun a lease
	}
	err := ch.wake.wait(ctx)
	if short := time.Since(began) < limit; !short || err == nil { // not if ctx ended the wait
		ch.pace.waited(short, vain)
	}
	return err
}

// pace decides from earlier waits whether a wait begins with polling. It is only a guess, so races
// between goroutines that change it do not matter.
type pace struct {
	brief  atomic.Bool  // the next wait begins with polling
	shorts atomic.Int32 // consecutive short waits without polling
	vain   atomic.Int32 // waits that polled in vain, less those that found something
}

// found is called when polling has found something.
func (p *pace) found() {
	if n := p.vain.Load(); n > 0 {
		p.vain.Store(n - 1)
	}
}

// waited is called after a sleep. vain says that it began with polling that found nothing, and
// short that it took less than BusyWait. If the peer needs the polling CPU, because there is only
// one, polling is always in vain and the sleep after it is short. So each vain poll doubles how
// many short waits must follow before the next.
func (p *pace) waited(short, vain bool) {
	n := p.vain.Load()
	switch {
	case vain:
		p.vain.Store(min(n+1, policy.VainMost))
		fallthrough
	case !short:
		p.shorts.Store(0)
		p.brief.Store(false)
	default:
		p.brief.Store(p.shorts.Add(1) >= 1<<max(n-1, 0))
	}
}

// pollUntil serves the device's streams until there is an event or the time is up.
func (ch *compChannel) pollUntil(until time.Time) bool {
	if !beginPolling() {
		return false
	}
	defer endPolling()
	for range pollsInRow {
		ch.dev.poller.Poll()
		if ch.wake.tryWait() {
			return true
		}
		if time.Until(until) < 0 {
			return false
		}
		ch.dev.pollNetpoller()
		runtime.Gosched() // lets goroutines run that can use the CPU better
	}
	return false
}

// polling is how many goroutines of the process poll before they sleep.
var polling atomic.Int32

// beginPolling reports whether one more goroutine may poll. As long as each P has a runnable
// goroutine, even one that yields all the time, the scheduler polls Go's netpoller only every 10
// ms. Other users of the netpoller, such as a net.Conn, would wait for that. So one P is left to
// others.
func beginPolling() bool {
	if int(polling.Add(1)) > max(runtime.GOMAXPROCS(0)-1, 1) {
		polling.Add(-1)
		return false
	}
	return true
}

func endPolling() { polling.Add(-1) }

// pollNetpoller makes the scheduler poll the netpoller. The scheduler would not poll it while each
// P, or each CPU of a shared machine, has a goroutine that polls the device. pollNetpoller wakes
// the first progress goroutine, which also waits in the netpoller, and waits until it has run.
func (d *device) pollNetpoller() {
	now := int64(time.Since(epoch))
	if now-d.prog.netpolled.Load() < int64(policy.NetpollEvery) || !d.prog.netpolling.CompareAndSwap(false, true) {
		return
	}
	defer d.prog.netpolling.Store(false) // one at a time, or one could take the other's token
	d.prog.netpolled.Store(now)
	select {
	case <-d.prog.awake: // a token of an earlier time
	default:
	}
	d.poller.first().Wake()
	select {
	case <-d.prog.awake:
	case <-d.prog.first:
	}
}

// BusyWait implements provider.BusyWaiter. Falling asleep and being woken take 5 to 50 us on each
// side. So after a wait shorter than Options.BusyWait, it polls for completions for up to that
// time. It reads the streams of the CQ directly. It is called before the CQ is armed, so the
// progress goroutine leaves the streams to it.
func (c *cq) BusyWait(ctx context.Context) bool {
	ch := c.ch
	if ch == nil || c.dev.opts.BusyWait <= 0 || !ch.pace.brief.Load() {
		return false
	}
	if !beginPolling() {
		return false
	}
	defer endPolling()
	began := time.Now()
	for range pollsInRow {
		if ctx.Err() != nil {
			return false
		}
		c.dev.pollNetpoller()
		c.dev.progress(c)
		if c.seen.Load() > 0 || c.refs.Closed() {
			ch.pace.found()
			return true
		}
		if time.Since(began) > c.dev.opts.BusyWait {
			break
		}
		runtime.Gosched()
	}
	ch.polledInVain.Store(int64(began.Sub(epoch)))
	return false
}

// Close implements provider.CompChannel. Waiters return with os.ErrClosed.
func (ch *compChannel) Close() error {
	first, busy := ch.refs.End()
	if busy {
		return failBusy("ibv_destroy_comp_channel", "completion channel", "CQs")
	}
	if first {
		ch.wake.close()
		ch.dev.refs.Drop()
	}
	return nil
}
