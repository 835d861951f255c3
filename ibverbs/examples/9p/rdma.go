package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// rdma carries each message in one Send, as Linux's 9pnet_rdma does: no private data, no RDMA Reads
// or Writes, and as many requests under way as both ends have receives, by default 32. A client
// posts a receive for the reply before it sends a request.
type rdma struct {
	conn    *rdmacm.Conn
	max     int
	replies *ibverbs.MR
	free    chan int // free places in replies, each for one message
	heard   bool     // a message has come
	grace   time.Duration
}

// closeGrace is how long Close waits for a client to take what was sent.
const closeGrace = time.Second

// acceptRDMA accepts a client with room for o.depth requests of o.msize bytes.
func acceptRDMA(ctx context.Context, req *rdmacm.Request, o *options) (_ *rdma, err error) {
	t := &rdma{max: o.msize, free: make(chan int, o.requests), grace: closeGrace}
	t.conn, err = req.Accept(ctx, &rdmacm.ConnConfig{
		Cap:      ibverbs.QPCap{MaxSendWR: o.requests},
		Receives: o.depth, ReceiveSize: t.max,
		ResponderResources: -1, InitiatorDepth: -1,
	})
	if err != nil {
		return nil, err
	}
	t.replies, err = t.conn.PD().AllocMR(o.requests*t.max, ibverbs.AccessLocalWrite)
	if err != nil {
		return nil, errors.Join(err, t.conn.Close())
	}
	for i := range o.requests {
		t.free <- i
	}
	return t, nil
}

// Close frees everything. The client gets what was sent, if it takes that within a second. Close
// does not wait for a client that has sent nothing, because others may be waiting for its place.
func (t *rdma) Close() error {
	if t.heard {
		ctx, cancel := context.WithTimeout(context.Background(), t.grace)
		defer cancel()
		_ = t.conn.Shutdown(ctx) // the client may have gone, and then waits for nothing
	}
	return errors.Join(t.conn.Close(), t.replies.Close())
}

// MaxMessage implements p9.Transport.
func (t *rdma) MaxMessage() int { return t.max }

// Receive implements p9.Transport.
func (t *rdma) Receive(ctx context.Context) (p9.Message, error) {
	m, err := t.conn.Receive(ctx)
	if err != nil {
		if ctx.Err() == nil && hasLeft(err) {
			err = io.EOF
		}
		return p9.Message{}, err
	}
	t.heard = true
	return p9.Message{Data: m.Data, Release: m.Release}, nil
}

// hasLeft reports whether err means that the client disconnected, and not that a protocol error
// ended the connection.
func hasLeft(err error) bool {
	var terminate *ibverbs.TerminateError
	if errors.As(err, &terminate) {
		return false
	}
	return errors.Is(err, ibverbs.ErrFlushed) || errors.Is(err, syscall.ENOTCONN)
}

// sendTimeout is how long a client may take to take a reply.
const sendTimeout = 30 * time.Second

// Send implements p9.Transport.
func (t *rdma) Send(ctx context.Context, fill func(buf []byte) int) error {
	var i int
	select {
	case i = <-t.free:
	case <-ctx.Done():
		return ctx.Err()
	}
	n := fill(t.replies.Bytes()[i*t.max:][:t.max])
	if n < 0 {
		t.free <- i
		return nil
	}
	sge, err := t.replies.SGE(i*t.max, n)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if err := t.conn.Send(limited, sge); err != nil {
		// The buffer may still be in the send queue, so it is not reused.
		switch {
		case ctx.Err() == nil && limited.Err() != nil:
			err = fmt.Errorf("the client has not taken a reply for %v: %w", sendTimeout, err)
		case hasLeft(err):
			return io.EOF
		}
		return errors.Join(err, t.conn.Disconnect())
	}
	t.free <- i
	return nil
}
