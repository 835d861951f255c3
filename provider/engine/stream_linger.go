package engine

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// linger is the last part of a connection's life, after the QP has detached from it. It sends the
// rest of the FPDU under way, then the Terminate if there is one, then FIN. It reads and discards
// what the peer still sends until the peer's FIN comes, because TCP answers a close with unread
// bytes by a reset, which would destroy the Terminate.
//
// Before that, it holds the watch over a graceful end.
type linger struct {
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
func (l *linger) watched() *endWatch {
	if l.watch == nil {
		l.watch = new(endWatch)
	}
	return l.watch
}

// after makes the timer call f after d, instead of what it was to call before. mu is held.
func (l *linger) after(d time.Duration, f func()) {
	w := l.watched()
	l.stopTimer()
	w.timer = time.AfterFunc(d, f)
}

// stopTimer undoes after. mu is held.
func (l *linger) stopTimer() {
	if l.watch != nil && l.watch.timer != nil {
		l.watch.timer.Stop()
	}
}

// watchClosing resets the connection when a graceful end makes no progress for CloseTimeout: the
// peer takes nothing more, and sends no more of the answer to a Read of ours. After our FIN, no
// progress means that the peer acknowledges nothing more and its FIN does not come. A peer that
// moves little has SendTimeout for each policy.Chunk bytes, so that a graceful end always ends.
// While somebody waits for the end (HoldEnd), SendTimeout replaces a shorter CloseTimeout. The time
// that an object of ours takes does not count (see closingExpired).
func (s *stream) watchClosing() {
	l := &s.linger
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.hasFinished() {
		return
	}
	now := time.Now() // before the timer is set, which must not expire early
	w := l.watched()
	finSent := s.at() >= phaseFINSent
	fresh := w.since.IsZero() || finSent != w.finSent // after the FIN the count begins anew
	w.finSent, w.fetched = finSent, false
	w.from, w.until, w.seen = now, now.Add(s.closeTimeout()), s.closingMoved()
	if fresh || w.seen-w.at >= policy.Chunk {
		w.since, w.at = now, w.seen
	}
	s.lookAtClosing(now)
}

// lookAtClosing sets the timer for closingExpired to the end of the time. After our FIN, while TCP
// may still have much to send, it sets the timer to part of the time. So the peer has CloseTimeout
// from about when it acknowledged the last byte. linger.mu is held.
func (s *stream) lookAtClosing(now time.Time) {
	w := s.linger.watch
	d := w.until.Sub(now)
	if _, ok := s.conn.(transport.Stater); ok && w.finSent {
		d = min(d, max(s.closeTimeout()/policy.LooksPerLimit, time.Millisecond))
	}
	s.linger.after(d, s.closingExpired)
}

// closeTimeout returns how long a graceful end may make no progress. linger.mu is held.
func (s *stream) closeTimeout() time.Duration {
	timeout := s.dev.opts.CloseTimeout
	switch {
	case s.linger.holds == 0:
	case s.dev.opts.SendTimeout < 0:
		timeout = noCloseTimeout
	default:
		timeout = max(timeout, s.dev.opts.SendTimeout)
	}
	return timeout
}

// noCloseTimeout is longer than any program waits.
const noCloseTimeout = 365 * 24 * time.Hour

// HoldEnd implements provider.EndHolder.
func (q *qp) HoldEnd() (release func()) {
	s := q.stream.Load()
	if s == nil {
		return func() {}
	}
	s.hold(1)
	return sync.OnceFunc(func() { s.hold(-1) })
}

// hold adds n to the number of those that wait for the end of the stream. The peer gets the whole
// time that then applies. mu must not be held.
func (s *stream) hold(n int32) {
	l := &s.linger
	l.mu.Lock()
	l.holds += n
	l.mu.Unlock()
	if s.closing() {
		s.watchClosing()
	}
}

// closingMoved returns the progress of a graceful end: the bytes moved in either direction, or
// after our FIN the bytes that the peer has acknowledged, if the Conn knows. linger.mu is held.
func (s *stream) closingMoved() uint64 {
	w := s.linger.watch
	if !w.finSent {
		return s.moved.Load() + w.answered
	}
	if c, ok := s.conn.(transport.Stater); ok {
		if stats, err := c.TCPStats(); err == nil {
			return stats.BytesAcked
		}
	}
	return w.seen
}

// countAnswer counts a segment of a Read Response as progress of a graceful end: its bytes, and one
// more for the end of an answer. So empty segments in between count nothing.
func (s *stream) countAnswer(a *rdmap.Action) {
	n := uint64(a.Len)
	if a.Last {
		n++
	}
	l := &s.linger
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch != nil {
		l.watch.answered += n
	}
}

// closingExpired ends a graceful end that makes no progress, if the peer is the reason. While an
// object stores, it does nothing, because objectTook sets the timer again after that.
func (s *stream) closingExpired() {
	storing, fetching := s.waitsForObject()
	l := &s.linger
	l.mu.Lock()
	w := l.watch
	now := time.Now()
	early := now.Before(w.until)
	at := s.closingMoved()
	finNow := s.at() >= phaseFINSent && !w.finSent
	moved := at != w.seen && !finNow
	fetched := w.fetched && at == w.seen // so the peer has not had the whole time
	if fetching {
		w.since = now
	}
	slow := at-w.at < policy.Chunk && hasPassed(now, w.since, s.dev.opts.SendTimeout)
	acknowledged := w.finSent && moved && !slow
	early = early && !acknowledged
	if early && w.finSent && !s.hasFinished() {
		s.lookAtClosing(now)
	}
	l.mu.Unlock()
	switch {
	case storing || early:
	case fetching || fetched || finNow || moved && !slow:
		s.watchClosing() // which sendFIN may be about to call
	default:
		s.fail(&ending{cause: errCloseTimeout, reset: true})
		s.settle()
	}
}

// objectAnswered notes for closingExpired that an object has been read in the time under watch. It
// comes before anybody can see that the stream no longer waits for the object.
func (s *stream) objectAnswered() {
	if !s.closing() {
		return
	}
	l := &s.linger
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch != nil {
		l.watch.fetched = true
	}
}

// objectTook returns to the peer the time that an object has taken since began, so that the peer
// has CloseTimeout in all for its FIN, whatever it sends before. rxMu is held.
func (s *stream) objectTook(began time.Time) {
	if !s.closing() {
		return
	}
	l := &s.linger
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.watch
	if w == nil || s.hasFinished() {
		return
	}
	if began.Before(w.from) {
		began = w.from
	}
	took := time.Since(began)
	w.until, w.since = w.until.Add(took), w.since.Add(took)
	w.timer.Reset(time.Until(w.until))
}

// startLinger begins the linger of a stream that has just finished, and was in phase from before.
// It discards little of what has arrived, because any number of streams may end in one Poll; the
// rest stays readable.
//
//rfc:5040 RDMAP-6.2.1-03 Graceful LLP close after Terminate so it arrives
//rfc:5041 DDP-7.1-04 One more outgoing message possible after an error
func (s *stream) startLinger(e *ending, from phase) {
	l := &s.linger
	var instead departing
	l.mu.Lock()
	l.stopTimer()
	if from == phaseFINSent {
		s.enter(phaseLingerFINSent)
	} else {
		s.enter(phaseLinger)
	}
	if l.eof {
		_ = s.unwatch(readEnded, true) // nothing comes any more that could be missed
	}
	switch {
	case e.reset:
		_ = s.conn.Abort()
		s.enter(phaseClosed)
	// A peer that hung up first needs no place in departures.
	case e.lost, s.lingerStep(new(policy.TurnEnd)):
		s.closeConn()
	default:
		var ok bool
		if instead, ok = s.dev.leaving.add(s, &s.dev.opts); !ok {
			s.closeConn()
			break
		}
		l.after(s.dev.opts.CloseTimeout, s.lingerExpired)
	}
	// Not lingerOn: it does nothing if another goroutine has the lock, and then nobody would send
	// the rest.
	s.lingerTurn(policy.TurnEnd)
	if instead != nil {
		s.dev.tally.refuse("MaxClosing")
		instead.cut(true)
	}
}

// peer implements departing.
func (s *stream) peer() netip.Addr { return cm.PeerOf(s.conn) }

// closeConn closes the socket. linger.mu is held.
func (s *stream) closeConn() {
	_ = s.conn.Close()
	s.enter(phaseClosed)
	s.linger.out = nil
}

// lingerOn does what can be done now. If another goroutine holds the lock it does nothing, because
// readiness is reported again.
func (s *stream) lingerOn(turn int) (used int, more bool) {
	if !s.linger.mu.TryLock() {
		return 0, false
	}
	left := s.lingerTurn(turn)
	return turn - left, left <= 0
}

// lingerTurn does what can be done within the turn, releases linger.mu, which is held, and returns
// the rest of the turn.
func (s *stream) lingerTurn(turn int) (left int) {
	l := &s.linger
	left = turn
	at := s.at()
	done := (at == phaseLinger || at == phaseLingerFINSent) && s.lingerStep(&left)
	if done {
		l.stopTimer()
		s.closeConn()
	}
	l.mu.Unlock()
	if done {
		s.dev.leaving.gone(s)
	}
	return left
}

// lingerStep does what can be done in the rest of a turn, and reports whether the socket can be
// closed.
func (s *stream) lingerStep(left *int) bool {
	return !s.lingerSend() || !s.lingerDrain(left) || s.at() == phaseLingerFINSent && s.linger.eof
}

// lingerSend sends the rest and the FIN. It reports false if the connection is lost.
func (s *stream) lingerSend() bool {
	l := &s.linger
	for len(l.out) > 0 {
		out := l.out[0]
		n, err := writeRecords(s.conn, l.out[:1], []int{len(out)})
		if n == len(out) {
			l.out = l.out[1:]
			continue
		}
		if n > 0 {
			l.out[0] = out[n:]
			continue
		}
		if errors.Is(err, transport.ErrWouldBlock) {
			s.blocked.Store(true)
			return s.lane.poller.WantWrite(s.conn, true) == nil
		}
		return false
	}
	if s.blocked.Load() {
		s.blocked.Store(false)
		if s.lane.poller.WantWrite(s.conn, false) != nil {
			return false
		}
	}
	if s.at() == phaseLingerFINSent {
		return true
	}
	s.enter(phaseLingerFINSent)
	return s.conn.CloseWrite() == nil
}

// lingerDrain discards what has arrived, within the turn. It reports false if the connection is
// lost.
//
//rfc:5041 DDP-7.1-03 Segments after an error dropped silently
//rfc:5040 RDMAP-7-01 Errored stream carries no more data
func (s *stream) lingerDrain(left *int) bool {
	l := &s.linger
	if l.eof {
		return true
	}
	c := s.dev.prog.contexts.Get()
	defer s.dev.prog.contexts.Put(c)
	for *left > 0 {
		c.iov[0] = c.b[:min(len(c.b), max(*left, policy.ReadLeast))]
		n, err := s.conn.Readv(c.iov[:1])
		if n > 0 {
			*left -= max(n, policy.ReadLeast) // a read of one byte costs as much
			continue
		}
		if errors.Is(err, transport.ErrWouldBlock) {
			return true
		}
		s.peerClosed()
		_ = s.unwatch(readEnded, true)
		return isEOF(err)
	}
	return true
}

// lingerExpired gives up waiting for the peer.
func (s *stream) lingerExpired() {
	l := &s.linger
	l.mu.Lock()
	if s.at() != phaseClosed {
		_ = s.conn.Abort()
		s.enter(phaseClosed)
		l.out = nil
	}
	l.mu.Unlock()
	s.dev.leaving.gone(s)
}

// cut implements departing. It is called when others need the place, or the device is being closed.
func (s *stream) cut(reset bool) {
	l := &s.linger
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopTimer()
	switch {
	case s.at() == phaseClosed:
		return
	case reset && len(l.out) > 0:
		_ = s.conn.Abort()
	case !l.eof:
		turn := policy.TurnLeast
		s.lingerDrain(&turn) // a close with unread bytes is a reset
	}
	s.closeConn()
}
