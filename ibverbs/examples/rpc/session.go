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

// errNotServer is the error of calls to a server that speaks something else.
var errNotServer = errors.New("it is not a server of rpc")

// session is a connection of the client. Its buffers are, for each credit, one for an answer
// and one for a request.
type session struct {
	conn *rdmacm.Conn
	cq   *ibverbs.CQ
	buffers
	credits int
	ctx     context.Context // ends with the connection
	cancel  context.CancelFunc
	polled  chan struct{} // closed when poll has returned; nil: it was never started
	free    chan int      // requests that are not in use: the credits
	users   sync.WaitGroup

	mu    sync.Mutex
	calls []call // by number of the request
	next  uint64 // id
}

// call is what a request is used for.
type call struct {
	id     uint64
	left   int // the completion of its Send, and the answer
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
	// What the server grants is known after it has accepted, when receives have to be
	// posted already: there are as many of these as we would use.
	const most = credits
	if s.cq, err = newCQ(vctx, 2*most+1); err != nil {
		return nil, err
	}
	s.conn, err = rdmacm.DialName(ctx, vctx, address, &rdmacm.ConnConfig{
		SendCQ: s.cq, RecvCQ: s.cq, Cap: ibverbs.QPCap{MaxSendWR: most, MaxRecvWR: most},
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
			if err := s.mr.Close(); err != nil { // of an attempt before this one
				return err
			}
			if s.buffers, err = newBuffers(c.PD(), 2*most); err != nil {
				return err
			}
			for i := range most {
				if err := s.post(c.QP(), i); err != nil {
					return err
				}
			}
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	private := s.conn.PrivateData()
	if len(private) == 0 || private[0] == 0 {
		return nil, fmt.Errorf("%s: %w", address, errNotServer)
	}
	s.credits = min(most, int(private[0]))
	s.calls = make([]call, s.credits)
	s.free = make(chan int, s.credits)
	for i := range s.credits {
		s.free <- i
	}
	s.polled = make(chan struct{})
	go func() { <-s.conn.Done(); s.cancel() }()
	go s.poll()
	return s, nil
}

// close frees everything. Calls that are under way end with errLost, before that.
func (s *session) close() error {
	s.cancel()
	s.users.Wait()
	if s.polled != nil {
		<-s.polled
	}
	return errors.Join(s.conn.Close(), closeCQ(s.cq), s.mr.Close())
}

// post posts the receive for an answer.
func (s *session) post(qp *ibverbs.QP, i int) error {
	wr, err := s.receive(i)
	if err != nil {
		return err
	}
	return qp.PostRecv(wr)
}

// call sends a request and waits for the answer. When ctx ends it waits no longer, but the
// credit comes back with the answer only.
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
	result := make(chan answer, 1) // nobody may be there to take it
	s.mu.Lock()
	s.next++
	id := s.next
	s.calls[i] = call{id, 2, result}
	s.mu.Unlock()

	k := credits + i // requests come after answers
	n := len(request{id, timeout, method, payload}.append(s.at(k)[:0]))
	wr, err := s.send(k, n)
	if err != nil {
		return nil, err
	}
	if err := s.conn.QP().PostSend(wr); err != nil {
		s.cancel() // whatever it is, the next session will not have it
		return nil, s.lost(err)
	}
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

// poll takes care of completions until the session ends, which an error makes it do.
func (s *session) poll() {
	defer close(s.polled)
	defer s.cancel()
	var wcs [16]ibverbs.WC
	for {
		n, err := s.cq.PollWait(s.ctx, wcs[:])
		if err != nil {
			return
		}
		for _, wc := range wcs[:n] {
			if wc.Err() != nil || s.completed(wc) != nil {
				return
			}
		}
	}
}

// completed takes care of a completion.
func (s *session) completed(wc ibverbs.WC) error {
	i, isReceive := buffer(wc)
	if !isReceive {
		return s.over(i-credits, nil)
	}
	a, err := parseAnswer(s.at(i)[:wc.ByteLen])
	if err != nil {
		return err
	}
	a.payload = append([]byte(nil), a.payload...) // the buffer goes back
	if err := s.post(s.conn.QP(), i); err != nil {
		return err
	}
	s.mu.Lock()
	k := 0
	for k < len(s.calls) && (s.calls[k].left == 0 || s.calls[k].id != a.id) {
		k++
	}
	s.mu.Unlock()
	if k == len(s.calls) {
		return fmt.Errorf("an answer to request %d, which nobody waits for", a.id)
	}
	return s.over(k, &a)
}

// over notes that one of the two things has happened that a request waits for: its Send is
// complete, or there is the answer. With both the request is free.
func (s *session) over(k int, a *answer) error {
	s.mu.Lock()
	c := &s.calls[k]
	c.left--
	left, result := c.left, c.result
	s.mu.Unlock()
	if a != nil {
		select {
		case result <- *a:
		default:
			return fmt.Errorf("two answers to request %d", a.id)
		}
	}
	if left == 0 {
		s.free <- k
	}
	return nil
}
