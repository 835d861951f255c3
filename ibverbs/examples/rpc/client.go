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

// client calls methods of a server, by one connection at a time, which it makes when it is
// needed. All methods may be called concurrently, but for Close.
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
// makes another and calls the method again, until ctx ends. Without a deadline of ctx the
// method has a minute. The error of a method is a remoteError.
func (c *client) Call(ctx context.Context, method string, payload []byte) ([]byte, error) {
	if n := len(method) + len(payload); len(method) > 255 || n > maxMessage-requestHead {
		return nil, tooLong("request", n, maxMessage-requestHead)
	}
	var last error // of the attempt before
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
		case <-time.After(pause/2 + rand.N(pause)): // clients of one server come apart
		case <-ctx.Done():
			return nil, gaveUp(ctx, last, err)
		}
		last = err
	}
}

// gaveUp returns the error of a call whose ctx has ended. The last attempt says why, unless it says
// only that ctx has ended: then the one before it does, if there was one.
func gaveUp(ctx context.Context, before, last error) error {
	if errors.Is(last, ctx.Err()) {
		if before == nil {
			return last
		}
		last = before
	}
	return fmt.Errorf("%w: %w", ctx.Err(), last)
}

// session returns the connection, if it is not lost, or makes one. The caller is one of its
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

// Close ends the connection in order, and calls that are under way with it.
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
