// Package rawtcp is the baseline for package load: the same without RDMA, over TCP as fast as Go
// can do it. Each message is one write; the receiver reads into one buffer. It uses Size, Iters or
// Duration, Warmup, QPs (the number of connections) and Poll of a load.Spec. Ends that spin make
// system calls without notifying Go's scheduler; the others use a net.Conn. A client has a
// connection for control, and each run has its own data connections, whose end shows that
// everything has arrived.
package rawtcp

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

// The workloads: bandwidth, timed until the receiver has everything, and ping-pong.
const (
	BW  load.Op = "tcp-bw"
	Lat load.Op = "tcp-lat"
)

// Complete sets the defaults and returns an error for an impossible Spec, as for the most similar
// workload.
func Complete(s *load.Spec) error {
	op := s.Op
	like, ok := map[load.Op]load.Op{BW: load.WriteBW, Lat: load.SendLat}[op]
	if !ok {
		return fmt.Errorf("no workload %q over TCP", op)
	}
	s.Op = like
	defer func() { s.Op = op }()
	return s.Complete()
}

// A Network makes connections that have CloseWrite, and listeners that have SetDeadline.
type Network struct {
	Listen func(context.Context, netip.AddrPort) (net.Listener, error)
	Dial   func(context.Context, netip.AddrPort) (net.Conn, error)
}

// TCP returns the network of TCP. cong is the sockets' TCP_CONGESTION, empty for the system's
// default.
func TCP(cong string) Network {
	set := func(_, _ string, c syscall.RawConn) (err error) { // accepted sockets inherit it
		if cong == "" {
			return nil
		}
		outer := c.Control(func(fd uintptr) {
			err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, cong)
		})
		return errors.Join(outer, err)
	}
	l, d := net.ListenConfig{Control: set}, net.Dialer{Control: set}
	return Network{
		Listen: func(ctx context.Context, addr netip.AddrPort) (net.Listener, error) {
			return l.Listen(ctx, "tcp", addr.String())
		},
		Dial: func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			c, err := d.DialContext(ctx, "tcp", addr.String())
			if errors.Is(err, syscall.ECONNREFUSED) {
				err = fmt.Errorf("a server of perf is needed there (the same command with --listen): %w", err)
			}
			return c, err
		},
	}
}

// patience is how long a peer may take to answer when it has nothing else to do. greeting is how
// long a connection may take to send its purpose; it is shorter because other connections wait for
// that.
const (
	patience = 10 * time.Second
	greeting = patience / 4
)

// control begins a control connection. The first eight bytes of a connection are its purpose:
// control, or the session of a run.
const control = uint64(0)

// answer is a server's message about a run: first the session for its connections, then that the
// warm-up has arrived, and at the end the result.
type answer struct {
	Session, Bytes uint64
	Usage          load.Usage
}

// reader reads a peer's messages, each of which is a line.
type reader struct{ lines *bufio.Scanner }

func newReader(c net.Conn) reader {
	lines := bufio.NewScanner(c)
	lines.Buffer(nil, 4096)
	return reader{lines}
}

// Decode reads the next message. At the end of the connection it returns io.EOF.
func (r reader) Decode(message any) error {
	if !r.lines.Scan() {
		return cmp.Or(r.lines.Err(), io.EOF)
	}
	return json.Unmarshal(r.lines.Bytes(), message)
}

type deadliner interface{ SetDeadline(time.Time) error }

// until makes the calls on c end with ctx, until stop is called.
func until(ctx context.Context, c deadliner) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
}

// Client is the end that chooses the runs. Its methods are for one goroutine.
type Client struct {
	addr    netip.AddrPort
	network Network
	control net.Conn
	answers reader
}

// Dial connects to a server.
func Dial(ctx context.Context, addr netip.AddrPort, n Network) (*Client, error) {
	c, err := dial(ctx, addr, n, control)
	if err != nil {
		return nil, err
	}
	return &Client{addr, n, c, newReader(c)}, nil
}

// dial makes a connection that begins with session.
func dial(ctx context.Context, addr netip.AddrPort, n Network, session uint64) (net.Conn, error) {
	c, err := n.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if err := binary.Write(c, binary.BigEndian, session); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.control.Close() }

// Run does one run. After an error the client can only be closed.
func (c *Client) Run(ctx context.Context, s load.Spec) (r load.Result, err error) {
	if err := Complete(&s); err != nil {
		return r, err
	}
	defer until(ctx, c.control)()
	var a answer
	if err := errors.Join(json.NewEncoder(c.control).Encode(s),
		c.control.SetReadDeadline(time.Now().Add(patience)), c.answers.Decode(&a),
		c.control.SetReadDeadline(time.Time{})); err != nil {
		return r, fmt.Errorf("%v is not a server of tcp-bw or tcp-lat, or has another client: %w",
			c.addr, err)
	}
	connect := func() (net.Conn, error) { return dial(ctx, c.addr, c.network, a.Session) }
	err = withStreams(ctx, s, connect, func(all []stream) (err error) {
		r, err = lead(all, s, c.answers)
		return err
	})
	if err != nil {
		err = fmt.Errorf("the peer has left, or the run has failed: %w", err)
	}
	return r, err
}

// Server serves clients, one after another. A client that connects while another is served waits,
// or is closed when the other begins a run.
type Server struct{ l net.Listener }

// Listen makes a server at addr, whose port may be 0.
func Listen(ctx context.Context, addr netip.AddrPort, n Network) (*Server, error) {
	l, err := n.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &Server{l}, nil
}

// Addr returns the address on which the server listens.
func (s *Server) Addr() netip.AddrPort { return s.l.Addr().(*net.TCPAddr).AddrPort() }

// Close ends listening. Call it after Serve.
func (s *Server) Close() error { return s.l.Close() }

// Serve serves n clients, each until it closes; with n == 0 it continues until ctx ends.
func (s *Server) Serve(ctx context.Context, n int) error {
	defer until(ctx, s.l.(deadliner))()
	var errs []error
	for served := 0; n == 0 || served < n; served++ {
		c, err := s.accept(control)
		if err != nil {
			return errors.Join(append(errs, ctx.Err(), err)...)
		}
		if err := s.serve(ctx, c); err != nil {
			errs = append(errs, fmt.Errorf("client %s: %w", c.RemoteAddr(), err))
		}
	}
	return errors.Join(errs...)
}

// serve serves one client until it leaves.
func (s *Server) serve(ctx context.Context, c net.Conn) (err error) {
	defer func() { err = errors.Join(err, c.Close()) }()
	defer until(ctx, c)()
	orders, answers := newReader(c), json.NewEncoder(c)
	for {
		var spec load.Spec
		if err := orders.Decode(&spec); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		session := rand.Uint64() | 1 // never control
		if err := errors.Join(Complete(&spec), answers.Encode(answer{Session: session})); err != nil {
			return err
		}
		// The client may have left, and other clients wait.
		limit := func(when time.Time) error {
			return errors.Join(s.l.(deadliner).SetDeadline(when), ctx.Err()) // the end of ctx also sets a deadline
		}
		accept := func() (net.Conn, error) {
			if err := limit(time.Now().Add(patience)); err != nil {
				return nil, err
			}
			return s.accept(session)
		}
		if err := withStreams(ctx, spec, accept, func(all []stream) error {
			return errors.Join(limit(time.Time{}), follow(all, spec, answers))
		}); err != nil {
			return errors.Join(err, limit(time.Time{}))
		}
	}
}

// accept returns the next connection that begins with session, and closes others.
func (s *Server) accept(session uint64) (net.Conn, error) {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return nil, err
		}
		var first uint64
		err = errors.Join(c.SetReadDeadline(time.Now().Add(greeting)),
			binary.Read(c, binary.BigEndian, &first), c.SetReadDeadline(time.Time{}))
		if err == nil && first == session {
			return c, nil
		}
		_ = c.Close()
	}
}
