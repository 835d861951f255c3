package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
)

// client calls methods of a server over one connection at a time, which it makes when it needs
// one. All methods but Close may be called concurrently.
type client struct {
	vctx    *ibverbs.Context
	address string
	current chan *session // a lock that can be given up; nil: there is no connection
}

// Pauses between attempts to connect grow between these.
const (
	minPause = 20 * time.Millisecond
	maxPause = time.Second
)

// dialTimeout is how long an attempt to connect may take.
const dialTimeout = 2 * time.Second

func newClient(vctx *ibverbs.Context, address string) *client {
	c := &client{vctx, address, make(chan *session, 1)}
	c.current <- nil
	return c
}

// Call calls a method and returns its answer. If there is no connection, or it is lost, Call
// makes another and calls the method again, until ctx ends. If ctx has no deadline, the
// method has a minute. The error of a method is a remoteError.
func (c *client) Call(ctx context.Context, method string, payload []byte) ([]byte, error) {
	if n := len(method) + len(payload); len(method) > 255 || n > maxMessage-requestHead {
		return nil, tooLong("request", n, maxMessage-requestHead)
	}
	var last error // of the previous attempt
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		s, err := c.session(ctx)
		if err == nil {
			var result []byte
			result, err = s.call(ctx, method, payload)
			s.users.Done()
			if !errors.Is(err, errLost) {
				return result, err
			}
		}
		if errors.Is(err, errNotServer) {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, gaveUp(ctx, last, err)
		}
		fmt.Fprintf(os.Stderr, "rpc: %v; trying again\n", err)
		select {
		case <-time.After(pause/2 + rand.N(pause)): // so that clients don't all retry at once
		case <-ctx.Done():
			return nil, gaveUp(ctx, last, err)
		}
		last = err
	}
}

// gaveUp returns the error of a call whose ctx has ended. The last attempt's error is the reason,
// unless it only reports the end of ctx: then the error of the attempt before it is, if any.
func gaveUp(ctx context.Context, before, last error) error {
	if errors.Is(last, ctx.Err()) {
		if before == nil {
			return last
		}
		last = before
	}
	return fmt.Errorf("%w: %w", ctx.Err(), last)
}

// session returns the connection, or makes one if there is none. The caller becomes one of its
// users.
func (c *client) session(ctx context.Context) (s *session, err error) {
	select {
	case s = <-c.current:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() {
		if err == nil {
			s.users.Add(1)
		}
		c.current <- s
	}()
	if s != nil && s.ctx.Err() == nil {
		return s, nil
	}
	if s != nil {
		if err := s.close(); err != nil {
			return s, err
		}
		s = nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return dial(ctx, c.vctx, c.address)
}

// Close ends the connection cleanly, and calls that are under way with it.
func (c *client) Close() error {
	s := <-c.current
	c.current <- nil
	if s == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return errors.Join(s.conn.Shutdown(ctx), s.close())
}
