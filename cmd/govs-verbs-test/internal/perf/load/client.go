package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// Client is the end that chooses the runs. Its methods are for one goroutine.
type Client struct {
	vctx *ibverbs.Context
	addr netip.AddrPort
	pd   *ibverbs.PD
	ctl  control
	peer hello
	end  *end // nil before the first run
}

// Dial connects to a server. self describes this end to the server.
func Dial(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort, self End) (_ *Client, err error) {
	c := &Client{vctx: vctx, addr: addr}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.pd, err = vctx.AllocPD(); err != nil {
		return nil, err
	}
	cfg, err := c.ctl.config(c.pd, controlHello)
	if err != nil {
		return nil, err
	}
	if c.ctl.conn, err = rdmacm.Dial(ctx, vctx, addr, cfg); err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", addr, refusal(err))
	}
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := c.ctl.tell(ctx, message{Hello: &hello{End: self}}); err != nil {
		return nil, err
	}
	m, err := c.ctl.hear(ctx)
	if err != nil {
		return nil, err
	}
	if m.Hello == nil {
		return nil, errNotThat
	}
	c.peer = *m.Hello
	return c, nil
}

var errNotThat = errors.New("the peer answered with another message than this command expects: " +
	"use the same version at both ends")

// refusal adds to the error of Dial why the server refused, and a remedy.
func refusal(err error) error {
	var rejected *rdmacm.RejectedError
	switch {
	case !errors.As(err, &rejected):
	case len(rejected.PrivateData) == 0:
		return fmt.Errorf("a server of perf is needed there (the same command with --listen): %w", err)
	case string(rejected.PrivateData) == busyText:
		return fmt.Errorf("the server is %s: %w", busyText, err)
	case Printable(rejected.PrivateData):
		return fmt.Errorf("the server says %q, and has to be one of perf: %w", rejected.PrivateData, err)
	}
	return err
}

// Printable reports whether the private data of a refusal is a printable text.
func Printable(data []byte) bool {
	return utf8.Valid(data) && !bytes.ContainsFunc(data, func(r rune) bool { return !unicode.IsPrint(r) })
}

// Peer returns the server's description.
func (c *Client) Peer() End { return c.peer.End }

// Run does one run. It keeps the connections for the next run if only the length of the run
// differs. After an error the client can only be closed.
func (c *Client) Run(ctx context.Context, spec Spec) (Result, error) {
	if err := spec.Complete(); err != nil {
		return Result{}, err
	}
	if err := c.setUp(ctx, spec); err != nil {
		return Result{}, err
	}
	r, err := c.end.lead(ctx)
	if err != nil {
		return Result{}, c.why(ctx, err)
	}
	m, err := c.ctl.hear(ctx)
	if err != nil {
		return Result{}, err
	}
	if m.Done == nil {
		return Result{}, errNotThat
	}
	r.Ops += m.Done.Ops
	r.Octets = r.Ops * uint64(spec.Size)
	r.Server = m.Done.Usage
	r.Server.AllocsPerOp /= float64(max(r.Ops, 1))
	return r, c.end.verify()
}

// why waits briefly for the server's message about a failed run.
func (c *Client) why(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if m, said := c.ctl.hear(ctx); said != nil && ctx.Err() == nil && !errors.Is(said, errLeft) {
		return errors.Join(said, err)
	} else if m.Done != nil {
		return fmt.Errorf("only this end has failed: %w", err)
	}
	return err
}

// setUp agrees with the server on a run, and makes the connections for it.
func (c *Client) setUp(ctx context.Context, spec Spec) (err error) {
	o := order{Spec: spec, Seed: rand.Uint64()}
	if o.New = c.end == nil || !sameConnections(c.end.spec, spec); o.New {
		if c.end != nil {
			if err := c.end.close(); err != nil {
				return err
			}
			c.end = nil
		}
		if c.end, err = newEnd(c.vctx, c.pd, spec, false); err != nil {
			return err
		}
	}
	e := c.end
	e.spec = spec
	e.mem.prepare(o.Seed)
	o.Table = e.mem.table()
	if err := c.ctl.tell(ctx, message{Run: &o}); err != nil {
		return err
	}
	m, err := c.ctl.hear(ctx)
	if err != nil {
		return err
	}
	if m.Ready == nil {
		return errNotThat
	}
	if o.New {
		if e.remote, err = c.ctl.readTable(ctx, c.pd, m.Ready.Table, spec.MRs, uint64(e.mem.octets())); err != nil {
			return err
		}
		if err := c.connect(ctx); err != nil {
			return err
		}
	}
	if m, err = c.ctl.hear(ctx); err != nil {
		return err
	}
	if !m.Go {
		return errNotThat
	}
	return nil
}

// connect makes the data connections.
func (c *Client) connect(ctx context.Context) error {
	e := c.end
	for n := range e.lanes {
		cfg := e.config(c.pd, n)
		cfg.PrivateData = dataPrivate(c.peer.Session, n)
		conn, err := rdmacm.Dial(ctx, c.vctx, c.addr, cfg)
		if err != nil {
			return fmt.Errorf("connection %d of %d to %s: %w", n+1, len(e.lanes), c.addr, refusal(err))
		}
		e.conns = append(e.conns, conn)
	}
	return e.connected()
}

// lead does the client's part of a run.
func (e *end) lead(ctx context.Context) (Result, error) {
	spec := &e.spec
	if err := e.greet(ctx); err != nil {
		return Result{}, err
	}
	e.run.hist = new(Histogram)
	warmup := uint64(max(spec.Warmup, 0))
	if warmup > 0 {
		if _, err := e.part(ctx, warmup, 0); err != nil {
			return Result{}, fmt.Errorf("warming up: %w", err)
		}
		e.run.hist.Reset()
	}
	m := StartMeter()
	ops, err := e.part(ctx, uint64(spec.Iters), spec.Duration)
	if err != nil {
		return Result{}, err
	}
	r := Result{Ops: ops, Lat: e.run.hist.Latency(), Peak: e.run.peak.Best()}
	r.Elapsed, r.Client = m.Stop(ops)
	if spec.Op.Latency() {
		r.Elapsed = e.run.hist.sum
	}
	return r, nil
}

// part does one of the two stretches of a run. It returns the number of messages that this end
// posted, or of round trips.
func (e *end) part(ctx context.Context, n uint64, limit time.Duration) (uint64, error) {
	if e.spec.Op.Latency() {
		return e.pings(ctx, n, limit)
	}
	before := e.posted()
	e.begin(n, limit)
	err := e.stream(ctx)
	return e.posted() - before, err
}

// posted returns the number of messages posted on all lanes so far.
func (e *end) posted() (n uint64) {
	for i := range e.lanes {
		n += e.lanes[i].posted
	}
	return n
}

// Close ends all connections.
func (c *Client) Close() error {
	var errs []error
	if c.end != nil {
		errs = append(errs, c.end.close())
	}
	errs = append(errs, c.ctl.close())
	if c.pd != nil {
		errs = append(errs, c.pd.Close())
	}
	return errors.Join(errs...)
}
