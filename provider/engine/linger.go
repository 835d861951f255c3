package engine

import (
	"errors"

	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// startLinger begins the linger of a stream that has just finished, and was in phase from before.
// It discards little of what has arrived, because any number of streams may end in one Poll; the
// rest stays readable.
//
//rfc:5040 RDMAP-6.2.1-03 Graceful LLP close after Terminate so it arrives
//rfc:5041 DDP-7.1-04 One more outgoing message possible after an error
func (cl *closer) startLinger(e *ending, from phase) {
	var instead closingConn
	cl.mu.Lock()
	cl.stopTimer()
	if from == phaseFINSent {
		cl.s.enter(phaseLingerFINSent)
	} else {
		cl.s.enter(phaseLinger)
	}
	if cl.eof {
		_ = cl.s.unwatch(readEnded, true) // nothing comes any more that could be missed
	}
	switch {
	case e.reset:
		_ = cl.s.conn.Abort()
		cl.s.enter(phaseClosed)
	// A peer that hung up first needs no place in closingConns.
	case e.lost, cl.lingerStep(new(policy.BudgetEnd)):
		cl.closeConn()
	default:
		var ok bool
		if instead, ok = cl.s.dev.closing.add(cl.s, &cl.s.dev.opts); !ok {
			cl.closeConn()
			break
		}
		cl.after(cl.s.dev.opts.CloseTimeout, cl.lingerExpired)
	}
	// Not lingerOn: it does nothing if another goroutine has the lock, and then nobody would send
	// the rest.
	cl.lingerTurn(policy.BudgetEnd)
	if instead != nil {
		cl.s.dev.tally.refuse("MaxClosing")
		instead.cut(true)
	}
}

// closeConn closes the socket. closer.mu is held.
func (cl *closer) closeConn() {
	_ = cl.s.conn.Close()
	cl.s.enter(phaseClosed)
	cl.out = nil
}

// lingerOn does what can be done now. If another goroutine holds the lock it does nothing, because
// readiness is reported again.
func (cl *closer) lingerOn(budget int) (used int, more bool) {
	if !cl.mu.TryLock() {
		return 0, false
	}
	left := cl.lingerTurn(budget)
	return budget - left, left <= 0
}

// lingerTurn does what can be done within the budget, releases closer.mu, which is held, and
// returns the rest of the budget.
func (cl *closer) lingerTurn(budget int) (left int) {
	left = budget
	at := cl.s.at()
	done := (at == phaseLinger || at == phaseLingerFINSent) && cl.lingerStep(&left)
	if done {
		cl.stopTimer()
		cl.closeConn()
	}
	cl.mu.Unlock()
	if done {
		cl.s.dev.closing.gone(cl.s)
	}
	return left
}

// lingerStep does what can be done in the rest of a budget, and reports whether the socket can be
// closed.
func (cl *closer) lingerStep(left *int) bool {
	return !cl.lingerSend() || !cl.lingerDrain(left) || cl.s.at() == phaseLingerFINSent && cl.eof
}

// lingerSend sends the rest and the FIN. It reports false if the connection is lost.
func (cl *closer) lingerSend() bool {
	for len(cl.out) > 0 {
		out := cl.out[0]
		n, err := writeRecords(cl.s.conn, cl.out[:1], []int{len(out)})
		if n == len(out) {
			cl.out = cl.out[1:]
			continue
		}
		if n > 0 {
			cl.out[0] = out[n:]
			continue
		}
		if errors.Is(err, transport.ErrWouldBlock) {
			cl.s.tx.blocked.Store(true)
			return cl.s.loop.poller.WantWrite(cl.s.conn, true) == nil
		}
		return false
	}
	if cl.s.tx.blocked.Load() {
		cl.s.tx.blocked.Store(false)
		if cl.s.loop.poller.WantWrite(cl.s.conn, false) != nil {
			return false
		}
	}
	if cl.s.at() == phaseLingerFINSent {
		return true
	}
	cl.s.enter(phaseLingerFINSent)
	return cl.s.conn.CloseWrite() == nil
}

// lingerDrain discards what has arrived, within the budget. It reports false if the connection is
// lost.
//
//rfc:5041 DDP-7.1-03 Segments after an error dropped silently
//rfc:5040 RDMAP-7-01 Errored stream carries no more data
func (cl *closer) lingerDrain(left *int) bool {
	if cl.eof {
		return true
	}
	c := cl.s.dev.prog.contexts.Get()
	defer cl.s.dev.prog.contexts.Put(c)
	for *left > 0 {
		c.iov[0] = c.b[:min(len(c.b), max(*left, policy.ReadLeast))]
		n, err := cl.s.conn.Readv(c.iov[:1])
		if n > 0 {
			*left -= max(n, policy.ReadLeast) // a read of one byte costs as much
			continue
		}
		if errors.Is(err, transport.ErrWouldBlock) {
			return true
		}
		cl.s.peerClosed()
		_ = cl.s.unwatch(readEnded, true)
		return isEOF(err)
	}
	return true
}

// lingerExpired gives up waiting for the peer.
func (cl *closer) lingerExpired() {
	cl.mu.Lock()
	if cl.s.at() != phaseClosed {
		_ = cl.s.conn.Abort()
		cl.s.enter(phaseClosed)
		cl.out = nil
	}
	cl.mu.Unlock()
	cl.s.dev.closing.gone(cl.s)
}

// cut implements closingConn. It is called when others need the place, or the device is being
// closed.
func (s *stream) cut(reset bool) {
	l := &s.closer
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopTimer()
	switch {
	case s.at() == phaseClosed:
		return
	case reset && len(l.out) > 0:
		_ = s.conn.Abort()
	case !l.eof:
		budget := policy.BudgetLeast
		s.closer.lingerDrain(&budget) // a close with unread bytes is a reset
	}
	s.closer.closeConn()
}
