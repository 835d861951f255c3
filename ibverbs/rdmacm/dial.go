package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// Dial connects to addr over the device of vctx. A nil cfg means defaults. Port 0 is EINVAL.
//
// If the peer refuses, the error contains a [*RejectedError] with its private data. If no program
// listens, the error may be a [*RejectedError] without private data. An address that is reached
// over a device other than vctx's is EINVAL, and the error names both devices.
//
// If the local port that the provider chose is taken, Dial tries again with another, and calls
// cfg.Setup and cfg.Prepare again.
//
// On iWARP Dial then sends an empty RDMA Write, so that the accepting side may send at once, and
// waits until the Write has completed: see ConnConfig.NoOpeningWrite.
//
// When ctx ends, Dial returns an error that wraps ctx.Err(). The kernel keeps a connection that the
// peer has not answered yet, so its resources are freed later, with siw after at most 10 seconds.
func Dial(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort, cfg *ConnConfig) (*Conn, error) {
	if cfg == nil {
		cfg = &ConnConfig{}
	}
	if err := ctx.Err(); err != nil {
		return nil, object.GaveUp(ctx, "rdma_connect", addr.String(), err, "Dial began")
	}
	if addr.IsValid() && addr.Port() == 0 {
		return nil, noPort(addr.String())
	}
	for try := 1; ; try++ {
		c, called, err := dialOnce(ctx, vctx, addr, cfg)
		if err == nil || !called || try == portTries || cfg.LocalAddr.Port() != 0 || !portTaken(err) {
			until := "the address was resolved"
			if called {
				until = "the peer answered"
			}
			return c, object.GaveUp(ctx, "rdma_connect", addr.String(), err, until)
		}
	}
}

// noPort returns the error of Dial for port 0. Without this check, TCP refuses the connection as if
// a listener were missing.
func noPort(address string) error {
	return object.Errorf("rdma_connect", address, syscall.EINVAL,
		"port 0 can't be dialled; Listen chooses a free port for it, which Listener.Addr returns")
}

// portTries is how often Dial and Listen let the provider choose a local port.
const portTries = 8

// portTaken reports whether a connect or listen call failed because of its local port. The kernel
// chooses a port that no rdma_cm_id has. Only when siw connects or listens does it find that TCP
// has a socket there, or the remains of a connection (kernel-notes/siw-port-zero.md).
func portTaken(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL)
}

// dialOnce tries to connect with one local port. called reports whether it reached the connect
// call.
func dialOnce(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort, cfg *ConnConfig) (c *Conn, called bool, err error) {
	ch, err := createEventChannel(vctx, object.KindConn)
	if err != nil {
		return nil, false, err
	}
	id, err := ch.CreateID(nil)
	if err != nil {
		return nil, false, also(err, ch.Close())
	}
	err = setup(id, cfg.Setup)
	if err == nil {
		err = resolve(ctx, id, addr, cfg)
	}
	if err != nil {
		return nil, false, also(err, id.Close(), ch.Close())
	}
	c, err = newConn(ch, id, cfg)
	if err == nil {
		called = true
		err = c.connect(ctx, cfg)
	}
	if err != nil {
		return nil, called, c.failed(ctx, err)
	}
	return c, called, nil
}

// setup calls f, if not nil, with a new id.
func setup(id *ID, f func(*ID) error) error {
	if f == nil {
		return nil
	}
	return callback(func() error { return f(id) }, func() {
		_ = id.Close()
		_ = id.Channel().Close()
	})
}

// callback calls f, a function of the program. If f does not return, because it panics or ends the
// goroutine, callback calls undo, because nothing else can reach what undo closes. The panic goes
// on.
func callback(f func() error, undo func()) (err error) {
	returned := false
	defer func() {
		if !returned {
			undo()
		}
	}()
	err = f()
	returned = true
	return err
}

// resolve finds device and route to addr.
func resolve(ctx context.Context, id *ID, addr netip.AddrPort, cfg *ConnConfig) error {
	timeout := cfg.ResolveTimeout
	if timeout == 0 {
		timeout = DefaultResolveTimeout
	}
	if err := id.ResolveAddr(cfg.LocalAddr, addr, timeout); err != nil {
		return err
	}
	if _, err := id.await(ctx, AddrResolved); err != nil {
		return err
	}
	if err := id.sameDevice("rdma_resolve_addr"); err != nil {
		return err
	}
	if err := id.ResolveRoute(timeout); err != nil {
		return err
	}
	_, err := id.await(ctx, RouteResolved)
	return err
}

// connect sends the request and waits for the answer.
func (c *Conn) connect(ctx context.Context, cfg *ConnConfig) error {
	param, err := c.prepare(ctx, cfg, -1, -1)
	if err != nil {
		return err
	}
	// The call may take minutes on kernel devices. Closing the QP ends it.
	called := make(chan error, 1)
	go func() { called <- c.id.Connect(param) }()
	select {
	case err = <-called:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	ev, err := c.id.await(ctx, Established)
	if err != nil {
		return err
	}
	c.established(ev)
	return c.open(ctx, cfg)
}

// open sends an empty RDMA Write, so that the accepting side may send: it has to wait for our first
// FPDU (RFC 5044 section 7.1.2, rule 4). The peer checks and places nothing (RFC 5041 section 5.2).
// open waits for the completion, so that the program finds send queue and CQ empty. Dial ignores
// the Write's outcome: if the connection has ended, the program's first work request says so.
func (c *Conn) open(ctx context.Context, cfg *ConnConfig) error {
	if cfg.NoOpeningWrite || c.vctx.Transport() != ibverbs.TransportIWARP {
		return nil
	}
	wait := ctx
	if c.watchedFromStart() {
		// siw may never complete work that is posted when the peer has just gone.
		var cancel context.CancelFunc
		wait, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(c.watched(), cancel)()
	}
	if err := object.Mark(wait, c.qp); err != nil {
		return object.GaveUp(ctx, "rdma_connect", c.peer(), ctx.Err(), "the opening Write had completed")
	}
	return nil
}

// patience is how long a failed Dial or Accept whose context has ended waits until everything is
// freed. It is ample unless something blocks.
const patience = 100 * time.Millisecond

// failed closes a Conn whose Dial or Accept failed with err, and returns err.
func (c *Conn) failed(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return also(err, c.Close())
	}
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	select {
	case more := <-closed:
		return also(err, more)
	case <-time.After(patience):
		return err
	}
}

// prepare makes the parameters and calls cfg.Prepare. The offers are the peer's, negative if there
// is no peer yet.
func (c *Conn) prepare(ctx context.Context, cfg *ConnConfig, offeredIRD, offeredORD int) (*ConnParam, error) {
	attr, err := c.vctx.Query()
	if err != nil {
		return nil, err
	}
	param := &ConnParam{
		PrivateData:        cfg.PrivateData,
		ResponderResources: depth(cfg.ResponderResources, attr.MaxQPRdAtom, offeredIRD),
		InitiatorDepth:     depth(cfg.InitiatorDepth, attr.MaxQPInitRdAtom, offeredORD),
	}
	if cfg.Prepare == nil {
		return param, nil
	}
	err = callback(func() error { return cfg.Prepare(ctx, c, param) }, func() {
		_ = c.id.Reject(nil) // fails at the end that dials
		_ = c.Close()
	})
	return param, err
}

// await reads the id's channel until the event want comes, or an event that rules it out. Nothing
// else reads the channel.
func (id *ID) await(ctx context.Context, want EventType) (*Event, error) {
	ch := id.Channel()
	for {
		ev, err := ch.next(ctx)
		if err != nil {
			return nil, err
		}
		if ev.Type == want {
			return ev, nil
		}
		if err := ev.Err(); err != nil {
			return nil, err
		}
		if ev.Type == Disconnected {
			return nil, &ibverbs.Error{Op: "rdma_connect", Object: id.peer(), Err: syscall.ECONNRESET}
		}
	}
}

// also returns err, joined with the errors of cleaning up, if any.
func also(err error, cleanup ...error) error {
	if more := errors.Join(cleanup...); more != nil {
		return errors.Join(err, more)
	}
	return err
}
