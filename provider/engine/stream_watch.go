package engine

import "fmt"

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
	return s.lane.poller.WantRead(s.conn, s.unwatched == 0)
}

// cannotWatch ends the stream because no goroutine would see what arrives. It does nothing if the
// stream has ended already: the socket is closed, or is closed when the linger expires.
func (s *stream) cannotWatch(err error) {
	s.fail(&ending{cause: fmt.Errorf("watching the connection for arrivals: %w", err), reset: true})
}
