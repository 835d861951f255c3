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
//     or when a poll receives before it takes completions (receiveFirst);
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

// deferral says which posts to a send queue are deferred. sendQueue.mu guards all of it but place.
type deferral struct {
	policy.Deferral
	place deferredQP
}

// deferredQPs are the QPs that have a CQ as their send CQ and whose posts are deferred, the longest
// deferred first.
type deferredQPs struct {
	some sched.Bool // there are any; written under mu

	mu          sched.Mutex[locks.Deferred]
	first, last *deferredQP
	timer       *time.Timer // nil before the first QP
	running     bool        // the timer is running
}

// deferredQP is a QP's place in the deferredQPs of its send CQ, whose mu guards it.
type deferredQP struct {
	q          *qp
	prev, next *deferredQP
	since      time.Duration // when deferral began, as a time since epoch
	listed     bool
}

// deferPost counts a post to q, and reports whether it is deferred. sq.mu is held for two reasons:
// q stays among its CQ's deferredQPs as long as posts are deferred, and the CQs are not closed,
// after which their sinks must not be asked.
func (q *qp) deferPost(p policy.Post) (waits bool) {
	d := q.sq.deferral.Load()
	if q.pd.dev.opts.TransmitAtOnce || !q.sendCQ.seesUse() || !q.recvCQ.seesUse() {
		return false
	}
	waited := d.Waits()
	switch d.Post(p, q.sendCQ.program(), q.sq.free.reports(), sinceEpoch) {
	case policy.First:
		q.sendCQ.deferred.add(q, &d.place)
		if q.sendCQ.isArmed() || q.recvCQ != q.sendCQ && q.recvCQ.isArmed() { // before q was in the list
			q.endDeferral()
			d.Sent(false)
			return false
		}
		return true
	case policy.Next:
		return true
	}
	if waited {
		q.endDeferral()
	}
	return false
}

// endDeferral removes q from the deferredQPs of its CQ, and reports whether it was there.
func (q *qp) endDeferral() bool {
	d := q.sq.deferral.Load()
	return d != nil && q.sendCQ.deferred.remove(&d.place)
}

// forgetPosts resets the deferral for another connection. sq.mu is held.
func (q *qp) forgetPosts() {
	q.endDeferral()
	if d := q.sq.deferral.Load(); d != nil {
		d.Forget(q.sq.free.reports())
	}
}

// transmitDeferred transmits deferred posts. No lock is held.
func (q *qp) transmitDeferred() {
	if q.endDeferral() {
		q.transmitAfter(func(d *deferral) { d.Sent(false) })
	}
}

// transmitAfter transmits the deferred posts of a QP that endDeferral has removed. Before that,
// tell records in the deferral why. It returns how much of a budget was used.
func (q *qp) transmitAfter(tell func(*deferral)) (used int) {
	q.sq.mu.Lock()
	tell(q.sq.deferral.Load())
	q.sq.mu.Unlock()
	s := q.stream.Load()
	if s == nil {
		return 0 // the connection is over, and all posts are flushed
	}
	return s.resume()
}

// transmitSome transmits deferred posts for a poll that found the CQ empty, or that receives first.
// It sends at most policy.BudgetLeast, because that may bring completions, which the program should
// get.
func (c *cq) transmitSome(empty bool) {
	for left := policy.BudgetLeast; left > 0; {
		q := c.deferred.pop(forever)
		if q == nil {
			return
		}
		left -= q.transmitAfter(func(d *deferral) { d.Sent(empty) })
	}
}

// transmitDeferred transmits deferred posts for a program that may be about to sleep. If many QPs
// have the CQ only as their receive CQ, it leaves theirs to the timer.
func (c *cq) transmitDeferred() {
	until := sinceEpoch()
	for q := c.deferred.pop(until); q != nil; q = c.deferred.pop(until) {
		q.transmitAfter(func(d *deferral) { d.Sent(false) })
	}
	for _, q := range *c.direct.Load() {
		if q.sendCQ != c {
			q.transmitDeferred()
		}
	}
}

// transmitLate transmits posts whose deferral began by until, at most policy.BudgetLeast of them.
// At the time now they are overdue. It reports whether there may be more.
func (c *cq) transmitLate(until, now time.Duration) (more bool) {
	for left := policy.BudgetLeast; left > 0; {
		q := c.deferred.pop(until)
		if q == nil {
			return false
		}
		left -= q.transmitAfter(func(d *deferral) {
			d.Overdue(now)
			d.Sent(false)
		})
	}
	return true
}

// transmitBeforePoll transmits overdue posts before a poll takes completions. A connection may end
// then, and completions that the poll had taken would be lost if that did not return.
func (c *cq) transmitBeforePoll() {
	now := sinceEpoch()
	c.transmitLate(now-policy.WaitMost, now)
}

// transmitOverdue is the timer's function. It restarts the timer first, because transmitting may
// end a connection, which calls the program's onDown.
func (c *cq) transmitOverdue() {
	c.deferred.restart()
	now := sinceEpoch()
	for c.transmitLate(now-policy.WaitTimer/2, now) {
		runtime.Gosched() // lets other goroutines run, because a turn is over
	}
}

// forever is later than the deferral of any QP began.
const forever = time.Duration(1<<63 - 1)

// add adds q at d, and starts the timer if it is not running. If q was removed and its deferral
// does not know yet, d may be in the list already, and begins anew.
func (l *deferredQPs) add(q *qp, d *deferredQP) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d.listed {
		l.unlink(d)
	}
	*d = deferredQP{q: q, prev: l.last, since: sinceEpoch(), listed: true}
	if l.last == nil {
		l.first = d
		l.some.Store(true)
	} else {
		l.last.next = d
	}
	l.last = d
	if l.running {
		return
	}
	l.running = true
	if l.timer == nil {
		l.timer = time.AfterFunc(policy.WaitTimer, q.sendCQ.transmitOverdue)
	} else {
		l.timer.Reset(policy.WaitTimer)
	}
}

// pop removes and returns the QP that was deferred first, nil if none was deferred by until.
func (l *deferredQPs) pop(until time.Duration) *qp {
	if !l.some.Load() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.first
	if d == nil || d.since > until {
		return nil
	}
	q := d.q
	l.unlink(d)
	return q
}

// remove removes d, and reports whether it was there.
func (l *deferredQPs) remove(d *deferredQP) bool {
	if !l.some.Load() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	waited := d.listed
	if waited {
		l.unlink(d)
	}
	return waited
}

// unlink removes d. mu is held.
func (l *deferredQPs) unlink(d *deferredQP) {
	if d.prev != nil {
		d.prev.next = d.next
	} else {
		l.first = d.next
	}
	if d.next != nil {
		d.next.prev = d.prev
	} else {
		l.last = d.prev
	}
	*d = deferredQP{}
	if l.first == nil {
		l.some.Store(false)
	}
}

// restart restarts the timer if there are QPs.
func (l *deferredQPs) restart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running = l.first != nil; l.running {
		l.timer.Reset(policy.WaitTimer)
	}
}
