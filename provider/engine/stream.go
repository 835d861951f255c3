package engine

import (
	"sync/atomic"

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
// Its receive side and its transmit side are two state machines, each with a lock. They run on any
// goroutine that has a reason to run them: one that posts, polls, or serves the device's progress.
// A turn only tries the lock. A goroutine that does not get txMu sets txWork and leaves the work to
// the holder; one that does not get rxMu leaves the reading to the holder. Code that needs the
// side's state waits for the lock: begin, finish, withTxError, and the code after a call of an
// object's method. Either side records a fault with fail. After the side's lock is released, settle
// takes the QP to ERR.
type stream struct {
	q      *qp
	dev    *device
	conn   transport.Conn
	lane   *lane // as long as it has a socket
	params streamParams
	onDown func(error)

	records transport.RecordWriter // conn; nil if it does not know records

	inbound     rdmap.InboundReads     // rx pushes, tx pops
	outstanding rdmap.OutstandingReads // tx pushes, rx pops

	phase sched.Uint32 // how far the end is: see type phase, at and enter

	// maySend is false for a responder until the first FPDU has come.
	//
	//rfc:5044 MPA-7.1.2-4-01 Responder sends nothing before the first valid FPDU
	maySend sched.Bool

	end sched.Pointer[ending] // why the stream ends, nil while it goes on; the first reason stays

	rxMu sched.Mutex[locks.RX]
	rx   rxState

	txMu    sched.Mutex[locks.TX]
	txWork  sched.Bool // the holder of txMu has to transmit once more
	blocked sched.Bool // the socket is full and the poller watches for room
	room    sched.Bool // the poller has seen room since
	sole    sched.Bool // during a poll of the program: it polls for no other stream (see sendTurn)
	tx      txState

	watchMu   sched.Mutex[locks.Watch]
	unwatched unwatched // why the poller does not watch the stream for arrivals
	admitted  bool      // package cm counts it

	watched sched.Bool // it is among the device's stalls; reset with both locks held
	linger  linger

	// moved is how many bytes were sent, by which others see whether the peer takes any.
	moved atomic.Uint64
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
func (s *stream) Ready(readable, writable bool) { s.ReadyTurn(readable, writable, policy.TurnMost) }

// ReadyTurn implements transport.Sharer.
func (s *stream) ReadyTurn(readable, writable bool, turn int) (used int, more bool) {
	if s.hasFinished() {
		return s.lingerOn(turn)
	}
	if readable {
		receive := turn
		if writable {
			receive /= 2 // what the receive side does not use is for sending
		}
		used, more = s.pollRx(receive)
	}
	if writable {
		s.room.Store(true)
		sent, unsent := s.runTx(max(turn-used, turn/2))
		s.settle()
		used, more = used+sent, more || unsent
	}
	if s.hasFinished() {
		used += policy.EndCost
	}
	return used, more
}

// resumeTx transmits what there is to transmit, or leaves that to the goroutine that holds txMu.
func (s *stream) resumeTx() {
	s.runTx(policy.TurnMost)
	s.settle()
}

// runTx transmits as resumeTx does, but does not settle, because the receive side does so when it
// releases its lock. turn bounds everything that this call sends, even if more is posted while it
// runs. runTx returns how much of the turn it used, and whether the turn ended before the work did.
func (s *stream) runTx(turn int) (used int, more bool) {
	if !s.txMu.TryLock() {
		// The holder looks at txWork after it has released the lock.
		s.txWork.Store(true)
		if !s.txMu.TryLock() {
			return 0, false
		}
	}
	turn = s.sendTurn(turn)
	s.tx.turn = int32(turn)
	left := s.txTurn()
	for s.txWork.Load() && s.txMu.TryLock() {
		left = s.txTurn()
	}
	return max(turn-left, 0), left <= 0 && s.blocked.Load()
}

// unlockTx releases txMu, and then does the work that others have left to its holder. Every
// goroutine that holds txMu for anything but a turn releases it with unlockTx, and calls settle
// once it holds no lock.
func (s *stream) unlockTx() {
	s.txMu.Unlock()
	if s.txWork.Load() {
		s.runTx(policy.TurnMost)
	}
}

// txTurn transmits, releases txMu, and returns the rest of the turn. It defers the release, as
// rxTurn does, because a panic must reach the program: with the lock held, the program would hang
// in the Close that it has probably deferred.
func (s *stream) txTurn() (left int) {
	defer s.txMu.Unlock()
	if s.txWork.Load() {
		s.txWork.Store(false)
	}
	s.transmit()
	return int(s.tx.turn)
}

// rxTurn receives, and releases rxMu.
func (s *stream) rxTurn(turn int) (used int, more bool) {
	defer s.rxMu.Unlock()
	return s.receiveTurn(turn)
}

// pollRx receives what has arrived, unless another goroutine is receiving. Readiness is level
// triggered, so nothing is lost then.
func (s *stream) pollRx(turn int) (used int, more bool) {
	if !s.rxMu.TryLock() {
		return 0, false
	}
	used, more = s.rxTurn(turn)
	s.settle()
	return used, more
}

// look receives what has arrived for a poll that reads the stream directly. It returns false if
// another goroutine is receiving.
func (s *stream) look(turn int) (used int, ok bool) {
	if !s.rxMu.TryLock() {
		return 0, false
	}
	used, _ = s.rxTurn(turn)
	s.settle()
	return used, true
}

// fail records why the stream ends. Only the first reason counts. Both sides stop as soon as they
// see it.
//
//rfc:5040 RDMAP-7.1-4-01 First error wins
func (s *stream) fail(e *ending) { s.end.CompareAndSwap(nil, e) }

// over reports whether the stream is to end.
func (s *stream) over() bool { return s.end.Load() != nil }

// settle ends the stream if there is a reason to. When it returns, this call or another has moved
// the QP to ERR and flushed it. The caller must hold no lock.
func (s *stream) settle() {
	e := s.end.Load()
	if e == nil || s.hasFinished() {
		return
	}
	s.rxMu.Lock()
	s.txMu.Lock()
	first := !s.hasFinished()
	var from phase
	if first {
		from = s.finish(e)
	}
	s.unlockTx()
	s.rxMu.Unlock()
	if !first {
		return
	}
	s.lane.leave()
	s.startLinger(e, from)
	s.down(e)
}

// down calls onDown. Close of the device waits until down returns, so down also reports its return
// if onDown panics.
func (s *stream) down(e *ending) {
	defer s.dev.streams.Done()
	s.onDown(e.cause)
}

// finish makes both sides give back what they hold, and detaches the stream from its QP. It returns
// the phase before. rxMu and txMu are held.
func (s *stream) finish(e *ending) (from phase) {
	s.rx.stop(s)
	s.linger.out = s.tx.stop(s, e)
	s.dev.countEnd(s, e, len(s.linger.out) > 0)
	s.undoMemory()
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
	q.ring()
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
		s.watchClosing()
		s.resumeTx()
	case from == phaseFINSent && notify:
		s.raiseDrained()
	}
	return true
}

func (s *stream) raiseDrained() {
	s.dev.raise(provider.AsyncEvent{Type: provider.EventSQDrained, QP: s.q})
}
