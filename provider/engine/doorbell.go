package engine

import (
	"runtime"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// A post may wait for the next ones, which then are transmitted with it: see package policy. What
// waits is transmitted
//
//   - with the last post that is expected, or when there is enough for a call;
//   - when a poll finds the QP's send CQ empty: the program has posted all that it had to; or when
//     it looks at the streams all the same (lookFirst);
//   - when its send CQ is armed, because the program may be about to sleep, or its receive CQ, if
//     that has at most policy.Few;
//   - when a post is refused, because the queue may be full;
//   - when the QP is closed or disconnected, or goes to ERR;
//   - when it has waited for too long: the next post or poll of the send CQ sees that, or a timer.
//     With one P, a goroutine that computes can keep the scheduler from running timers for 10 ms
//     and more.
//
// Nothing waits while one of the CQs is armed; nor if one has a Sink that is no SinkUse, because
// nobody sees what the program does with its completions; nor with Options.TransmitAtOnce.

// deferral says which posts to a send queue wait. sendQueue.mu guards it, but for the doorbell.
type deferral struct {
	policy.Deferral
	bell doorbell
}

// program returns what is known of the program that takes the CQ's completions. A Sink must not be
// asked at other times than a post, so that it is not known when its program took some. The run
// begins when the last of them came: a program that takes them much later is in none. sq.mu of a QP
// of the CQ is held.
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

// doorbells are the QPs that have a CQ as their send CQ and whose posts wait, in the order in which
// they began to.
type doorbells struct {
	some sched.Bool // there are any; written under mu

	mu          sched.Mutex[locks.Doorbells]
	first, last *doorbell
	timer       *time.Timer // nil before the first QP
	running     bool        // the timer is
}

// doorbell is a QP's place among those of its send CQ, whose mu guards it.
type doorbell struct {
	q          *qp
	prev, next *doorbell
	since      time.Duration // when it began to wait, as a time since epoch
	waits      bool
}

// deferPost counts a post to q, and reports whether it waits for others. sq.mu is held, so that q
// is among its CQ's doorbells as long as posts wait, and so that the CQs are not closed: their
// sinks must not be asked anything after that.
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

// stopWaiting has q be a doorbell no more, and reports whether it was one.
func (q *qp) stopWaiting() bool {
	d := q.sq.deferral.Load()
	return d != nil && q.sendCQ.bells.remove(&d.bell)
}

// forgetPosts begins anew for another connection. sq.mu is held.
func (q *qp) forgetPosts() {
	q.stopWaiting()
	if d := q.sq.deferral.Load(); d != nil {
		d.Forget(q.sq.free.reports())
	}
}

// ring transmits what waits. No lock is held.
func (q *qp) ring() {
	if q.stopWaiting() {
		q.ringAfter(func(d *deferral) { d.Sent(false) })
	}
}

// ringAfter transmits what waits of a QP that is a doorbell no more, and before that has its
// deferral know why. It returns how much of a turn was used.
func (q *qp) ringAfter(tell func(*deferral)) (used int) {
	q.sq.mu.Lock()
	tell(q.sq.deferral.Load())
	q.sq.mu.Unlock()
	s := q.stream.Load()
	if s == nil {
		return 0 // it is over, and all posts are flushed
	}
	used, _ = s.runTx(policy.TurnMost)
	s.settle()
	return used
}

// ringSome is for a poll that found the CQ empty, or looks at the streams all the same. It
// transmits what waits, but no more than a turn, because the program may get completions of that.
func (c *cq) ringSome(empty bool) {
	for left := policy.TurnLeast; left > 0; {
		q := c.bells.pop(forever)
		if q == nil {
			return
		}
		left -= q.ringAfter(func(d *deferral) { d.Sent(empty) })
	}
}

// ringAll is for a program that may be about to sleep. Where many QPs have the CQ as their receive
// CQ only, time ends what waits of these.
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

// ringLate transmits what has begun to wait before until, at most a turn: now is too late. It
// reports whether there may be more.
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

// ringBeforeTake is for a poll that is about to take completions: what it has taken would be lost
// if the end of a connection, which may follow, did not return.
func (c *cq) ringBeforeTake() {
	now := sinceEpoch()
	c.ringLate(now-policy.WaitMost, now)
}

// ringOverdue is the timer's. The timer runs on meanwhile, because the end of a connection, which
// may follow, calls the program's onDown.
func (c *cq) ringOverdue() {
	c.bells.goOn()
	now := sinceEpoch()
	for c.ringLate(now-policy.WaitTimer/2, now) {
		runtime.Gosched() // to others, as a turn is over
	}
}

// forever is later than all QPs have begun to wait.
const forever = time.Duration(1<<63 - 1)

// add adds q at d, and sees that it does not wait for too long. Where q was removed and its
// deferral does not know yet, d may be there already, and begins anew.
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

// pop removes the QP that has waited for longest; nil if none has waited since until.
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

// goOn has the timer run again if there are QPs.
func (b *doorbells) goOn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running = b.first != nil; b.running {
		b.timer.Reset(policy.WaitTimer)
	}
}
