package engine

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// A program that keeps a number of work requests outstanding posts as many again as have completed,
// and most programs post them one by one. Each post that transmits is a system call, and over
// loopback a packet or two of its own; a short message costs a small part of that. So a post waits
// while others are to be expected, and the last of these transmits all. The driver of an RNIC
// would ring the doorbell for the last of them only.
//
// How many are to be expected is a forecast. Whatever it says, what waits is transmitted
//
//   - when as many were posted as were expected, or enough for a call;
//   - when a poll finds the CQ empty: the program has posted all that it had to;
//   - when the CQ is armed, because the program may be about to sleep;
//   - when a post is refused, because the queue may be full;
//   - when the QP is closed or disconnected, or goes to ERR;
//   - by a timer, after at most one and a half times waitMost, or when the scheduler runs timers:
//     with one P, a goroutine that computes can keep it from that for 10 ms.
//
// Where a forecast has made a post wait for longer than lateRing, the program does other things
// before it polls. The next forecastPause posts to that QP then don't wait.
//
// Nothing waits if the CQ has a Sink that is no SinkUse, because nobody sees when the program takes
// completions; nor if the QP's receives complete on another CQ, because the program may poll only
// that one for long.
const (
	waitMost      = time.Millisecond
	lateRing      = 100 * time.Microsecond
	forecastPause = 64
	pausesMost    = 9 // times that the pause doubles

	// ringOctets are enough for a call, counted as in a turn (see turnMost).
	ringOctets = 256 << 10
)

// forecast says how many posts to a send queue are to be expected. sendQueue.mu guards it.
type forecast struct {
	takes   uint32 // cq.taken at the last post
	reports uint32 // of sendQueue.free when takes had changed last
	more    uint32 // posts to be expected
	burst   uint32 // posts since then
	octets  uint32 // that wait
	pause   uint16 // posts that don't wait whatever is to be expected
	pauses  uint8  // since a forecast was right
	waits   bool   // something waits
}

// due says when a post is transmitted.
type due uint8

const (
	dueNow  due = iota
	dueLast     // now, with those that have waited for it
	dueWith     // with others, which are to be expected: it is the first that waits
	dueNext     // with those that wait already, and others
)

// posted counts a post of n work requests with so many octets, and returns when they are to be
// transmitted. takes is cq.taken, and reports how many completions the send queue has reported. It
// counts posts and not work requests, because a program that posts lists usually has only the last
// of each reported. A program that has few posts reported posts as many as before the last report.
func (f *forecast) posted(n, octets int, takes, reports uint32) due {
	if takes != f.takes {
		f.more = max(f.more+reports-f.reports, f.burst)
		f.takes, f.reports, f.burst = takes, reports, 0
	}
	f.burst++
	if f.more > 0 {
		f.more--
	}
	f.octets += uint32(min(octets+n*fpduCost, ringOctets))
	if f.pause > 0 {
		f.pause--
	}
	waited := f.waits
	f.waits = f.more > 0 && f.octets < ringOctets && f.pause == 0
	switch {
	case f.waits && waited:
		return dueNext
	case f.waits:
		return dueWith
	}
	f.octets = 0
	if waited {
		f.pauses = 0
		return dueLast
	}
	return dueNow
}

// rung is called when something that has waited is transmitted although more was to be expected:
// in vain, if the program has no completions left, and late, if it took too long.
func (f *forecast) rung(vain, late bool) {
	if late && f.waits {
		f.pause = forecastPause << f.pauses
		f.pauses = min(f.pauses+1, pausesMost)
	}
	if vain {
		f.more = 0
	}
	f.octets, f.waits = 0, false
}

// taken returns a number that changes when the program takes completions.
func (c *cq) taken() uint32 {
	if c.use != nil {
		return c.use.Taken()
	}
	return c.seen.takes()
}

// doorbells are the QPs of a CQ whose posts wait, in the order in which they began to.
type doorbells struct {
	some sched.Bool   // there are any; written under mu
	dry  atomic.Int64 // when a poll last found the CQ empty and QPs that wait, as a time since epoch

	mu          sched.Mutex[locks.Doorbells]
	first, last *qp
	timer       *time.Timer // nil before the first
	running     bool        // the timer is
}

// doorbell is a QP's place among those of its CQ, whose mu guards it.
type doorbell struct {
	prev, next *qp
	since      time.Duration // when it began to wait, as a time since epoch
	waits      bool
}

// foresee counts a post to q of n work requests with so many octets, and returns when they are to
// be transmitted. sq.mu is held, so that q is among its CQ's doorbells as long as posts wait.
func (q *qp) foresee(n, octets int) due {
	c, s := q.sendCQ, &q.sq
	if c != q.recvCQ || c.sink != nil && c.use == nil {
		return dueNow
	}
	d := s.forecast.posted(n, octets, c.taken(), s.free.reports())
	switch d {
	case dueWith:
		c.bells.add(q)
	case dueLast:
		c.bells.remove(q)
	}
	return d
}

// forgetForecast begins anew for another connection. sq.mu is held.
func (q *qp) forgetForecast() {
	q.sendCQ.bells.remove(q)
	q.sq.forecast = forecast{takes: q.sendCQ.taken(), reports: q.sq.free.reports()}
}

// ring transmits what waits. No lock is held.
func (q *qp) ring() {
	if since, waited := q.sendCQ.bells.remove(q); waited {
		q.ringAfter(false, time.Since(epoch)-since)
	}
}

// ringAfter is ring for a QP that is among its CQ's no more. The program has done other things for
// away since its posts began to wait. It returns how much of a turn was used.
func (q *qp) ringAfter(vain bool, away time.Duration) (used int) {
	q.sq.mu.Lock()
	q.sq.forecast.rung(vain, away > lateRing)
	q.sq.mu.Unlock()
	s := q.stream.Load()
	if s == nil {
		return 0 // it is over, and all posts are flushed
	}
	used, _ = s.runTx(turnMost)
	s.settle()
	return used
}

// ringSome is for a poll that found the CQ empty. It transmits what waits, but no more than a turn,
// because the program may get completions of that.
func (c *cq) ringSome() {
	now := time.Since(epoch)
	before := time.Duration(c.bells.dry.Swap(int64(now)))
	if before > now { // it is not set
		before = -forever
	}
	for left := turnLeast; left > 0; {
		q, since := c.bells.pop(forever)
		if q == nil {
			return
		}
		left -= q.ringAfter(true, now-max(since, before))
	}
}

// ringAll is for a program that may be about to sleep.
func (c *cq) ringAll() {
	until := time.Since(epoch)
	for q, since := c.bells.pop(until); q != nil; q, since = c.bells.pop(until) {
		q.ringAfter(false, until-since)
	}
}

// ringOverdue is the timer's.
func (c *cq) ringOverdue() {
	until := time.Since(epoch) - waitMost/2
	for q, since := c.bells.pop(until); q != nil; q, since = c.bells.pop(until) {
		q.ringAfter(false, until-since)
		runtime.Gosched() // to others, as a turn is over
	}
	c.bells.goOn()
}

// forever is later than all QPs have begun to wait.
const forever = time.Duration(1<<63 - 1)

// add adds q, unless it is among the QPs, and sees that it does not wait for too long.
func (b *doorbells) add(q *qp) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q.bell.waits {
		return
	}
	q.bell = doorbell{prev: b.last, since: time.Since(epoch), waits: true}
	if b.last == nil {
		b.first = q
		b.some.Store(true)
	} else {
		b.last.bell.next = q
	}
	b.last = q
	switch {
	case b.running:
		return
	case b.timer == nil:
		b.timer = time.AfterFunc(waitMost, q.sendCQ.ringOverdue)
	default:
		b.timer.Reset(waitMost)
	}
	b.running = true
}

// pop removes the QP that has waited for longest, and returns since when; nil if none has waited
// since until.
func (b *doorbells) pop(until time.Duration) (q *qp, since time.Duration) {
	if !b.some.Load() {
		return nil, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if q = b.first; q == nil || q.bell.since > until {
		return nil, 0
	}
	return q, b.unlink(q)
}

// remove removes q, and reports since when it has waited, if it has.
func (b *doorbells) remove(q *qp) (since time.Duration, waited bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !q.bell.waits {
		return 0, false
	}
	return b.unlink(q), true
}

// unlink returns since when q has waited. mu is held.
func (b *doorbells) unlink(q *qp) (since time.Duration) {
	since = q.bell.since
	if prev := q.bell.prev; prev != nil {
		prev.bell.next = q.bell.next
	} else {
		b.first = q.bell.next
	}
	if next := q.bell.next; next != nil {
		next.bell.prev = q.bell.prev
	} else {
		b.last = q.bell.prev
	}
	q.bell = doorbell{}
	if b.first == nil {
		b.some.Store(false)
	}
	return since
}

// goOn has the timer run again if there are QPs.
func (b *doorbells) goOn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running = b.first != nil; b.running {
		b.timer.Reset(waitMost)
	}
}
