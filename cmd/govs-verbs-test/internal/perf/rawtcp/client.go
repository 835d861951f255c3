package rawtcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

// Client is the end that decides what is done. Its methods are for one goroutine.
type Client struct {
	addr    netip.AddrPort
	network Network
	control Conn
	session uint64
}

// Dial connects to a server. cong is the sockets' TCP_CONGESTION, empty for the
// system's.
func Dial(ctx context.Context, addr netip.AddrPort, cong string) (*Client, error) {
	return DialOver(ctx, addr, TCP(cong))
}

// DialOver connects to a server over a network.
func DialOver(ctx context.Context, addr netip.AddrPort, network Network) (*Client, error) {
	c := &Client{addr: addr, network: network}
	var err error
	if c.control, err = c.connect(ctx, 0); err != nil {
		return nil, err
	}
	h, err := hearHello(c.control)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			err = fmt.Errorf("%v is not a server of tcp-bw or tcp-lat: it closed the connection: %w", addr, err)
		} else {
			err = fmt.Errorf("waiting for the first message of %v: %w", addr, err)
		}
		return nil, errors.Join(err, c.control.Close())
	}
	c.session = h.Session
	return c, nil
}

// connect makes a connection and says what it is for.
func (c *Client) connect(ctx context.Context, session uint64) (Conn, error) {
	conn, err := c.network.Dial(ctx, c.addr)
	if err != nil {
		return nil, err
	}
	if err := tell(conn, message{Hello: &hello{Protocol: protocol, Session: session}}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Run does one run. After an error the client can only be closed.
func (c *Client) Run(ctx context.Context, spec load.Spec) (_ load.Result, err error) {
	if err := Complete(&spec); err != nil {
		return load.Result{}, err
	}
	defer until(ctx, c.control)()
	if err := tell(c.control, message{Run: &spec}); err != nil {
		return load.Result{}, err
	}
	streams := make([]stream, 0, spec.QPs)
	defer func() {
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			err = fmt.Errorf("the peer has left: %w", err)
		}
		for _, s := range streams {
			err = errors.Join(err, s.close())
		}
	}()
	for range spec.QPs {
		conn, err := c.connect(ctx, c.session)
		if err != nil {
			return load.Result{}, err
		}
		s, err := newStream(conn, spec.Poll)
		if err != nil {
			return load.Result{}, errors.Join(err, conn.Close())
		}
		streams = append(streams, s)
		defer until(ctx, conn)()
	}
	m, err := hear(c.control)
	if err == nil && !m.Go {
		err = errNotThat
	}
	if err != nil {
		return load.Result{}, err
	}
	r, err := lead(ctx, streams, spec)
	if err != nil {
		return r, err
	}
	m, err = hear(c.control)
	if err == nil && m.Done == nil {
		err = errNotThat
	}
	if err != nil {
		return r, err
	}
	r.Server = m.Done.Usage
	r.Server.AllocsPerOp /= float64(max(r.Ops, 1))
	return r, nil
}

// lead does the client's part of a run.
func lead(ctx context.Context, streams []stream, spec load.Spec) (load.Result, error) {
	message := text(spec.Size)
	warmup := uint64(max(spec.Warmup, 0))
	var r load.Result
	var m load.Meter
	if spec.Op.Latency() {
		hist := new(load.Histogram)
		if _, err := exchange(ctx, streams[0], message, warmup, 0, hist); err != nil {
			return r, fmt.Errorf("warming up: %w", err)
		}
		hist.Reset()
		m = load.StartMeter()
		ops, err := exchange(ctx, streams[0], message, uint64(spec.Iters), spec.Duration, hist)
		if err != nil {
			return r, err
		}
		r.Ops = ops
		r.Elapsed, r.Client = m.Stop(ops)
		r.Lat = hist.Latency()
		r.Octets = ops * uint64(spec.Size)
		return r, streams[0].closeWrite()
	}
	if warmup > 0 {
		if _, err := sendAll(ctx, streams, spec, message, warmup, false, new(load.Peak)); err != nil {
			return r, fmt.Errorf("warming up: %w", err)
		}
	}
	var peak load.Peak
	m = load.StartMeter()
	ops, err := sendAll(ctx, streams, spec, message, uint64(spec.Iters), true, &peak)
	if err != nil {
		return r, err
	}
	r.Ops = ops
	r.Elapsed, r.Client = m.Stop(ops)
	r.Octets = ops * uint64(spec.Size)
	r.Peak = peak.Best()
	return r, nil
}

// sendAll sends on all streams: in turn where calls don't wait, otherwise each on
// a goroutine of its own. Only the part that ends the streams is limited by time.
func sendAll(ctx context.Context, streams []stream, spec load.Spec, message []byte, n uint64, closing bool, peak *load.Peak) (uint64, error) {
	limit := spec.Duration
	if !closing {
		limit = 0
	}
	if spec.Poll == load.Spin || len(streams) == 1 {
		return send(ctx, streams, message, n, limit, closing, peak)
	}
	counts := make([]uint64, len(streams))
	// Their peaks don't come at the same time: there is none of all of them.
	err := each(streams, func(i int, one []stream) (err error) {
		counts[i], err = send(ctx, one, message, n, limit, closing, new(load.Peak))
		return err
	})
	var all uint64
	for _, k := range counts {
		all += k
	}
	return all, err
}

// each calls f for each stream at the same time.
func each(streams []stream, f func(i int, one []stream) error) error {
	errs := make([]error, len(streams))
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() { errs[i] = f(i, streams[i:i+1]) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Close ends all connections.
func (c *Client) Close() error { return c.control.Close() }
