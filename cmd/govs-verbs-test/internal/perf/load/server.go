package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// patience is how long a client waits to be served, and a data connection to be accepted by its
// session.
const patience = 3 * time.Second

// Server serves clients, one after another.
type Server struct {
	vctx    *ibverbs.Context
	l       *rdmacm.Listener
	self    End
	clients chan *rdmacm.Request // requests of clients to be served
	lanes   chan *rdmacm.Request // data connections of the session

	mu      sync.Mutex
	session uint64 // 0 if there is none
}

// Listen makes a server at addr, whose port may be 0. self describes this end to clients.
func Listen(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort, self End) (*Server, error) {
	// Many QPs connect at once.
	l, err := rdmacm.Listen(ctx, vctx, addr, &rdmacm.ListenConfig{Backlog: 1024})
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	return &Server{vctx: vctx, l: l, self: self, clients: make(chan *rdmacm.Request), lanes: make(chan *rdmacm.Request)}, nil
}

// Addr returns the address on which the server listens.
func (s *Server) Addr() netip.AddrPort { return s.l.Addr() }

// Close ends listening. Call it after Serve.
func (s *Server) Close() error { return s.l.Close() }

// Serve serves n clients one after another, each until it closes; with n == 0 it continues until
// ctx ends. A client that connects while another one is served is rejected, with the reason. The
// error is ctx.Err(), or the listener's, or the joined errors of clients that did not end in order.
func (s *Server) Serve(ctx context.Context, n int) error {
	routing, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() {
		for {
			req, err := s.l.Accept(routing)
			switch {
			case err == nil: // even if routing has ended: route then closes the request
				wg.Go(func() { s.route(routing, req) })
			case errors.Is(err, os.ErrClosed) || routing.Err() != nil:
				cancel(err)
				return
			}
		}
	})
	var errs []error
	for served := 0; n == 0 || served < n; served++ {
		select {
		case req := <-s.clients:
			peer := req.RemoteAddr()
			if err := s.serve(routing, req); err != nil {
				errs = append(errs, fmt.Errorf("client %s: %w", peer, err))
			}
		case <-routing.Done():
			return errors.Join(append(errs, context.Cause(routing))...)
		}
	}
	return errors.Join(errs...)
}

// route passes a connection request to its session, or to Serve.
func (s *Server) route(ctx context.Context, req *rdmacm.Request) {
	to, refusal := s.clients, busyText
	if string(req.PrivateData()) != controlHello {
		session, _, ok := parseDataPrivate(req.PrivateData())
		s.mu.Lock()
		ok = ok && session == s.session
		s.mu.Unlock()
		if to, refusal = s.lanes, "no such session"; !ok {
			_ = req.Reject([]byte("not a client of " + controlHello))
			return
		}
	}
	select {
	case to <- req:
	case <-ctx.Done():
		_ = req.Close()
	case <-time.After(patience):
		_ = req.Reject([]byte(refusal))
	}
}

func (s *Server) begin() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session = rand.Uint64() | 1
	return s.session
}

func (s *Server) ended() {
	s.mu.Lock()
	s.session = 0
	s.mu.Unlock()
}

// session serves one client.
type session struct {
	s   *Server
	pd  *ibverbs.PD
	ctl control
	end *end // nil before the first run
}

// serve serves one client until it leaves.
func (s *Server) serve(ctx context.Context, req *rdmacm.Request) (err error) {
	x := &session{s: s}
	defer func() { err = errors.Join(err, x.close()) }()
	if x.pd, err = s.vctx.AllocPD(); err != nil {
		return errors.Join(err, req.Close())
	}
	cfg, err := x.ctl.config(x.pd, "")
	if err != nil {
		return errors.Join(err, req.Close())
	}
	if x.ctl.conn, err = req.Accept(ctx, cfg); err != nil {
		return err
	}
	if _, err = x.ctl.hear(ctx); err != nil {
		return err
	}
	id := s.begin()
	defer s.ended()
	if err := x.ctl.tell(ctx, message{Hello: &hello{Session: id, End: s.self}}); err != nil {
		return err
	}
	for {
		m, err := x.ctl.hear(ctx)
		if errors.Is(err, errLeft) {
			return nil
		}
		if err != nil {
			return err
		}
		if m.Run == nil {
			return errNotThat
		}
		if err := x.do(ctx, m.Run); err != nil {
			x.excuse(err)
			return err
		}
	}
}

// excuse sends the client the reason why the server ends the session. The client may already have
// left.
func (x *session) excuse(err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	text := err.Error()
	_ = x.ctl.tell(ctx, message{Error: text[:min(len(text), controlSize/8)]})
}

// do does the server's part of a run.
func (x *session) do(ctx context.Context, o *order) error {
	if err := o.Spec.Complete(); err != nil {
		return err
	}
	if err := x.setUp(ctx, o); err != nil {
		return err
	}
	if err := x.ctl.tell(ctx, message{Go: true}); err != nil {
		return err
	}
	d, err := x.end.follow(ctx)
	if err != nil {
		return err
	}
	if err := x.end.verify(); err != nil {
		return err
	}
	return x.ctl.tell(ctx, message{Done: d})
}

func (x *session) setUp(ctx context.Context, o *order) (err error) {
	switch {
	case o.New:
		if x.end != nil {
			old := x.end
			x.end = nil
			if err := old.close(); err != nil {
				return err
			}
		}
		if x.end, err = newEnd(x.s.vctx, x.pd, o.Spec, true); err != nil {
			return err
		}
	case x.end == nil || !sameConnections(x.end.spec, o.Spec):
		return errors.New("there are no connections for this run")
	}
	e := x.end
	e.spec = o.Spec
	e.mem.prepare(^o.Seed)
	if err := x.ctl.tell(ctx, message{Ready: &ready{e.mem.table()}}); err != nil {
		return err
	}
	if !o.New {
		return nil
	}
	if e.remote, err = x.ctl.readTable(ctx, x.pd, o.Table, o.Spec.MRs, uint64(e.mem.octets())); err != nil {
		return err
	}
	return x.accept(ctx)
}

// accept accepts the client's data connections, in any order.
func (x *session) accept(ctx context.Context) error {
	e := x.end
	for range e.lanes {
		var req *rdmacm.Request
		select {
		case req = <-x.s.lanes:
		case <-x.ctl.conn.Done():
			return errLeft
		case <-ctx.Done():
			return ctx.Err()
		}
		_, n, _ := parseDataPrivate(req.PrivateData())
		if n >= len(e.lanes) || e.lanes[n].qp != nil {
			return errors.Join(fmt.Errorf("the client connects QP %d of %d, or one twice",
				n, len(e.lanes)), req.Close())
		}
		cfg := e.config(x.pd, n)
		cfg.InitiatorDepth, cfg.ResponderResources = req.InitiatorDepth(), req.ResponderResources()
		conn, err := req.Accept(ctx, cfg)
		if err != nil {
			return err
		}
		e.conns = append(e.conns, conn)
	}
	return e.connected()
}

// follow does the server's part of a run.
func (e *end) follow(ctx context.Context) (*done, error) {
	if err := e.greet(ctx); err != nil {
		return nil, err
	}
	if e.spec.Warmup > 0 {
		if _, err := e.respond(ctx, uint64(e.spec.Warmup), 0); err != nil {
			return nil, fmt.Errorf("warming up: %w", err)
		}
	}
	m := StartMeter()
	ops, err := e.respond(ctx, uint64(e.spec.Iters), e.spec.Duration)
	if err != nil {
		return nil, err
	}
	d := &done{}
	if e.posts() {
		d.Ops = ops
	}
	_, d.Usage = m.Stop(1)
	return d, nil
}

// respond does the server's part of a stretch. It returns the number of messages that the server
// posted.
func (e *end) respond(ctx context.Context, n uint64, limit time.Duration) (uint64, error) {
	if e.pingPong() {
		return e.pongs(ctx)
	}
	if !e.posts() {
		n, limit = 0, 0
	}
	before := e.posted()
	e.begin(n, limit)
	err := e.stream(ctx)
	return e.posted() - before, err
}

func (x *session) close() error {
	var errs []error
	if x.end != nil {
		errs = append(errs, x.end.close())
	}
	errs = append(errs, x.ctl.close())
	if x.pd != nil {
		errs = append(errs, x.pd.Close())
	}
	return errors.Join(errs...)
}
