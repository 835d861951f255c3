package rawtcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

// Server serves clients, one after another.
type Server struct {
	l       Listener
	clients chan Conn
	data    chan Conn // of the session

	mu      sync.Mutex
	session uint64 // 0: none
}

// Listen makes a server at addr, whose port may be 0. cong is the sockets'
// TCP_CONGESTION, empty for the system's.
func Listen(ctx context.Context, addr netip.AddrPort, cong string) (*Server, error) {
	return ListenOver(ctx, addr, TCP(cong))
}

// ListenOver makes a server at addr of a network.
func ListenOver(ctx context.Context, addr netip.AddrPort, network Network) (*Server, error) {
	l, err := network.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &Server{l: l, clients: make(chan Conn), data: make(chan Conn)}, nil
}

// Addr returns the address that the server listens at.
func (s *Server) Addr() netip.AddrPort { return s.l.Addr().(*net.TCPAddr).AddrPort() }

// Close ends listening. Call it after Serve.
func (s *Server) Close() error { return s.l.Close() }

// Serve serves n clients one after another, each until it closes; with n == 0 it goes on
// until ctx ends. It can be called once: afterwards no client is accepted.
func (s *Server) Serve(ctx context.Context, n int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { _ = s.l.SetDeadline(time.Unix(1, 0)) })()
	wg.Go(func() {
		for {
			conn, err := s.l.Accept()
			if err != nil {
				cancel(err)
				return
			}
			wg.Go(func() { s.route(ctx, conn.(Conn)) })
		}
	})
	defer func() { _ = s.l.SetDeadline(time.Unix(1, 0)) }() // ends Accept
	var errs []error
	for served := 0; n == 0 || served < n; served++ {
		select {
		case c := <-s.clients:
			if err := s.serve(ctx, c); err != nil {
				errs = append(errs, fmt.Errorf("client %s: %w", c.RemoteAddr(), err))
			}
		case <-ctx.Done():
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
	}
	return errors.Join(errs...)
}

// route passes a connection to the session that it is for, or to Serve. Connections that
// neither takes are closed.
func (s *Server) route(ctx context.Context, c Conn) {
	defer until(ctx, c)()
	h, err := hearHello(c)
	if err == nil {
		s.mu.Lock()
		ours := h.Session == s.session
		s.mu.Unlock()
		timeout := time.NewTimer(patience)
		defer timeout.Stop()
		switch {
		case h.Session == 0:
			select {
			case s.clients <- c:
				return
			case <-ctx.Done():
			case <-timeout.C:
				_ = tell(c, message{Error: "busy with another client"})
			}
		case ours:
			select {
			case s.data <- c:
				return
			case <-ctx.Done():
			case <-timeout.C:
			}
		}
	}
	_ = c.Close() // no session takes it
}

// serve serves one client until it leaves.
func (s *Server) serve(ctx context.Context, c Conn) (err error) {
	defer func() { err = errors.Join(err, c.Close()) }()
	defer until(ctx, c)()
	s.mu.Lock()
	s.session = rand.Uint64() | 1
	session := s.session
	s.mu.Unlock()
	if err := tell(c, message{Hello: &hello{Protocol: protocol, Session: session}}); err != nil {
		return err
	}
	for {
		m, err := hear(c)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if m.Run == nil {
			return errNotThat
		}
		d, err := s.do(ctx, c, *m.Run)
		if err != nil {
			_ = tell(c, message{Error: err.Error()}) // it may have gone
			return err
		}
		if err := tell(c, message{Done: d}); err != nil {
			return err
		}
	}
}

// do is the server's part of a run.
func (s *Server) do(ctx context.Context, c Conn, spec load.Spec) (_ *done, err error) {
	if err := Complete(&spec); err != nil {
		return nil, err
	}
	streams := make([]stream, 0, spec.QPs)
	defer func() {
		for _, s := range streams {
			err = errors.Join(err, s.close())
		}
	}()
	for range spec.QPs {
		select {
		case conn := <-s.data:
			x, err := newStream(conn, spec.Poll)
			if err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			streams = append(streams, x)
			defer until(ctx, conn)()
		case <-time.After(patience):
			return nil, fmt.Errorf("%d of %d connections came", len(streams), spec.QPs)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := tell(c, message{Go: true}); err != nil {
		return nil, err
	}
	return follow(ctx, streams, spec)
}

func follow(ctx context.Context, streams []stream, spec load.Spec) (*done, error) {
	d := &done{}
	if spec.Op.Latency() {
		m := load.StartMeter()
		err := echo(ctx, streams[0], spec.Size)
		_, d.Usage = m.Stop(1)
		return d, err
	}
	message := text(spec.Size)
	if spec.Warmup > 0 {
		if err := receiveAll(ctx, streams, spec, message, uint64(spec.Warmup)*uint64(spec.Size)); err != nil {
			return nil, fmt.Errorf("warming up: %w", err)
		}
	}
	m := load.StartMeter()
	err := receiveAll(ctx, streams, spec, message, 0)
	_, d.Usage = m.Stop(1)
	return d, err
}

// receiveAll receives from all streams: in turn where calls don't wait, otherwise
// each on a goroutine of its own.
func receiveAll(ctx context.Context, streams []stream, spec load.Spec, message []byte, octets uint64) error {
	if spec.Poll == load.Spin || len(streams) == 1 {
		return receive(ctx, streams, message, octets)
	}
	return each(streams, func(_ int, one []stream) error { return receive(ctx, one, message, octets) })
}
