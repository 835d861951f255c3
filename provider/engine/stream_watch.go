package engine

import (
	"fmt"

	"github.com/govs-rdma/govs/provider/engine/internal/policy"
)

// looked counts a poller's look, and reports whether the stream is to be muted.
// rxMu is held.
func (s *stream) looked() bool {
	r := &s.rx
	if n := s.dev.muting.attends.Load(); n != r.attends {
		r.attends, r.looks = n, 0
	}
	r.looks++
	return r.looks%policy.LooksInRow == 0
}

// unwatched are the reasons why a stream is not watched for arrivals. It is watched while
// there is none.
type unwatched uint8

const (
	readMuted   unwatched = 1 << iota // its owner looks, again and again
	readStoring                       // an object has not stored yet what came before
	readEnded                         // the peer's FIN has come: the socket is readable for ever
)

// unwatch adds the reason why, or removes it if on is false. What the poller is asked for
// follows from all reasons together, and only this function asks, so that the end of one
// reason does not undo another. After an error the stream may be unwatched.
func (s *stream) unwatch(why unwatched, on bool) error {
	m := &s.dev.muting
	m.mu.Lock()
	defer m.mu.Unlock()
	return s.unwatchLocked(why, on)
}

// unwatchLocked is unwatch with muting.mu held.
func (s *stream) unwatchLocked(why unwatched, on bool) error {
	was := s.unwatched
	if s.unwatched &^= why; on {
		s.unwatched |= why
	}
	if (was == 0) == (s.unwatched == 0) {
		return nil
	}
	return s.lane.poller.WantRead(s.conn, s.unwatched == 0)
}

// cannotWatch ends the stream because no goroutine would see what arrives. If it has ended
// already this does nothing: its socket is closed, or closes when the linger expires.
func (s *stream) cannotWatch(err error) {
	s.fail(&ending{cause: fmt.Errorf("watching the connection for arrivals: %w", err), reset: true})
}

// giveBack gives back what s has kept while it was muted. It also does what others have
// left to the holder of its locks meanwhile. No lock is held.
func (s *stream) giveBack() {
	s.rxMu.Lock()
	s.rxPark()
	s.rxMu.Unlock()
	s.txMu.Lock()
	if b := s.tx.b; b != nil && b.built == 0 && !s.keeps.Load() {
		s.dev.prog.batches.Put(b)
		s.tx.b = nil
	}
	s.unlockTx()
	s.settle()
}
