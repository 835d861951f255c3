package engine

import "fmt"

// unwatched are the reasons why a stream is not watched for arrivals. It is watched while
// there is none.
type unwatched uint8

const (
	readStoring unwatched = 1 << iota // an object has not stored yet what came before
	readEnded                         // the peer's FIN has come: the socket is readable for ever
)

// unwatch adds the reason why, or removes it if on is false. What the poller is asked for
// follows from all reasons together, and only this function asks, so that the end of one
// reason does not undo another. After an error the stream may be unwatched.
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
	return s.lane.poller.WantRead(s.conn, s.unwatched == 0)
}

// cannotWatch ends the stream because no goroutine would see what arrives. If it has ended
// already this does nothing: its socket is closed, or closes when the linger expires.
func (s *stream) cannotWatch(err error) {
	s.fail(&ending{cause: fmt.Errorf("watching the connection for arrivals: %w", err), reset: true})
}
