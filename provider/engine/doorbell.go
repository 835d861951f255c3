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
//   - when a poll finds the QP's send or receive CQ empty: the program has posted all that it
//     had to; or when it looks at the streams all the same (lookFirst);
//   - when one of them is armed, because the program may be about to sleep;
//   - when a post is refused, because the queue may be full;
//   - when the QP is closed or disconnected, or goes to ERR;
//   - by a timer, after at most one and a half times waitMost, or when the scheduler runs timers:
//     with one P, a goroutine that computes can keep it from that for 10 ms and more.
//
// Where a post has waited for longer than lateRing, or lateLast for all that were expected, the
// program does other things before it polls or posts the next. Then the next forecastPause posts to
// that QP don't wait, and four times as many each time that this happens again before rightMost
// bursts in a row came as soon as expected. (With fewer, the first pause would let a program that
// is late now and then have as many before it is late again, each time.) The same happens where
// another thread spins on the receive CQ and ends each wait at once.
//
// Nothing waits while one of the CQs is armed; nor if one has a Sink that is no SinkUse, because
// nobody sees what the program does with its completions; nor with Options.TransmitAtOnce.
const (
	waitMost      = time.Millisecond
	lateRing      = 100 * time.Microsecond
	lateLast      = 50 * time.Microsecond
	forecastPause = 4 // most often it has been late once, in a phase that is over
	pausesMost    = 6 // times that the pause grows
	rightMost     = 96
	apartMost     = 8 // polls of the receive CQ, by another thread most often, that end waits

	// sendTime is how long an octet takes to be sent at most, in picoseconds. It is no time in
	// which the program does other things. What is shorter than sendLong does not count.
	sendTime = 500
	sendLong = 16 << 10

	// ringOctets are enough for a call, counted as in a turn (see turnMost).
	ringOctets = 256 << 10
)

// forecast says how many posts to a send queue are to be expected. sendQueue.mu guards it, but for
// the doorbells, which those of the CQs guard.
type forecast struct {
	bell  doorbell  // among those of the send CQ
	other *doorbell // among those of the receive CQ; nil if that is the same

	takes   uint32 // cq.taken at the last post
	reports uint32 // of sendQueue.free when takes had changed last
	more    uint32 // signalled work requests to be expected for those that have completed
	rest    uint32 // posts to be expected because there were as many before takes had changed
	burst   uint32 // posts since then
	octets  uint32 // that wait
	pause   uint16 // posts that don't wait whatever is to be expected
	pauses  uint8  // since forecasts were right
	rights  uint8  // forecasts that were right, one after the other
	aparts  uint8  // polls of the receive CQ that have ended the wait since one was right
	waits   bool   // something waits
}

// makeForecast begins a forecast. takes and reports are those of posted.
func (s *sendQueue) makeForecast(takes, reports uint32) {
	f := &forecast{takes: takes, reports: reports}
	if s.apart {
		f.other = new(doorbell)
	}
	s.forecast.Store(f)
}

// due says when a post is transmitted.
type due uint8

const (
	dueNow  due = iota
	dueLast     // now, with those that have waited for it
	dueWith     // with others, which are to be expected: it is the first that waits
	dueNext     // with those that wait already, and others
)

// post is what a forecast knows of a post: a list of work requests.
type post struct {
	wrs, octets int
	signaled    int // of wrs
}

// posted counts a post, and returns when it is to be transmitted. takes is cq.taken, and reports
// how many completions the send queue has reported. A program replaces what has completed: a list
// of which only the last is reported by such a list. And if few of its posts are reported, it makes
// as many as before the last report.
func (f *forecast) posted(p *post, takes, reports uint32) due {
	if takes != f.takes {
		f.more += reports - f.reports
		f.rest = f.burst
		f.takes, f.reports, f.burst = takes, reports, 0
	}
	f.burst++
	f.more -= min(f.more, uint32(max(p.signaled, 1)))
	f.rest -= min(f.rest, 1)
	f.octets += uint32(min(p.octets+p.wrs*fpduCost, ringOctets))
	waited, pauses := f.waits, f.pause > 0
	f.waits = max(f.more, f.rest) > 0 && f.octets < ringOctets && !pauses
	if pauses {
		f.pause--
	}
	switch {
	case f.waits && waited:
		return dueNext
	case f.waits:
		return dueWith
	}
	f.octets = 0
	if waited {
		return dueLast
	}
	return dueNow
}

// right is called when as much was posted as was expected, and what has waited is transmitted.
func (f *forecast) right(waited time.Duration) {
	if waited > lateLast {
		f.late()
		return
	}
	f.aparts = 0
	if f.rights++; f.rights >= rightMost {
		f.pauses, f.rights = 0, 0
	}
}

func (f *forecast) late() {
	f.pause = forecastPause << (2 * f.pauses)
	f.pauses = min(f.pauses+1, pausesMost)
	f.rights, f.aparts = 0, 0
}

// ring is what ends the wait of posts for others.
type ring struct {
	vain  bool          // the program has no completions left that ask for others
	apart bool          // it has found the receive CQ empty
	away  time.Duration // for how long it has done other things
}

// rung is called when something that has waited is transmitted although more was to be expected.
func (f *forecast) rung(r ring) {
	if f.waits {
		if r.apart {
			f.aparts++
		}
		if r.away > lateRing || f.aparts >= apartMost {
			f.late()
		}
	}
	if r.vain {
		f.more, f.rest = 0, 0
	}
	f.octets, f.waits = 0, false
}

// taken returns a number that changes when the program takes completions.
func (c *cq) taken() uint32 {
	if c.use != nil {
		returned := false
		defer mustReturn(&returned)
		taken := c.use.Taken()
		returned = true
		return taken
	}
	return c.seen.takes()
}

// doorbells are those of the QPs of a CQ whose posts wait, in the order in which they began to.
type doorbells struct {
	some sched.Bool    // there are any; written under mu
	sent atomic.Uint64 // octets, by all QPs whose send CQ it is, in long writes to their sockets
	dry  atomic.Int64  // when a poll last found the CQ empty and QPs that wait, as a time since epoch

	mu          sched.Mutex[locks.Doorbells]
	first, last *doorbell
	timer       *time.Timer // nil before the first QP whose send CQ it is
	running     bool        // the timer is
}

// doorbell is a QP's place among those of one of its CQs, whose mu guards it.
type doorbell struct {
	q          *qp
	prev, next *doorbell
	since      time.Duration // when it began to wait, as a time since epoch
	sent       uint64        // doorbells.sent of the send CQ then
	waits      bool
}

// sentSince is how long it has taken to send what the QPs have sent since d began to wait.
func (d *doorbell) sentSince() time.Duration {
	return time.Duration((d.q.sendCQ.bells.sent.Load() - d.sent) * sendTime / 1000)
}

// foresee counts a post to q, and reports whether it waits for others. sq.mu is held, so that q is
// among its CQs' doorbells as long as posts wait, and so that the CQs are not closed: their sinks
// must not be asked anything after that.
func (q *qp) foresee(p *post) (waits bool) {
	f := q.sq.forecast.Load()
	if q.pd.dev.opts.TransmitAtOnce || !q.sendCQ.seesUse() || !q.recvCQ.seesUse() {
		return false
	}
	switch f.posted(p, q.sendCQ.taken(), q.sq.free.reports()) {
	case dueWith:
		q.startWaiting(f)
		if q.sendCQ.isArmed() || f.other != nil && q.recvCQ.isArmed() { // before q was a doorbell
			q.stopWaiting()
			f.rung(ring{})
			return false
		}
		return true
	case dueNext:
		return true
	case dueLast:
		if since, waited := q.stopWaiting(); waited {
			f.right(time.Since(epoch) - since)
		}
	}
	return false
}

// seesUse reports whether it is known when the program takes completions, finds none, or sleeps.
func (c *cq) seesUse() bool { return c.sink == nil || c.use != nil }

// startWaiting makes q a doorbell of its CQs. sq.mu is held.
func (q *qp) startWaiting(f *forecast) {
	if f.other != nil {
		q.recvCQ.bells.add(q, f.other)
	}
	q.sendCQ.bells.add(q, &f.bell)
}

// stopWaiting has q be a doorbell no more, and reports since when it has waited, if it has. What
// the QPs have sent meanwhile has it seem to have begun later.
func (q *qp) stopWaiting() (since time.Duration, waited bool) {
	f := q.sq.forecast.Load()
	if f == nil {
		return 0, false
	}
	since, waited = q.sendCQ.bells.remove(&f.bell)
	if f.other != nil {
		// It may have begun to wait since the line above.
		if at, was := q.recvCQ.bells.remove(f.other); was && !waited {
			since, waited = at, true
		}
	}
	return since, waited
}

// forgetForecast begins anew for another connection. sq.mu is held.
func (q *qp) forgetForecast() {
	q.stopWaiting()
	if q.sq.forecast.Load() != nil {
		q.sq.makeForecast(q.sendCQ.taken(), q.sq.free.reports())
	}
}

// ring transmits what waits. No lock is held.
func (q *qp) ring() {
	if since, waited := q.stopWaiting(); waited {
		q.ringAfter(ring{away: time.Since(epoch) - since})
	}
}

// ringAfter is ring for a QP that is a doorbell no more. It returns how much of a turn was used.
func (q *qp) ringAfter(r ring) (used int) {
	q.sq.mu.Lock()
	q.sq.forecast.Load().rung(r)
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
		q, since := c.popBell(forever)
		if q == nil {
			return
		}
		apart := c != q.sendCQ
		vain := !apart || q.sendCQ.seen.waiting() == 0
		left -= q.ringAfter(ring{vain, apart, now - max(since, before)})
	}
}

// ringForLook is for a poll that looks at the streams although the CQ has completions. It transmits
// as ringSome does, but says nothing against waiting: the program may go on posting for what it has
// not taken yet, and it has done nothing but poll and post.
func (c *cq) ringForLook() {
	for left := turnLeast; left > 0; {
		q, _ := c.popBell(forever)
		if q == nil {
			return
		}
		left -= q.ringAfter(ring{})
	}
}

// ringAll is for a program that may be about to sleep.
func (c *cq) ringAll() {
	until := time.Since(epoch)
	for q, since := c.popBell(until); q != nil; q, since = c.popBell(until) {
		q.ringAfter(ring{away: until - since})
	}
}

// ringOverdue is the timer's. The timer runs on meanwhile, because the end of a connection, which
// may follow, calls the program's onDown.
func (c *cq) ringOverdue() {
	c.bells.goOn()
	now, left := time.Since(epoch), turnLeast
	until := now - waitMost/2
	for q, since := c.popBell(until); q != nil; q, since = c.popBell(until) {
		if left -= q.ringAfter(ring{away: now - since}); left <= 0 {
			left = turnLeast
			runtime.Gosched() // to others, as a turn is over
		}
	}
}

// forever is later than all QPs have begun to wait.
const forever = time.Duration(1<<63 - 1)

// popBell has the QP that has waited for longest be a doorbell no more, and returns since when it
// has waited; nil if none has waited since until.
func (c *cq) popBell(until time.Duration) (q *qp, since time.Duration) {
	q, since = c.bells.pop(until)
	if q != nil && q.sq.apart {
		q.stopWaiting() // for its other CQ
	}
	return q, since
}

// add adds q at d, and sees that it does not wait for too long. Where another goroutine has just
// removed it from its other CQ's doorbells, d may still be there, and begins anew.
func (b *doorbells) add(q *qp, d *doorbell) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.waits {
		b.unlink(d)
	}
	*d = doorbell{q: q, prev: b.last, since: time.Since(epoch), sent: q.sendCQ.bells.sent.Load(), waits: true}
	if b.last == nil {
		b.first = d
		b.some.Store(true)
	} else {
		b.last.next = d
	}
	b.last = d
	switch {
	case b.running || b != &q.sendCQ.bells: // which has the timer
		return
	case b.timer == nil:
		b.timer = time.AfterFunc(waitMost, q.sendCQ.ringOverdue)
	default:
		b.timer.Reset(waitMost)
	}
	b.running = true
}

// pop removes the QP that has waited for longest, and returns since when, or later by what the QPs
// have sent meanwhile; nil if none has waited since until.
func (b *doorbells) pop(until time.Duration) (q *qp, since time.Duration) {
	if !b.some.Load() {
		return nil, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.first
	if d == nil || d.since > until {
		return nil, 0
	}
	q = d.q
	return q, b.unlink(d)
}

// remove removes d, and reports since when it has waited, if it has, as pop does.
func (b *doorbells) remove(d *doorbell) (since time.Duration, waited bool) {
	if !b.some.Load() {
		return 0, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !d.waits {
		return 0, false
	}
	return b.unlink(d), true
}

// unlink removes d, and returns what pop does. mu is held.
func (b *doorbells) unlink(d *doorbell) (since time.Duration) {
	since = d.since + d.sentSince()
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
