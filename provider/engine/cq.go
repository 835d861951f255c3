package engine

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/refs"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// armState says which completion will fire the channel.
type armState uint8

const (
	armNone armState = iota
	armSolicited
	armAny
)

// cq is a completion queue: a ring that only Resize grows or shrinks. Its children are the queues
// of QPs that complete on it.
type cq struct {
	dev    *device
	refs   refs.Count
	ch     *compChannel            // nil for none
	cqe    int                     // with a sink, how many completions were asked for
	sink   provider.CompletionSink // takes the completions; nil for the ring
	use    provider.SinkUse        // sink, nil if it does not report its program's use
	cookie any

	// direct holds the QPs that complete here, each once. It is empty if they are so many that
	// asking the poller which have news is cheaper than asking each. It is replaced as a whole, so
	// that progress reads it without a lock.
	direct atomic.Pointer[[]*qp]

	seen         atomic.Int64  // count, for readers without mu
	sinceReceive atomic.Uint32 // completions of many QPs taken since receiveFirst
	deferred     deferredQPs
	run          atomic.Int64  // the policy.Run of the program
	taken        atomic.Uint32 // the last result of use.Taken
	came         atomic.Int64  // when use last received a completion, as a time since epoch

	mu     sched.Mutex[locks.CQ] // guards what follows; nothing else is locked under it
	qps    map[*qp]struct{}
	ring   []provider.WC
	head   int // oldest
	count  int
	arm    armState // with a sink only armAny, until something comes: see pollAll
	full   bool     // a completion was lost, and the program has polled none since
	losses uint64   // completions lost for want of room
	pushed uint64   // completions that have been in the ring
	errors uint64   // those of them that report a failure
	most   int      // the highest count since the ring was made

	passed provider.WC // the completion that the sink is given

	events int // guarded by ch.mu: fired and not yet fetched
	queued bool
	next   *cq // in the channel's queue
}

// CreateCQ implements provider.Device. The granted capacity is CQE rounded up to a power of two.
func (d *device) CreateCQ(init provider.CQInitAttr) (provider.CQ, error) {
	const op = "ibv_create_cq"
	if init.CQE < 1 || init.CQE > maxCQE {
		return nil, fail(op, DeviceName, outside("the number of completions", init.CQE, 1, maxCQE))
	}
	if init.CompVector < 0 || init.CompVector >= numCompVectors {
		return nil, fail(op, DeviceName, outside("CompVector", init.CompVector, 0, numCompVectors-1))
	}
	var ch *compChannel
	if init.Channel != nil && init.Sink != nil {
		return nil, fail(op, DeviceName, errSinkChannel)
	}
	if init.Channel != nil {
		var ok bool
		if ch, ok = init.Channel.(*compChannel); !ok || ch == nil || ch.dev != d {
			return nil, failForeign(op, "completion channel")
		}
	}
	if !d.refs.Hold() {
		return nil, failClosed(op, DeviceName)
	}
	if err := d.cqs.Take(); err != nil {
		d.tally.refuse("MaxCQ")
		d.refs.Drop()
		return nil, fail(op, DeviceName, err)
	}
	if ch != nil && !ch.refs.Hold() {
		d.cqs.Give()
		d.refs.Drop()
		return nil, failClosed(op, "completion channel")
	}
	c := &cq{dev: d, ch: ch, sink: init.Sink, cqe: init.CQE, cookie: init.Cookie,
		qps: make(map[*qp]struct{})}
	c.use, _ = init.Sink.(provider.SinkUse)
	if c.sink == nil {
		c.ring = make([]provider.WC, roundUp(init.CQE))
	}
	c.direct.Store(new([]*qp))
	return c, nil
}

var errSinkChannel = fmt.Errorf("a CQ with a Sink has no channel, because the Sink notifies the "+
	"program; leave out one: %w", syscall.EINVAL)

// ownCQ returns c as a CQ of d, nil if it isn't one.
func (d *device) ownCQ(c provider.CQ) *cq {
	own, ok := c.(*cq)
	if !ok || own == nil || own.dev != d {
		return nil
	}
	return own
}

// attach makes q a dependant of c, for which Poll makes progress. It reports false if c is closed.
// A QP whose two queues complete on one CQ attaches once.
func (c *cq) attach(q *qp) bool {
	if !c.refs.Hold() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.qps[q] = struct{}{}
	c.listDirect()
	return true
}

// detach undoes attach. Completions of q in the ring stay there.
func (c *cq) detach(q *qp) {
	c.mu.Lock()
	delete(c.qps, q)
	c.listDirect()
	c.mu.Unlock()
	c.refs.Drop()
}

func (c *cq) listDirect() {
	var list []*qp
	if len(c.qps) <= policy.Few {
		list = slices.Collect(maps.Keys(c.qps))
	}
	c.direct.Store(&list)
}

// push queues a completion, and fires the channel if it is armed for it. solicited marks a Send
// with the solicited event; a failure counts as solicited, too. push neither blocks nor allocates,
// so it may be called with a QP's locks held. Without room the completion is lost, as with siw, and
// EventCQErr is raised once until the next Poll.
func (c *cq) push(wc provider.WC, solicited bool) {
	if c.sink != nil {
		c.pass(wc, solicited)
		return
	}
	c.mu.Lock()
	if c.count == len(c.ring) {
		c.lose(1)
		return
	}
	c.ring[(c.head+c.count)&(len(c.ring)-1)] = wc
	c.count++
	c.most = max(c.most, c.count)
	c.pushed++
	if wc.Status != provider.WCSuccess {
		c.errors++
	}
	c.publish(c.arm == armAny || c.arm == armSolicited && (solicited || wc.Status != provider.WCSuccess))
}

// publish shows to readers what was put into the ring, releases mu, which is held, and fires the
// channel if fire is true.
func (c *cq) publish(fire bool) {
	if fire {
		c.arm = armNone
	}
	c.seen.Store(int64(c.count))
	c.mu.Unlock()
	if fire {
		c.ch.fire(c)
	}
}

// lose counts n completions for which there was no room. It unlocks mu.
func (c *cq) lose(n int) {
	cqe := c.capacity()
	c.losses += uint64(n)
	told := c.full
	c.full = true
	c.mu.Unlock()
	c.dev.tally.lost.Add(uint64(n))
	if !told {
		c.dev.log.overflow(cqe)
		c.dev.raise(provider.AsyncEvent{Type: provider.EventCQErr, CQ: c})
	}
}

// pass gives a completion to the sink.
func (c *cq) pass(wc provider.WC, solicited bool) {
	returned := false
	defer mustReturn(&returned)
	c.mu.Lock()
	if c.use != nil {
		c.came.Store(int64(sinceEpoch())) // before the completion can be seen
	}
	c.passed = wc // an argument of an interface's method would be allocated
	stored, due := c.sink.Complete(&c.passed, solicited)
	if !stored {
		returned = true
		c.lose(1)
		return
	}
	c.full, c.arm = false, armNone
	c.pushed++
	if wc.Status != provider.WCSuccess {
		c.errors++
	}
	c.mu.Unlock()
	if due {
		c.sink.Notify()
	}
	returned = true
}

// Poll implements provider.CQ.
func (c *cq) Poll(wc []provider.WC) (int, error) {
	if c.refs.Closed() {
		return 0, failClosed("ibv_poll_cq", "cq")
	}
	if c.sink != nil {
		c.dev.progress(c)
		return 0, nil
	}
	if len(wc) == 0 {
		return 0, nil
	}
	if c.sinceReceive.Load() >= policy.SomeMost && c.seen.Load() > 0 {
		c.receiveFirst()
	}
	if c.deferred.some.Load() && c.seen.Load() > 0 {
		c.transmitBeforePoll()
	}
	n := c.pop(wc)
	if n == 0 {
		c.dev.progress(c)
		n = c.pop(wc)
	}
	if n == 0 {
		return 0, nil
	}
	c.took()
	if len(*c.direct.Load()) == 0 {
		c.sinceReceive.Add(uint32(n))
	}
	return n, nil
}

// receiveFirst receives before a poll takes completions from the ring. A program whose many
// connections are all busy always finds completions, so it would never receive. The progress
// goroutine would serve every stream, on a CPU that the peer or the program could use.
//
// It receives first, because a poll that has taken completions would lose them if receiving did not
// return, and because a poll that returns fewer than it could has emptied the CQ. With one P it
// does nothing: nobody serves the streams at the same time, so bytes would only be received
// earlier.
//
// It also transmits deferred posts that wait for an empty ring (deferredQPs). When polls receive
// first, the ring is rarely empty, and without this a program that takes 16 completions at a time
// had 0.6 of the message rate.
func (c *cq) receiveFirst() {
	c.sinceReceive.Store(0)
	if runtime.GOMAXPROCS(0) > 1 {
		if c.deferred.some.Load() {
			c.transmitSome(false)
		}
		c.dev.poller.Poll()
	}
}

// pop moves completions from the ring to wc.
func (c *cq) pop(wc []provider.WC) int {
	if c.seen.Load() == 0 {
		return 0
	}
	c.mu.Lock()
	n := min(len(wc), c.count)
	for i := range n {
		wc[i] = c.ring[c.head]
		c.head = (c.head + 1) & (len(c.ring) - 1)
	}
	c.count -= n
	if n > 0 {
		c.full = false
	}
	c.seen.Store(int64(c.count))
	c.mu.Unlock()
	return n
}

// ReqNotify implements provider.CQ. Without a channel it does nothing, as with siw; with a sink it
// only notes that the program is about to sleep. A request for any completion is not narrowed by a
// later one for solicited completions.
func (c *cq) ReqNotify(solicitedOnly bool) error {
	if c.refs.Closed() {
		return failClosed("ibv_req_notify_cq", "cq")
	}
	if c.sink != nil { // the sink knows what the program waits for
		c.mu.Lock()
		c.arm = armAny // until something comes
		c.mu.Unlock()
		c.transmitDeferred()
		c.dev.poller.BeforeSleep()
		return nil
	}
	if c.ch == nil {
		return nil
	}
	want := armAny
	if solicitedOnly {
		want = armSolicited
	}
	c.mu.Lock()
	c.arm = max(c.arm, want)
	c.mu.Unlock()
	c.transmitDeferred()
	// The caller is about to sleep. The progress goroutine, which leaves the streams to pollers,
	// takes them over without delay.
	c.dev.poller.BeforeSleep()
	return nil
}

// isArmed reports whether a completion will fire the channel.
func (c *cq) isArmed() bool {
	if c.use != nil {
		returned := false
		defer mustReturn(&returned)
		waits := c.use.Waits()
		returned = true
		return waits
	}
	if c.ch == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.arm != armNone
}

// CQE implements provider.CQ.
func (c *cq) CQE() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.capacity()
}

// capacity returns how many completions fit; with a sink, how many were asked for. mu is held.
func (c *cq) capacity() int {
	if c.sink != nil {
		return c.cqe
	}
	return len(c.ring)
}

// Resize implements provider.CQ. As in CreateCQ, the granted capacity is cqe rounded up to a power
// of two. A CQ frees the memory that it no longer needs.
func (c *cq) Resize(cqe int) error {
	const op = "ibv_resize_cq"
	switch {
	case c.refs.Closed():
		return failClosed(op, "cq")
	case cqe < 1 || cqe > maxCQE:
		return fail(op, "cq", outside("the number of completions", cqe, 1, maxCQE))
	case c.sink != nil:
		return fail(op, "cq", failUnsupported("a new size",
			"the CQ's completions go to a Sink, which has the room"))
	}
	ring := make([]provider.WC, roundUp(cqe)) // without the lock, for which QPs wait
	c.mu.Lock()
	defer c.mu.Unlock()
	if cqe < c.count {
		return fail(op, "cq", fmt.Errorf("it has %d completions, and the new size is %d; poll "+
			"first: %w", c.count, cqe, syscall.EINVAL))
	}
	n := copy(ring, c.ring[c.head:min(c.head+c.count, len(c.ring))])
	copy(ring[n:], c.ring[:c.count-n])
	c.ring, c.head, c.most = ring, 0, c.count
	return nil
}

// Cookie implements provider.CQ.
func (c *cq) Cookie() any { return c.cookie }

// Close implements provider.CQ. Events of the CQ that were not fetched from its channel or from the
// device are dropped.
func (c *cq) Close() error {
	first, busy := c.refs.End()
	if busy {
		return failBusy("ibv_destroy_cq", "cq", "QPs")
	}
	if !first {
		return nil
	}
	if c.ch != nil {
		c.ch.forget(c)
		c.ch.refs.Drop()
	}
	c.dev.forget(func(e provider.AsyncEvent) bool { return e.CQ == c })
	c.dev.cqs.Give()
	c.dev.refs.Drop()
	return nil
}

// program returns the run of the program that takes the CQ's completions. A Sink must not be asked
// at other times than a post, so it is not known when its program took some. The run therefore
// begins when the last completion came: a program that takes it much later is in no run. sq.mu of a
// QP of the CQ is held.
func (c *cq) program() policy.Run {
	if c.use != nil {
		returned := false
		defer mustReturn(&returned)
		taken := c.use.Taken()
		returned = true
		if taken != c.taken.Load() {
			c.taken.Store(taken)
			c.run.Store(int64(policy.Took(time.Duration(c.came.Load()))))
		}
	}
	return policy.Run(c.run.Load())
}

// took is called when the program has taken completions.
func (c *cq) took() { c.run.Store(int64(policy.Took(sinceEpoch()))) }

// foundEmpty is called when the program has found the CQ empty.
func (c *cq) foundEmpty() {
	r := policy.Run(c.run.Load())
	if f := r.Found(); f != r {
		c.run.Store(int64(f))
	}
}

// seesUse reports whether it is known when the program takes completions, finds none, or sleeps.
func (c *cq) seesUse() bool { return c.sink == nil || c.use != nil }
