package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// peer is a connection of the server.
type peer struct {
	server  *server
	qp      *ibverbs.QP
	ctx     context.Context // ends with the connection, or the server
	cancel  context.CancelFunc
	ready   chan struct{} // closed when Accept has returned
	conn    *rdmacm.Conn  // after that; nil if it failed
	answers buffers
	free    chan int // buffers that are not being sent

	mu    sync.Mutex
	ended bool
	calls sync.WaitGroup // Add under mu, and only before ended
}

// begin answers a request in a goroutine. It returns false if the connection is over; then the
// message remains the caller's.
func (p *peer) begin(m rdmacm.Message) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false
	}
	p.calls.Go(func() {
		if err := p.answer(m); err != nil && p.ctx.Err() == nil && !errors.Is(err, os.ErrClosed) {
			fmt.Fprintln(os.Stderr, "rpc: answering:", err)
		}
	})
	return true
}

// end refuses further calls, and waits for those under way.
func (p *peer) end() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.calls.Wait()
}

// sendTimeout is how long an answer may take to be sent to a client that does not read.
const sendTimeout = 5 * time.Second

// answer carries out a request and sends the answer.
func (p *peer) answer(m rdmacm.Message) error {
	a := p.call(m.Data)
	// Post the receive first, because the answer gives the client its credit back.
	if err := m.Release(); err != nil {
		return err
	}
	if a.failed && p.ctx.Err() != nil {
		return nil // the end cut it off: the client calls again
	}
	// The request may come before Accept returns, and until then a kernel device refuses to
	// send.
	<-p.ready
	if p.conn == nil {
		return nil
	}
	k := <-p.free
	defer func() { p.free <- k }()
	sge, err := p.answers.sge(k, len(a.append(p.answers.at(k)[:0])))
	if err != nil {
		return err
	}
	// Even if the server stops, the client gets the answer, so this is not the server's context.
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	if err := p.conn.Send(ctx, sge); err != nil {
		p.cancel()
		return errors.Join(err, p.conn.Disconnect()) // flushes the work request of buffer k
	}
	return nil
}

// call calls the method, and makes an answer of its result or its error.
func (p *peer) call(b []byte) answer {
	r, err := parseRequest(b)
	if err != nil {
		return answer{r.id, true, []byte(err.Error())}
	}
	ctx, cancel := context.WithTimeout(p.ctx, r.timeout)
	defer cancel()
	var result []byte
	if f := methods[r.method]; f == nil {
		err = fmt.Errorf("no method %q", r.method)
	} else if result, err = f(ctx, r.payload); err == nil && len(result) > maxMessage-answerHead {
		err = tooLong("answer", len(result), maxMessage-answerHead)
	}
	if err != nil {
		text := []byte(err.Error())
		return answer{r.id, true, text[:min(len(text), maxMessage-answerHead)]}
	}
	return answer{r.id, false, result}
}
