package engine

import (
	"fmt"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// stream is a QP's connection in MPA's Full Operation Phase: an RDMAP stream over a TCP stream. It
// is the Handler of its Conn.
//
// It has three parts, each with a lock: the receiver, the sender, and the closer, which watches
// over the stream's end and works after the QP has detached. The receiver and the sender are state
// machines that run on any goroutine that has a reason to run them: one that posts, polls, or
// serves the device's progress. A turn only tries the lock. A goroutine that does not get tx.mu
// sets tx.work and leaves the work to the holder; one that does not get rx.mu leaves the reading to
// the holder. Code that needs a part's state waits for the lock: begin, finish, tx.withError, and
// the code after a call of an object's method. Either side records a fault with fail. After the
// side's lock is released, settle takes the QP to ERR.
type stream struct {
	q      *qp
	dev    *device
	conn   transport.Conn
	loop   *eventLoop // as long as it has a socket
	params streamParams
	onDown func(error)

	inbound     rdmap.InboundReads     // rx pushes, tx pops
	outstanding rdmap.OutstandingReads // tx pushes, rx pops

	phase sched.Uint32 // how far the end is: see type phase, at and enter

	// maySend is false for a responder until the first FPDU has come.
	//
	//rfc:5044 MPA-7.1.2-4-01 Responder sends nothing before the first valid FPDU
	maySend sched.Bool

	ending sched.Pointer[ending] // why the stream ends, nil while it goes on; the first reason stays

	rx     receiver
	tx     sender
	closer closer

	watchMu   sched.Mutex[locks.Watch]
	unwatched unwatched // why the poller does not watch the stream for arrivals
	admitted  bool      // package cm counts it

	watched sched.Bool // it is among the device's stalls; reset with both locks held
}

// link sets what the parts of s know of it.
func (s *stream) link() *stream {
	s.rx.s, s.rx.q = s, s.q
	s.tx.s, s.tx.q = s, s.q
	s.closer.s = s
	return s
}

// streamParams are the fields of mpa.Params that a stream needs all its life.
type streamParams struct {
	Enhanced, CRC, MarkersTx, MarkersRx bool
	RDMAC                               bool // DDP and RDMAP have version 0
	PeerToPeer, WaitFirstFPDU           bool
	RTR                                 mpa.RTR
}

// disconnect ends this stream gracefully, as qp.disconnect does, and no other that the QP may have
// by then.
func (s *stream) disconnect() { s.closeGracefully(false) }

// Ready implements transport.Handler.
func (s *stream) Ready(readable, writable bool) { s.ReadyTurn(readable, writable, policy.BudgetMost) }

// ReadyTurn implements transport.Sharer.
func (s *stream) ReadyTurn(readable, writable bool, budget int) (used int, more bool) {
	if s.hasFinished() {
		return s.closer.lingerOn(budget)
	}
	if readable {
		receive := budget
		if writable {
			receive /= 2 // what the receive side does not use is for sending
		}
		used, more = s.rx.poll(receive)
	}
	if writable {
		s.tx.room.Store(true)
		sent, sendMore := s.tx.run(max(budget-used, budget/2))
		s.settle()
		used, more = used+sent, more || sendMore
	}
	if s.hasFinished() {
		used += policy.EndCost
	}
	return used, more
}

// fail records why the stream ends. Only the first reason counts. Both sides stop as soon as they
// see it.
//
//rfc:5040 RDMAP-7.1-4-01 First error wins
func (s *stream) fail(e *ending) { s.ending.CompareAndSwap(nil, e) }

// over reports whether the stream is to end.
func (s *stream) over() bool { return s.ending.Load() != nil }

// settle ends the stream if there is a reason to. When it returns, this call or another has moved
// the QP to ERR and flushed it. The caller must hold no lock.
func (s *stream) settle() {
	e := s.ending.Load()
	if e == nil || s.hasFinished() {
		return
	}
	s.rx.mu.Lock()
	s.tx.mu.Lock()
	first := !s.hasFinished()
	var from phase
	if first {
		from = s.finish(e)
	}
	s.tx.unlock()
	s.rx.mu.Unlock()
	if !first {
		return
	}
	s.loop.unassign()
	s.closer.startLinger(e, from)
	s.down(e)
}

// down calls onDown. Close of the device waits until down returns, so down also reports its return
// if onDown panics.
func (s *stream) down(e *ending) {
	defer s.dev.streams.Done()
	s.onDown(e.cause)
}

// finish makes both sides give back what they hold, and detaches the stream from its QP. It returns
// the phase before. rx.mu and tx.mu are held.
func (s *stream) finish(e *ending) (from phase) {
	s.rx.stop()
	s.closer.out = s.tx.stop(e)
	s.dev.countEnd(s, e, len(s.closer.out) > 0)
	s.tx.undoMemory()
	s.q.enterError(s, e)
	if e.raise {
		s.dev.raise(provider.AsyncEvent{Type: e.event, QP: s.q})
	}
	return s.enter(phaseFinished) // last: who reads the phase relies on the QP being in ERR
}

// closeGracefully begins the graceful end that disconnect describes. With notify, EventSQDrained is
// raised when our FIN is sent, or at once if it is sent already. It reports whether the QP had this
// stream.
func (s *stream) closeGracefully(notify bool) bool {
	to := phaseClosing
	if notify {
		to = phaseClosingNotify
	}
	q := s.q
	q.transmitDeferred()
	q.mu.Lock()
	if q.stream.Load() != s {
		q.mu.Unlock()
		return false
	}
	q.setState(provider.QPSQD)
	from := s.enter(to)
	q.mu.Unlock()
	switch {
	case from == phaseOpen:
		s.closer.watchClosing()
		s.tx.resume()
	case from == phaseFINSent && notify:
		s.raiseDrained()
	}
	return true
}

func (s *stream) raiseDrained() {
	s.dev.raise(provider.AsyncEvent{Type: provider.EventSQDrained, QP: s.q})
}

// unwatched is the set of reasons why a stream is not watched for arrivals. An empty set means that
// it is watched.
type unwatched uint8

const (
	readStoring unwatched = 1 << iota // an object has not stored yet what came before
	readEnded                         // the peer's FIN has come: the socket stays readable forever
)

// unwatch adds the reason why, or removes it if on is false. All reasons together determine what
// the poller watches for. Only this function asks the poller, so the end of one reason does not
// undo another. After an error the stream may be unwatched.
func (s *stream) unwatch(why unwatched, on bool) error {
	s.watchMu.Lock()
	defer s.watchMu.Unlock()
	was := s.unwatched
	if s.unwatched &^= why; on {
		s.unwatched |= why
	}
	if (was == 0) == (s.unwatched == 0) {
		return nil
	}
	return s.loop.poller.WantRead(s.conn, s.unwatched == 0)
}

// cannotWatch ends the stream because no goroutine would see what arrives. It does nothing if the
// stream has ended already: the socket is closed, or is closed when the linger expires.
func (s *stream) cannotWatch(err error) {
	s.fail(&ending{cause: fmt.Errorf("watching the connection for arrivals: %w", err), reset: true})
}

// watch adds the stream to the device's stalls until neither side waits for the peer. rx.mu or
// tx.mu is held.
func (s *stream) watch() {
	if !s.watched.Load() && !s.watched.Swap(true) {
		s.dev.stalls.join(s)
	}
}

// phase is how far the end of a stream is. It only advances, and only enter changes it.
//
// Two facts are not phases, because each may become true in several of them: stream.ending, that
// there is a reason to end now, and closer.eof, that the peer's FIN has come. What finish sends for
// stream.ending depends on the phase. Only fail and peerClosed set these two, and nothing resets
// them.
type phase uint32

const (
	phaseOpen          phase = iota // everything may be posted, sent and received
	phaseClosing                    // a graceful end: the send queue is sent, then FIN
	phaseClosingNotify              // the same, and EventSQDrained is raised with the FIN
	phaseFINSent                    // our FIN is out, and the peer's is awaited
	phaseFinished                   // the QP has detached: the linger does the rest
	phaseLinger                     // the rest is being sent, and our FIN after it
	phaseLingerFINSent              // our FIN is out, and the peer's is awaited
	phaseClosed                     // the socket is closed
)

func (p phase) String() string {
	return [...]string{"open", "closing", "closing with notification", "FIN sent", "finished",
		"linger", "linger with FIN sent", "closed"}[p]
}

// phaseSet is a set of phases.
type phaseSet uint32

func phases(all ...phase) (s phaseSet) {
	for _, p := range all {
		s |= 1 << p
	}
	return s
}

func (s phaseSet) has(p phase) bool { return s>>p&1 != 0 }

// enteredFrom has, for each phase, those from which it may be entered.
var enteredFrom = [...]phaseSet{
	phaseClosing:       phases(phaseOpen),
	phaseClosingNotify: phases(phaseOpen, phaseClosing),
	phaseFINSent:       phases(phaseClosing, phaseClosingNotify),
	phaseFinished:      phases(phaseOpen, phaseClosing, phaseClosingNotify, phaseFINSent),
	phaseLinger:        phases(phaseFinished),
	phaseLingerFINSent: phases(phaseFinished, phaseLinger),
	phaseClosed:        phases(phaseLinger, phaseLingerFINSent),
}

// at returns the phase. It stays if the caller holds the lock with which the next phase is entered
// (see enter).
func (s *stream) at() phase { return phase(s.phase.Load()) }

// enter enters a phase, and returns the one before. The caller holds
//
//   - qp.mu, of a QP that has this stream, for phaseClosing and phaseClosingNotify,
//   - tx.mu for phaseFINSent,
//   - rx.mu and tx.mu for phaseFinished,
//   - closer.mu for the phases after that.
//
// A graceful end may have begun before: then phaseClosing or phaseClosingNotify is not entered,
// and the phase that is returned is the present one. All other phases are entered in any case.
func (s *stream) enter(to phase) (from phase) {
	switch {
	case to > phaseFinished:
		sched.AssertHeld[locks.Linger](&s.closer.mu)
	case to == phaseFinished:
		sched.AssertHeld[locks.RX](&s.rx.mu)
		sched.AssertHeld[locks.TX](&s.tx.mu)
	case to == phaseFINSent:
		sched.AssertHeld[locks.TX](&s.tx.mu)
	default:
		sched.AssertHeld[locks.QP](&s.q.mu)
	}
	for {
		from = s.at()
		switch {
		case enteredFrom[to].has(from):
			if s.phase.CompareAndSwap(uint32(from), uint32(to)) {
				return from
			}
		case to <= phaseClosingNotify && from <= phaseFINSent:
			return from
		default:
			panic(fmt.Sprintf("engine: a stream goes from phase %q to %q", from, to))
		}
	}
}

// closing reports whether a graceful end has begun, for a caller who knows that the stream has
// not finished.
func (s *stream) closing() bool { return s.at() >= phaseClosing }

// hasFinished reports whether the QP has let go of the stream.
func (s *stream) hasFinished() bool { return s.at() >= phaseFinished }
