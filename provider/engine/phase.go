package engine

import (
	"fmt"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// phase is how far the end of a stream is. It only advances, and only enter changes it.
//
// Two facts are not phases, because each may become true in several of them: stream.end, that there
// is a reason to end now, and linger.eof, that the peer's FIN has come. What finish sends for
// stream.end depends on the phase. Only fail and peerClosed set these two, and nothing resets them.
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
