package engine

import (
	"errors"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// linger is the last part of a connection's life, when the QP has let go of it:
// the rest of the FPDU under way goes out, then the Terminate if there is one,
// then FIN; what the peer still sends is read and dropped until its FIN comes.
// TCP answers a close with unread octets by a reset, which would take the
// Terminate along; that is why somebody has to read.
//
// Before that it holds the watch over a graceful end.
type linger struct {
	mu    sched.Mutex[locks.Linger]
	out   [][]byte // records still to be sent; the stream's until startLinger
	on    bool     // startLinger was called
	fin   bool     // our FIN is out
	eof   bool     // the peer's FIN has come
	gone  bool     // the socket is closed
	watch *endWatch
}

// endWatch bounds how long an end may take. It is apart because an idle stream has none.
type endWatch struct {
	timer *time.Timer

	// Of a graceful end: from when to when the peer has time, and what had moved at first.
	from, until time.Time
	seen        uint64
}

// after has f called after d, and what was to be called before that no more. mu is held.
func (l *linger) after(d time.Duration, f func()) {
	if l.watch == nil {
		l.watch = new(endWatch)
	}
	l.stopTimer()
	l.watch.timer = time.AfterFunc(d, f)
}

// stopTimer undoes after. mu is held.
func (l *linger) stopTimer() {
	if l.watch != nil && l.watch.timer != nil {
		l.watch.timer.Stop()
	}
}

// watchClosing resets the connection when a graceful end gets nowhere for
// CloseTimeout: nothing more is taken by the peer, no more of the answer to a Read of
// ours comes, or its FIN does not come. The time that an object of ours takes is not the
// peer's (see closingExpired).
func (s *stream) watchClosing() {
	l := &s.linger
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.finished.Load() {
		return
	}
	now := time.Now() // before the timer is set, which must not fire early
	l.after(s.dev.opts.CloseTimeout, s.closingExpired)
	w := l.watch
	w.from, w.until, w.seen = now, now.Add(s.dev.opts.CloseTimeout), s.moved.Load()
}

// closingExpired ends a graceful end that gets nowhere, if that is the peer's doing. With
// a store under way it leaves that to the time behind it: objectTook sets the timer anew.
func (s *stream) closingExpired() {
	storing, fetching := s.waitsForObject()
	l := &s.linger
	l.mu.Lock()
	early := time.Now().Before(l.watch.until)
	moved := !s.finSent.Load() && s.moved.Load() != l.watch.seen
	l.mu.Unlock()
	switch {
	case storing || early:
	case fetching || moved:
		s.watchClosing()
	default:
		s.fail(&ending{cause: errCloseTimeout, reset: true})
		s.settle()
	}
}

// objectTook gives the peer the time back that an object has taken since began, so that
// it has CloseTimeout in all for its FIN, whatever it sends before that. rxMu is held.
func (s *stream) objectTook(began time.Time) {
	if !s.closing.Load() {
		return
	}
	l := &s.linger
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.watch
	if w == nil || l.on {
		return
	}
	if began.Before(w.from) {
		began = w.from
	}
	w.until = w.until.Add(time.Since(began))
	w.timer.Reset(time.Until(w.until))
}

// startLinger begins the linger of a stream that has just finished. It drops little of what
// has arrived: any number of streams may end in one Poll, and the rest stays readable.
//
//rfc:5040 RDMAP-6.2.1-03
//rfc:5041 DDP-7.1-04
func (s *stream) startLinger(e *ending) {
	l := &s.linger
	var instead departing
	l.mu.Lock()
	l.stopTimer()
	l.on = true
	l.fin = s.finSent.Load()
	if l.eof = s.rx.eof; l.eof {
		_ = s.unwatch(readEnded, true) // nothing comes that could be missed
	}
	switch {
	case e.reset:
		_ = s.conn.Abort()
		l.gone = true
	case e.lost, s.lingerStep(turnLeast): // who hung up first needs no place among those that wait
		s.closeConn()
	default:
		var ok bool
		if instead, ok = s.dev.leaving.add(s, &s.dev.opts); !ok {
			s.closeConn()
			break
		}
		l.after(s.dev.opts.CloseTimeout, s.lingerExpired)
	}
	s.lingerTurn(turnLeast) // whoever else holds the lock need not have known that there is something to send
	if instead != nil {
		instead.cut(true)
	}
}

// peer implements departing.
func (s *stream) peer() netip.Addr { return peerOf(s.conn) }

// closeConn closes the socket. linger.mu is held.
func (s *stream) closeConn() {
	_ = s.conn.Close()
	s.linger.gone = true
	s.linger.out = nil
}

// lingerOn does what can be done now. Whoever finds another goroutine at it
// leaves it alone: readiness comes again.
func (s *stream) lingerOn(turn int) {
	if s.linger.mu.TryLock() {
		s.lingerTurn(turn)
	}
}

// lingerTurn is lingerOn for who holds linger.mu, and gives it back.
func (s *stream) lingerTurn(turn int) {
	l := &s.linger
	done := l.on && !l.gone && s.lingerStep(turn)
	if done {
		l.stopTimer()
		s.closeConn()
	}
	l.mu.Unlock()
	if done {
		s.dev.leaving.gone(s)
	}
}

// lingerStep reports whether the socket can be closed.
func (s *stream) lingerStep(turn int) bool {
	return !s.lingerSend() || !s.lingerDrain(turn) || s.linger.fin && s.linger.eof
}

// lingerSend sends the rest and the FIN. It reports false when the connection
// is lost.
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
			return s.dev.poller.WantWrite(s.conn, true) == nil
		}
		return false
	}
	if s.blocked.Load() {
		s.blocked.Store(false)
		if s.dev.poller.WantWrite(s.conn, false) != nil {
			return false
		}
	}
	if l.fin {
		return true
	}
	l.fin = true
	return s.conn.CloseWrite() == nil
}

// lingerDrain drops what has arrived, within the turn. It reports false when the
// connection is lost.
//
//rfc:5041 DDP-7.1-03
//rfc:5040 RDMAP-7-01
func (s *stream) lingerDrain(turn int) bool {
	l := &s.linger
	if l.eof {
		return true
	}
	c := s.dev.prog.contexts.get()
	defer s.dev.prog.contexts.put(c)
	for turn > 0 {
		c.iov[0] = c.b[:min(len(c.b), max(turn, readLeast))]
		n, err := s.conn.Readv(c.iov[:1])
		if n > 0 {
			turn -= n
			continue
		}
		if errors.Is(err, transport.ErrWouldBlock) {
			return true
		}
		l.eof = true
		_ = s.unwatch(readEnded, true)
		return isEOF(err)
	}
	return true
}

// lingerExpired gives up waiting for the peer.
func (s *stream) lingerExpired() {
	l := &s.linger
	l.mu.Lock()
	if !l.gone {
		_ = s.conn.Abort()
		l.gone = true
		l.out = nil
	}
	l.mu.Unlock()
	s.dev.leaving.gone(s)
}

// cut implements departing: others need the place, or the device is being closed.
func (s *stream) cut(reset bool) {
	l := &s.linger
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopTimer()
	switch {
	case l.gone:
		return
	case reset && len(l.out) > 0:
		_ = s.conn.Abort()
	case !l.eof:
		s.lingerDrain(turnLeast) // a close with unread octets is a reset
	}
	s.closeConn()
}
