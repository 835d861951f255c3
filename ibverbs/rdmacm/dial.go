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
// A peer that refuses is a [*RejectedError] with its private data; where nobody
// listens, it may be one without. An address that leads over another device
// than that of vctx is EINVAL and names both.
//
// Where the provider's choice of a local port turns out to be taken, Dial tries
// again with another, and calls cfg.Prepare again for it.
//
// On iWARP, Dial then sends an empty RDMA Write, so that the accepting side may send at once,
// and waits until the Write has completed: see ConnConfig.NoOpeningWrite.
//
// When ctx ends Dial breaks off with an error that wraps ctx.Err(). The kernel does not let
// go of a connection that the peer has not answered yet: what was made for it
// is then freed later, with siw after 10 seconds at most.
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

// noPort is the error of Dial for port 0. Without it, TCP refuses the connection as if a listener
// were missing.
func noPort(address string) error {
	return object.Errorf("rdma_connect", address, syscall.EINVAL,
		"port 0 is no port to dial: it has Listen take one that is free, which Listener.Addr returns")
}

// portTries is how often Dial and Listen let the provider choose a local port.
const portTries = 8

// portTaken reports whether a connect or listen call failed for its local port. The kernel takes
// the port from those that no rdma_cm_id has, and siw finds out only when it connects or listens
// that TCP has a socket, or the remains of a connection, there (kernel-notes/siw-port-zero.md).
func portTaken(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL)
}

// dialOnce is Dial with one local port. called says whether it came to the
// connect call.
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

// setup lets the program see to an id that is new.
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
// goroutine, callback calls undo: nobody else has what undo closes. The panic goes on.
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

// connect asks for the connection and waits for the answer.
func (c *Conn) connect(ctx context.Context, cfg *ConnConfig) error {
	param, err := c.prepare(ctx, cfg, -1, -1)
	if err != nil {
		return err
	}
	// The call may take minutes with the kernel. Closing the QP ends it.
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

// open sends an empty RDMA Write, so that the accepting side may send: it has to wait for our
// first FPDU (RFC 5044 section 7.1.2, rule 4). The peer checks and places nothing (RFC 5041
// section 5.2). What becomes of the Write changes nothing for Dial: where the connection has
// ended by now, the program's first work request says so.
func (c *Conn) open(ctx context.Context, cfg *ConnConfig) error {
	if cfg.NoOpeningWrite || c.vctx.Transport() != ibverbs.TransportIWARP {
		return nil
	}
	wait := ctx
	if c.watchedFromStart() {
		// siw may never complete what is posted when the peer has just gone.
		var cancel context.CancelFunc
		wait, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(c.watched(), cancel)()
	}
	if err := object.OpenStream(wait, c.qp); err != nil {
		return object.GaveUp(ctx, "rdma_connect", c.peer(), ctx.Err(), "the opening Write had completed")
	}
	return nil
}

// patience is how long a failed Dial or Accept whose context has ended waits for
// everything to be freed. It is more than enough if nothing is in the way.
const patience = 100 * time.Millisecond

// failed closes a Conn that did not come about because of err, which it returns.
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

// prepare puts the parameters together and lets the program see to the rest.
// The offers are the peer's, negative if there is none.
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

// await reads the id's channel, which nobody else does, until the event that is
// wanted, or one that says that it won't come.
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

// also returns err, joined with the errors of cleaning up if there were any.
func also(err error, cleanup ...error) error {
	if more := errors.Join(cleanup...); more != nil {
		return errors.Join(err, more)
	}
	return err
}
