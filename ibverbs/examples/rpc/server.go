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

// credits is how many calls a client may have under way. The server sends it in the private
// data of its answer.
const credits = 8

// server has what all connections share.
type server struct {
	pd       *ibverbs.PD
	cq       *ibverbs.CQ // of all receives
	srq      *ibverbs.SRQ
	requests *rdmacm.Receiver

	mu    sync.Mutex
	peers map[uint32]*peer // by number of the QP
}

// serve answers up to limit clients at address until ctx ends.
func serve(ctx context.Context, provider, address string, limit int) (err error) {
	vctx, err := open(ctx, provider, address, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vctx.Close()) }()
	s := &server{peers: make(map[uint32]*peer)}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.make(vctx, limit); err != nil {
		return err
	}
	l, err := rdmacm.ListenName(ctx, vctx, address, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	fmt.Println("listening on", l.Addr())

	// Requests are received until the last client has gone.
	receiving, stop := context.WithCancel(context.Background())
	received := make(chan error, 1)
	go func() { received <- s.receive(receiving) }()
	defer func() { stop(); err = errors.Join(err, <-received) }()
	places := make(chan struct{}, limit)
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		req, err := l.Accept(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			select {
			case places <- struct{}{}:
			default:
				err = req.Reject([]byte("too many clients"))
				req = nil
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "rpc:", err) // of one request; the listener goes on
		}
		if err != nil || req == nil {
			continue
		}
		clients.Go(func() {
			if err := s.attend(ctx, req); err != nil {
				fmt.Fprintf(os.Stderr, "rpc: %s: %v\n", req.RemoteAddr(), err)
			}
			<-places
		})
	}
}

// make makes the queues for the number of clients, with a receive for each of their credits.
func (s *server) make(vctx *ibverbs.Context, clients int) (err error) {
	n := clients * credits
	if s.pd, err = vctx.AllocPD(); err != nil {
		return err
	}
	if s.cq, err = newCQ(vctx, n); err != nil {
		return err
	}
	s.srq, err = s.pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: n, MaxSGE: 1}})
	if err != nil {
		return err
	}
	s.requests, err = rdmacm.NewSRQReceiver(s.srq, s.cq, n, maxMessage)
	return err
}

func (s *server) close() error {
	return errors.Join(s.requests.Close(), s.srq.Close(), closeCQ(s.cq), s.pd.Close())
}

// receive passes each request to its connection, until ctx ends.
func (s *server) receive(ctx context.Context) error {
	for {
		m, err := s.requests.Receive(ctx)
		var failed *ibverbs.WCError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &failed):
			continue // the end of a connection cut the message off
		case err != nil:
			return err
		}
		s.mu.Lock()
		p := s.peers[m.WC.QPN]
		s.mu.Unlock()
		if p == nil || !p.begin(m) {
			if err := m.Release(); err != nil {
				return err
			}
		}
	}
}

// attend serves a client until it leaves or ctx ends.
func (s *server) attend(ctx context.Context, req *rdmacm.Request) (err error) {
	p := &peer{server: s, free: make(chan int, credits), ready: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(ctx)
	defer p.cancel()
	if p.answers, err = newBuffers(s.pd, credits); err != nil {
		return errors.Join(err, req.Close())
	}
	defer func() { err = errors.Join(err, p.answers.mr.Close()) }()
	for i := range credits {
		p.free <- i
	}
	p.conn, err = req.Accept(ctx, &rdmacm.ConnConfig{
		PD: s.pd, SRQ: s.srq, RecvCQ: s.cq,
		Cap:         ibverbs.QPCap{MaxSendWR: credits},
		PrivateData: []byte{credits},
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			p.qp = c.QP()
			s.mu.Lock()
			s.peers[p.qp.QPN()] = p // the first request may come before Accept returns
			s.mu.Unlock()
			return nil
		},
	})
	defer s.forget(p)
	close(p.ready)
	if err != nil {
		p.cancel()
		p.end()
		return err
	}
	if p.conn.Wait(ctx) != nil {
		// The server stops. Its methods end with ctx; finished answers are still sent.
		p.end()
		last, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return errors.Join(p.conn.Shutdown(last), p.conn.Close())
	}
	p.cancel()
	err = p.conn.Close()
	p.end()
	var terminate *ibverbs.TerminateError
	if errors.As(p.qp.Cause(), &terminate) {
		err = errors.Join(err, terminate)
	}
	return err
}

// forget makes receive drop p's messages that come from now on.
func (s *server) forget(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.qp != nil && s.peers[p.qp.QPN()] == p {
		delete(s.peers, p.qp.QPN())
	}
}
