package engine

import (
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// closer ends a stream. It watches over a graceful end, and lingers after the QP has detached: it
// sends the rest of the FPDU under way, then the Terminate if there is one, then FIN. It reads and
// discards what the peer still sends until the peer's FIN comes, because TCP answers a close with
// unread bytes by a reset, which would destroy the Terminate.
type closer struct {
	s *stream

	mu    sched.Mutex[locks.Linger]
	watch *endWatch

	// Until startLinger is called, these are guarded by the stream's locks.
	out [][]byte // records still to be sent
	eof bool     // the peer's FIN has come; only peerClosed sets it

	holds int32 // how many calls of HoldEnd are not released; guarded by mu
}

// endWatch bounds how long an end may take. It is a separate struct, because an idle stream has
// none.
type endWatch struct {
	timer *time.Timer

	// For a graceful end: the time in which the peer has to move something, and what had moved when
	// that time began.
	from, until time.Time
	seen        uint64

	// since begins the time in which the peer has SendTimeout to move policy.Chunk bytes; at is
	// what had moved by then.
	since time.Time
	at    uint64

	answered uint64 // bytes of Read Responses that came (see countAnswer)
	fetched  bool   // an object has answered in that time (see objectAnswered)
	finSent  bool   // our FIN was sent before that time began
}

// watched returns the watch, and makes it if there is none. mu is held.
func (cl *closer) watched() *endWatch {
	if cl.watch == nil {
		cl.watch = new(endWatch)
	}
	return cl.watch
}

// after makes the timer call f after d, instead of what it was to call before. mu is held.
func (cl *closer) after(d time.Duration, f func()) {
	w := cl.watched()
	cl.stopTimer()
	w.timer = time.AfterFunc(d, f)
}

// stopTimer undoes after. mu is held.
func (cl *closer) stopTimer() {
	if cl.watch != nil && cl.watch.timer != nil {
		cl.watch.timer.Stop()
	}
}

// watchClosing resets the connection when a graceful end makes no progress for CloseTimeout: the
// peer takes nothing more, and sends no more of the answer to a Read of ours. After our FIN, no
// progress means that the peer acknowledges nothing more and its FIN does not come. A peer that
// moves little has SendTimeout for each policy.Chunk bytes, so that a graceful end always ends.
// While somebody waits for the end (HoldEnd), SendTimeout replaces a shorter CloseTimeout. The time
// that an object of ours takes does not count (see closingExpired).
func (cl *closer) watchClosing() {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.s.hasFinished() {
		return
	}
	now := time.Now() // before the timer is set, which must not expire early
	w := cl.watched()
	finSent := cl.s.at() >= phaseFINSent
	fresh := w.since.IsZero() || finSent != w.finSent // after the FIN the count begins anew
	w.finSent, w.fetched = finSent, false
	w.from, w.until, w.seen = now, now.Add(cl.closeTimeout()), cl.closingMoved()
	if fresh || w.seen-w.at >= policy.Chunk {
		w.since, w.at = now, w.seen
	}
	cl.checkClosing(now)
}

// checkClosing sets the timer for closingExpired to the end of the time. After our FIN, while TCP
// may still have much to send, it sets the timer to part of the time. So the peer has CloseTimeout
// from about when it acknowledged the last byte. closer.mu is held.
func (cl *closer) checkClosing(now time.Time) {
	w := cl.watch
	d := w.until.Sub(now)
	if _, ok := cl.s.conn.(transport.Stater); ok && w.finSent {
		d = min(d, max(cl.closeTimeout()/policy.ChecksPerLimit, time.Millisecond))
	}
	cl.after(d, cl.closingExpired)
}

// closeTimeout returns how long a graceful end may make no progress. closer.mu is held.
func (cl *closer) closeTimeout() time.Duration {
	timeout := cl.s.dev.opts.CloseTimeout
	switch {
	case cl.holds == 0:
	case cl.s.dev.opts.SendTimeout < 0:
		timeout = noCloseTimeout
	default:
		timeout = max(timeout, cl.s.dev.opts.SendTimeout)
	}
	return timeout
}

// noCloseTimeout is longer than any program waits.
const noCloseTimeout = 365 * 24 * time.Hour

// hold adds n to the number of those that wait for the end of the stream. The peer gets the whole
// time that then applies. mu must not be held.
func (cl *closer) hold(n int32) {
	cl.mu.Lock()
	cl.holds += n
	cl.mu.Unlock()
	if cl.s.closing() {
		cl.watchClosing()
	}
}

// closingMoved returns the progress of a graceful end: the bytes moved in either direction, or
// after our FIN the bytes that the peer has acknowledged, if the Conn knows. closer.mu is held.
func (cl *closer) closingMoved() uint64 {
	w := cl.watch
	if !w.finSent {
		return cl.s.tx.moved.Load() + w.answered
	}
	if c, ok := cl.s.conn.(transport.Stater); ok {
		if stats, err := c.TCPStats(); err == nil {
			return stats.BytesAcked
		}
	}
	return w.seen
}

// countAnswer counts a segment of a Read Response as progress of a graceful end: its bytes, and one
// more for the end of an answer. So empty segments in between count nothing.
func (cl *closer) countAnswer(a *rdmap.Action) {
	n := uint64(a.Len)
	if a.Last {
		n++
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.watch != nil {
		cl.watch.answered += n
	}
}

// closingExpired ends a graceful end that makes no progress, if the peer is the reason. While an
// object stores, it does nothing, because objectTook sets the timer again after that.
func (cl *closer) closingExpired() {
	storing, fetching := cl.s.waitsForObject()
	cl.mu.Lock()
	w := cl.watch
	now := time.Now()
	early := now.Before(w.until)
	at := cl.closingMoved()
	finNow := cl.s.at() >= phaseFINSent && !w.finSent
	moved := at != w.seen && !finNow
	fetched := w.fetched && at == w.seen // so the peer has not had the whole time
	if fetching {
		w.since = now
	}
	slow := at-w.at < policy.Chunk && hasPassed(now, w.since, cl.s.dev.opts.SendTimeout)
	acknowledged := w.finSent && moved && !slow
	early = early && !acknowledged
	if early && w.finSent && !cl.s.hasFinished() {
		cl.checkClosing(now)
	}
	cl.mu.Unlock()
	switch {
	case storing || early:
	case fetching || fetched || finNow || moved && !slow:
		cl.watchClosing() // which sendFIN may be about to call
	default:
		cl.s.fail(&ending{cause: errCloseTimeout, reset: true})
		cl.s.settle()
	}
}

// waitsForObject reports on which sides the stream waits for an object.
func (s *stream) waitsForObject() (storing, fetching bool) {
	s.rx.mu.Lock()
	storing = s.rx.storing()
	s.rx.mu.Unlock()
	s.tx.mu.Lock()
	fetching = s.tx.fetching()
	s.tx.unlock()
	s.settle()
	return storing, fetching
}

// objectAnswered notes for closingExpired that an object has been read in the time under watch. It
// comes before anybody can see that the stream no longer waits for the object.
func (cl *closer) objectAnswered() {
	if !cl.s.closing() {
		return
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.watch != nil {
		cl.watch.fetched = true
	}
}

// objectTook returns to the peer the time that an object has taken since began, so that the peer
// has CloseTimeout in all for its FIN, whatever it sends before. rx.mu is held.
func (cl *closer) objectTook(began time.Time) {
	if !cl.s.closing() {
		return
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	w := cl.watch
	if w == nil || cl.s.hasFinished() {
		return
	}
	if began.Before(w.from) {
		began = w.from
	}
	took := time.Since(began)
	w.until, w.since = w.until.Add(took), w.since.Add(took)
	w.timer.Reset(time.Until(w.until))
}
