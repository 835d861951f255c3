package engine

import (
	"runtime"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// A post may be deferred until the next ones are transmitted with it: see package policy. Deferred
// posts are transmitted
//
//   - with the last post that is expected, or when there is enough for a call;
//   - when a poll finds the QP's send CQ empty, because the program has posted all that it had to;
//     or when a poll receives before it takes completions (lookFirst);
//   - when its send CQ is armed, because the program may be about to sleep, or its receive CQ, if
//     that has at most policy.Few;
//   - when a post is refused, because the queue may be full;
//   - when the QP is closed or disconnected, or goes to ERR;
//   - when they have waited for too long: the next post or poll of the send CQ notices that, or a
//     timer. With one P, a goroutine that computes can delay the scheduler's timers by 10 ms and
//     more.
//
// No post is deferred while one of the CQs is armed, or with Options.TransmitAtOnce. Nor is a
// post deferred if a CQ has a Sink that is no SinkUse, because nobody sees then what the program
// does with its completions.

// deferral says which posts to a send queue are deferred. sendQueue.mu guards all of it but bell.
type deferral struct {
	policy.Deferral
	bell doorbell
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

// doorbells are the QPs that have a CQ as their send CQ and whose posts are deferred, the longest
// deferred first.
type doorbells struct {
	some sched.Bool // there are any; written under mu

	mu          sched.Mutex[locks.Doorbells]
	first, last *doorbell
	timer       *time.Timer // nil before the first QP
	running     bool        // the timer is running
}

// doorbell is a QP's place in the doorbells of its send CQ, whose mu guards it.
type doorbell struct {
	q          *qp
	prev, next *doorbell
	since      time.Duration // when deferral began, as a time since epoch
	waits      bool
}

// deferPost counts a post to q, and reports whether it is deferred. sq.mu is held for two reasons:
// q stays among its CQ's doorbells as long as posts are deferred, and the CQs are not closed, after
// which their sinks must not be asked.
func (q *qp) deferPost(p policy.Post) (waits bool) {
	d := q.sq.deferral.Load()
	if q.pd.dev.opts.TransmitAtOnce || !q.sendCQ.seesUse() || !q.recvCQ.seesUse() {
		return false
	}
	waited := d.Waits()
	switch d.Post(p, q.sendCQ.program(), q.sq.free.reports(), sinceEpoch) {
	case policy.First:
		q.sendCQ.bells.add(q, &d.bell)
		if q.sendCQ.isArmed() || q.recvCQ != q.sendCQ && q.recvCQ.isArmed() { // before q was a doorbell
			q.stopWaiting()
			d.Sent(false)
			return false
		}
		return true
	case policy.Next:
		return true
	}
	if waited {
		q.stopWaiting()
	}
	return false
}

// seesUse reports whether it is known when the program takes completions, finds none, or sleeps.
func (c *cq) seesUse() bool { return c.sink == nil || c.use != nil }

// stopWaiting removes q from the doorbells of its CQ, and reports whether it was there.
func (q *qp) stopWaiting() bool {
	d := q.sq.deferral.Load()
	return d != nil && q.sendCQ.bells.remove(&d.bell)
}

// forgetPosts resets the deferral for another connection. sq.mu is held.
func (q *qp) forgetPosts() {
	q.stopWaiting()
	if d := q.sq.deferral.Load(); d != nil {
		d.Forget(q.sq.free.reports())
	}
}

// ring transmits deferred posts. No lock is held.
func (q *qp) ring() {
	if q.stopWaiting() {
		q.ringAfter(func(d *deferral) { d.Sent(false) })
	}
}

// ringAfter transmits the deferred posts of a QP that stopWaiting has removed. Before that, tell
// records in the deferral why. It returns how much of a turn was used.
func (q *qp) ringAfter(tell func(*deferral)) (used int) {
	q.sq.mu.Lock()
	tell(q.sq.deferral.Load())
	q.sq.mu.Unlock()
	s := q.stream.Load()
	if s == nil {
		return 0 // the connection is over, and all posts are flushed
	}
	used, _ = s.tx.run(policy.TurnMost)
	s.settle()
	return used
}

// ringSome transmits deferred posts for a poll that found the CQ empty, or that receives first. It
// sends at most a turn, because that may bring completions, which the program should get.
func (c *cq) ringSome(empty bool) {
	for left := policy.TurnLeast; left > 0; {
		q := c.bells.pop(forever)
		if q == nil {
			return
		}
		left -= q.ringAfter(func(d *deferral) { d.Sent(empty) })
	}
}

// ringAll transmits deferred posts for a program that may be about to sleep. If many QPs have the
// CQ only as their receive CQ, it leaves theirs to the timer.
func (c *cq) ringAll() {
	until := sinceEpoch()
	for q := c.bells.pop(until); q != nil; q = c.bells.pop(until) {
		q.ringAfter(func(d *deferral) { d.Sent(false) })
	}
	for _, q := range *c.direct.Load() {
		if q.sendCQ != c {
			q.ring()
		}
	}
}

// ringLate transmits posts whose deferral began by until, at most a turn of them. At the time now
// they are overdue. It reports whether there may be more.
func (c *cq) ringLate(until, now time.Duration) (more bool) {
	for left := policy.TurnLeast; left > 0; {
		q := c.bells.pop(until)
		if q == nil {
			return false
		}
		left -= q.ringAfter(func(d *deferral) {
			d.Overdue(now)
			d.Sent(false)
		})
	}
	return true
}

// ringBeforeTake transmits overdue posts before a poll takes completions. A connection may end
// then, and completions that the poll had taken would be lost if that did not return.
func (c *cq) ringBeforeTake() {
	now := sinceEpoch()
	c.ringLate(now-policy.WaitMost, now)
}

// ringOverdue is the timer's function. It restarts the timer first, because transmitting may end a
// connection, which calls the program's onDown.
func (c *cq) ringOverdue() {
	c.bells.goOn()
	now := sinceEpoch()
	for c.ringLate(now-policy.WaitTimer/2, now) {
		runtime.Gosched() // lets other goroutines run, because a turn is over
	}
}

// forever is later than the deferral of any QP began.
const forever = time.Duration(1<<63 - 1)

// add adds q at d, and starts the timer if it is not running. If q was removed and its deferral
// does not know yet, d may be in the list already, and begins anew.
func (b *doorbells) add(q *qp, d *doorbell) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.waits {
		b.unlink(d)
	}
	*d = doorbell{q: q, prev: b.last, since: sinceEpoch(), waits: true}
	if b.last == nil {
		b.first = d
		b.some.Store(true)
	} else {
		b.last.next = d
	}
	b.last = d
	if b.running {
		return
	}
	b.running = true
	if b.timer == nil {
		b.timer = time.AfterFunc(policy.WaitTimer, q.sendCQ.ringOverdue)
	} else {
		b.timer.Reset(policy.WaitTimer)
	}
}

// pop removes and returns the QP that was deferred first, nil if none was deferred by until.
func (b *doorbells) pop(until time.Duration) *qp {
	if !b.some.Load() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.first
	if d == nil || d.since > until {
		return nil
	}
	q := d.q
	b.unlink(d)
	return q
}

// remove removes d, and reports whether it was there.
func (b *doorbells) remove(d *doorbell) bool {
	if !b.some.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	waited := d.waits
	if waited {
		b.unlink(d)
	}
	return waited
}

// unlink removes d. mu is held.
func (b *doorbells) unlink(d *doorbell) {
	if d.prev != nil {
		d.prev.next = d.next
	} else {
		b.first = d.next
	}
	if d.next != nil {
		d.next.prev = d.prev
	} else {
		b.last = d.prev
	}
	*d = doorbell{}
	if b.first == nil {
		b.some.Store(false)
	}
}

// goOn restarts the timer if there are QPs.
func (b *doorbells) goOn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running = b.first != nil; b.running {
		b.timer.Reset(policy.WaitTimer)
	}
}
