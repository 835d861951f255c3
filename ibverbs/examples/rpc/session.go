package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// errLost is the error of calls whose connection has ended before the answer came.
var errLost = errors.New("the connection is lost")

// errNotServer is the error of calls to a server of another protocol.
var errNotServer = errors.New("it is not a server of rpc")

// session is a connection of the client. It has a buffer for the request of each credit.
type session struct {
	conn *rdmacm.Conn
	buffers
	ctx      context.Context // ends with the connection
	cancel   context.CancelFunc
	received chan struct{} // closed when receive has returned; nil: it was never started
	free     chan int      // request buffers that are not in use: the credits
	users    sync.WaitGroup

	mu    sync.Mutex
	calls []call // by number of the request
	next  uint64 // id
}

// call is the call that uses a request buffer.
type call struct {
	id     uint64
	left   int // events that are missing: the end of its Send, and the answer
	result chan answer
}

// dial connects to a server.
func dial(ctx context.Context, vctx *ibverbs.Context, address string) (_ *session, err error) {
	s := new(session)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	// The client learns what the server grants after the server has accepted, but it must post
	// receives before that. So it posts as many as it would use.
	const most = credits
	s.conn, err = rdmacm.DialName(ctx, vctx, address, &rdmacm.ConnConfig{
		Cap: ibverbs.QPCap{MaxSendWR: most}, Receives: most, ReceiveSize: maxMessage,
	})
	if err != nil {
		return nil, err
	}
	private := s.conn.PrivateData()
	if len(private) == 0 || private[0] == 0 {
		return nil, fmt.Errorf("%s: %w", address, errNotServer)
	}
	granted := min(most, int(private[0]))
	if s.buffers, err = newBuffers(s.conn.PD(), granted); err != nil {
		return nil, err
	}
	s.calls = make([]call, granted)
	s.free = make(chan int, granted)
	for i := range granted {
		s.free <- i
	}
	s.received = make(chan struct{})
	go func() { <-s.conn.Done(); s.cancel() }()
	go s.receive()
	return s, nil
}

// close ends the calls that are under way with errLost, and frees everything.
func (s *session) close() error {
	s.cancel()
	s.users.Wait()
	if s.received != nil {
		<-s.received
	}
	return errors.Join(s.conn.Close(), s.mr.Close())
}

// call sends a request and waits for the answer. When ctx ends, call stops waiting, but the
// credit comes back only with the answer.
func (s *session) call(ctx context.Context, method string, payload []byte) ([]byte, error) {
	var i int
	select {
	case i = <-s.free:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.ctx.Done():
		return nil, s.lost(nil)
	}
	timeout := maxTimeout
	if deadline, limited := ctx.Deadline(); limited {
		timeout = max(time.Until(deadline), 0)
	}
	result := make(chan answer, 1) // the caller may have given up
	s.mu.Lock()
	s.next++
	id := s.next
	s.calls[i] = call{id, 2, result}
	s.mu.Unlock()

	sge, err := s.sge(i, len(request{id, timeout, method, payload}.append(s.at(i)[:0])))
	if err != nil {
		return nil, err
	}
	sending, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	if err := s.conn.Send(sending, sge); err != nil {
		s.cancel() // the request may still be in the queue, so nobody may use its buffer again
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, s.lost(err)
	}
	s.over(i)
	select {
	case a := <-result:
		if a.failed {
			return nil, remoteError(a.payload)
		}
		return a.payload, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.ctx.Done():
		return nil, s.lost(nil)
	}
}

// lost returns errLost, with the reason if it is known.
func (s *session) lost(err error) error {
	var terminate *ibverbs.TerminateError
	if errors.As(s.conn.QP().Cause(), &terminate) {
		err = terminate
	}
	if err == nil {
		return errLost
	}
	return fmt.Errorf("%w: %w", errLost, err)
}

// receive hands out answers until it fails, and then ends the session.
func (s *session) receive() {
	defer close(s.received)
	defer s.cancel()
	for {
		m, err := s.conn.Receive(s.ctx)
		if err != nil {
			return
		}
		a, err := parseAnswer(m.Data)
		if err != nil {
			return
		}
		a.payload = append([]byte(nil), a.payload...) // the receive is posted again
		if m.Release() != nil || s.answered(a) != nil {
			return
		}
	}
}

// answered gives an answer to the call that waits for it.
func (s *session) answered(a answer) error {
	s.mu.Lock()
	k := 0
	for k < len(s.calls) && (s.calls[k].left == 0 || s.calls[k].id != a.id) {
		k++
	}
	if k == len(s.calls) {
		s.mu.Unlock()
		return fmt.Errorf("an answer to request %d, which nobody waits for", a.id)
	}
	result := s.calls[k].result
	s.mu.Unlock()
	select {
	case result <- a:
	default:
		return fmt.Errorf("two answers to request %d", a.id)
	}
	s.over(k)
	return nil
}

// over notes one of the two events that free a request: its Send has completed, or the answer
// has come. After both the request is free.
func (s *session) over(k int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[k].left--
	if s.calls[k].left == 0 {
		s.free <- k
	}
}
