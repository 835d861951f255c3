package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/govs-rdma/govs/ibverbs"
)

// peer is a connection of the server.
type peer struct {
	server  *server
	qp      *ibverbs.QP
	ctx     context.Context // ends with the connection, or the server
	cancel  context.CancelFunc
	ready   chan struct{} // closed when Accept has returned
	answers buffers
	free    chan int // those that are not being sent

	mu    sync.Mutex
	ended bool
	calls sync.WaitGroup // Add under mu, and only before ended
}

// begin has a request of n octets in buffer i of the server answered. It returns false if
// the connection is over; then the buffer is the caller's.
func (p *peer) begin(i, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return false
	}
	p.calls.Go(func() {
		if err := p.answer(i, n); err != nil && p.ctx.Err() == nil && !errors.Is(err, os.ErrClosed) {
			fmt.Fprintln(os.Stderr, "rpc: answering:", err)
		}
	})
	return true
}

// end waits for the calls that are under way, and has no more of them begin.
func (p *peer) end() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.calls.Wait()
}

// sent notes that answer k was sent, or never will be.
func (p *peer) sent(k int) {
	select {
	case p.free <- k:
	default: // of an older QP that had the same number
	}
}

// answer carries a request out. It has buffer i of the server until it posts that again.
func (p *peer) answer(i, n int) error {
	a := p.call(p.server.requests.at(i)[:n])
	// The answer gives the client its credit back: a receive comes first.
	if err := p.server.post(i); err != nil {
		return err
	}
	if a.failed && p.ctx.Err() != nil {
		return nil // cut off by the end: the client calls again
	}
	// The request may have come while Accept was still at it, and a kernel device refuses to
	// send before Accept has returned.
	select {
	case <-p.ready:
	case <-p.ctx.Done():
		return nil
	}
	var k int
	select {
	case k = <-p.free:
	case <-p.ctx.Done():
		return nil
	}
	wr, err := p.answers.send(k, len(a.append(p.answers.at(k)[:0])))
	if err != nil {
		return err
	}
	return p.qp.PostSend(wr)
}

// call calls the method, and makes an answer of whatever comes of it.
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
