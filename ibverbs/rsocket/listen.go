package rsocket

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/attempt"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
)

// Listener waits for connections. It is a [net.Listener].
type Listener struct {
	vctx    *ibverbs.Context
	l       *rdmacm.Listener
	cfg     Config
	refused func(netip.AddrPort, error)
	limit   time.Duration // answerLimit

	mu       sync.Mutex
	deadline time.Time
	timer    *time.Timer
	waiting  map[*acceptance]struct{}
	closed   bool
}

// acceptance is a running Accept. end ends its wait for a request, and stop also its answer to one.
// Only Close calls stop, because the peer would see a refusal.
type acceptance struct{ end, stop context.CancelCauseFunc }

// answerLimit is how long Accept waits at most until a peer's connection is established. Most are
// when the reply is sent. Without a limit, one that a device forgets would keep all later peers
// waiting forever.
const answerLimit = 10 * time.Second

// Listen listens for connections over the device of vctx, with the defaults of ListenConfig.
func Listen(
	ctx context.Context, vctx *ibverbs.Context, network, address string,
) (*Listener, error) {
	return new(ListenConfig).Listen(ctx, vctx, network, address)
}

// Listen listens for connections over the device of vctx. network and address are in the form of
// [net.Listen]: the network is "tcp", "tcp4" or "tcp6", the address "host:port". host is a name or
// an address. An IPv6 address is in brackets, with a zone if it is link-local. port is a number or
// the name of a service. Port 0, or none, means a free port. No host means every address of the
// system; with "tcp6" only the IPv6 addresses. Of a name's addresses, Listen uses the first that
// belongs to the system. ctx limits the look-up of names. A nil lc is the zero value.
func (lc *ListenConfig) Listen(
	ctx context.Context, vctx *ibverbs.Context, network, address string,
) (*Listener, error) {
	failed := func(at net.Addr, err error) error {
		return &net.OpError{Op: "listen", Net: netName, Addr: at, Err: timedOut(err)}
	}
	if lc == nil {
		lc = &ListenConfig{}
	}
	if err := supported(vctx); err != nil {
		return nil, failed(spelled(address), err)
	}
	addrs, err := rdmacm.GetAddrInfo(ctx, address,
		&rdmacm.AddrInfoHints{Passive: true, Network: network})
	if err != nil {
		return nil, failed(spelled(address), err)
	}
	return attempt.Each(ctx, addrs,
		func(_ context.Context, addr netip.AddrPort) (*Listener, error) {
			l, err := lc.listen(ctx, vctx, network, addr)
			if err != nil {
				return nil, failed(addrOf(addr), err)
			}
			return l, nil
		})
}

func (lc *ListenConfig) listen(
	ctx context.Context, vctx *ibverbs.Context, network string, addr netip.AddrPort,
) (*Listener, error) {
	cfg, err := lc.Config.settings(vctx)
	if err != nil {
		return nil, err
	}
	rc := &rdmacm.ListenConfig{Backlog: lc.Backlog}
	if network == "tcp6" && addr.Addr().IsUnspecified() {
		rc.Setup = func(id *rdmacm.ID) error { return id.SetOption(rdmacm.OptionAFOnly, 1) }
	}
	rl, err := rdmacm.Listen(ctx, vctx, addr, rc)
	if err != nil {
		return nil, err
	}
	return &Listener{vctx: vctx, l: rl, cfg: cfg, refused: lc.Refused, limit: answerLimit,
		waiting: make(map[*acceptance]struct{})}, nil
}

// Addr returns the address that the listener is bound to, a [*net.TCPAddr].
func (l *Listener) Addr() net.Addr {
	if l.ok() != nil {
		return nil
	}
	return addrOf(l.l.Addr())
}

// Accept waits for the next connection. The error is a [*net.OpError] that contains net.ErrClosed
// after Close, os.ErrDeadlineExceeded after the deadline, or a device error that concerns the
// listener. A peer that does not get its connection does not end Accept: see ListenConfig.Refused.
// If the deadline passes while Accept answers a peer, Accept returns that peer's connection. A peer
// has 10 seconds to establish it.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptContext(context.Background())
	if err != nil {
		return nil, err
	}
	return c, nil
}

// AcceptContext waits for the next connection, as Accept does, until ctx ends. The end of ctx has
// the same effect as the deadline.
func (l *Listener) AcceptContext(ctx context.Context) (*Conn, error) {
	c, err := l.accept(ctx)
	if err != nil {
		return nil, &net.OpError{Op: "accept", Net: netName, Addr: l.Addr(), Err: err}
	}
	return c, nil
}

func (l *Listener) accept(parent context.Context) (*Conn, error) {
	if err := l.ok(); err != nil {
		return nil, err
	}
	ctx, end := context.WithCancelCause(parent)
	defer end(nil)
	answering, stop := context.WithCancelCause(context.WithoutCancel(parent))
	defer stop(nil)
	a := &acceptance{end, stop}
	if err := l.begin(a); err != nil {
		return nil, err
	}
	defer l.finish(a)
	for {
		req, err := l.l.Accept(ctx)
		if err != nil {
			switch cause := context.Cause(ctx); {
			case parent.Err() != nil:
				return nil, timedOut(parent.Err())
			case cause != nil:
				return nil, cause
			case errors.Is(err, os.ErrClosed):
				return nil, net.ErrClosed
			}
			if !l.goesOn(err) {
				return nil, err
			}
			l.refuse(netip.AddrPort{}, err)
			continue
		}
		peer := req.RemoteAddr()
		c, err := l.answer(answering, req)
		if err == nil {
			return c, nil
		}
		if cause := context.Cause(answering); cause != nil {
			return nil, cause
		}
		l.refuse(peer, err)
	}
}

// goesOn reports whether err concerns one request only.
func (l *Listener) goesOn(err error) bool {
	return !errors.Is(err, os.ErrClosed) && !errors.Is(err, syscall.ENODEV)
}

func (l *Listener) refuse(peer netip.AddrPort, err error) {
	if l.refused != nil {
		l.refused(peer, err)
	}
}

// answer accepts a request if the peer speaks rsocket.
func (l *Listener) answer(ctx context.Context, req *rdmacm.Request) (*Conn, error) {
	defer req.Close()
	ctx, cancel := context.WithTimeout(ctx, l.limit)
	defer cancel()
	hello, err := proto.ParseHello(req.PrivateData())
	if err != nil {
		return nil, err
	}
	p, err := newParts(l.vctx, l.cfg)
	if err != nil {
		return nil, err
	}
	p.answers = req
	if p.conn, err = req.Accept(ctx, p.connConfig()); err != nil {
		return nil, errors.Join(err, p.free())
	}
	return newConn(p, hello, true), nil
}

// begin registers an Accept, so that a deadline or Close can end it.
func (l *Listener) begin(a *acceptance) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return net.ErrClosed
	case !l.deadline.IsZero() && !time.Now().Before(l.deadline):
		return os.ErrDeadlineExceeded
	}
	l.waiting[a] = struct{}{}
	return nil
}

func (l *Listener) finish(a *acceptance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, a)
}

// endAll ends all Accepts that wait for a request. The caller holds mu.
func (l *Listener) endAll(why error) {
	for a := range l.waiting {
		a.end(why)
	}
}

// SetDeadline sets the time at which Accept fails with os.ErrDeadlineExceeded, even an Accept that
// is already waiting. Zero means never.
func (l *Listener) SetDeadline(t time.Time) error {
	if err := l.ok(); err != nil {
		return &net.OpError{Op: "set", Net: netName, Err: err}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return &net.OpError{Op: "set", Net: netName, Addr: l.Addr(), Err: net.ErrClosed}
	}
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.deadline = t
	if t.IsZero() {
		return nil
	}
	left := time.Until(t)
	if left <= 0 {
		l.endAll(os.ErrDeadlineExceeded)
		return nil
	}
	l.timer = time.AfterFunc(left, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.deadline.Equal(t) {
			l.endAll(os.ErrDeadlineExceeded)
		}
	})
	return nil
}

// Close ends listening. Waiting calls of Accept return net.ErrClosed. Connections that Accept has
// returned are not affected.
func (l *Listener) Close() error {
	if err := l.ok(); err != nil {
		return &net.OpError{Op: "close", Net: netName, Err: err}
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return &net.OpError{Op: "close", Net: netName, Addr: l.Addr(), Err: net.ErrClosed}
	}
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	l.endAll(net.ErrClosed)
	for a := range l.waiting {
		a.stop(net.ErrClosed)
	}
	l.mu.Unlock()
	return l.l.Close()
}
