package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// Listener waits for connection requests at an address.
type Listener struct {
	vctx *ibverbs.Context
	ch   *EventChannel
	id   *ID
	addr netip.AddrPort // of id, kept for calls after Close

	ctx  context.Context // ends with Close
	stop context.CancelFunc

	mu      sync.Mutex
	accepts sync.WaitGroup // Add under mu, and only while ctx lasts
}

// Listen listens for connection requests at addr. Port 0 lets the provider choose one; the address
// 0.0.0.0 or :: means all addresses of the system. A nil cfg means defaults. Listen does not block;
// it returns an error if ctx has ended.
//
// If the port that the provider chose for port 0 is taken, Listen tries again with another, and
// calls cfg.Setup again.
func Listen(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort, cfg *ListenConfig) (*Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, object.GaveUp(ctx, "rdma_listen", addr.String(), err, "Listen began")
	}
	if cfg == nil {
		cfg = &ListenConfig{}
	}
	if cfg.Backlog < 0 {
		return nil, object.Errorf("rdma_listen", addr.String(), syscall.EINVAL,
			"ListenConfig.Backlog is %d, and must be positive, or 0 for %d", cfg.Backlog, DefaultBacklog)
	}
	backlog := DefaultBacklog
	if cfg.Backlog != 0 {
		backlog = cfg.Backlog
	}
	for try := 1; ; try++ {
		l, called, err := listenOnce(vctx, addr, cfg, backlog)
		if err == nil || !called || try == portTries || addr.Port() != 0 || !portTaken(err) {
			return l, err
		}
	}
}

// listenOnce tries to listen at one port. called reports whether it reached the listen call.
func listenOnce(vctx *ibverbs.Context, addr netip.AddrPort, cfg *ListenConfig,
	backlog int) (l *Listener, called bool, err error) {
	ch, err := createEventChannel(vctx, object.KindListener)
	if err != nil {
		return nil, false, err
	}
	id, err := ch.CreateID(nil)
	if err != nil {
		return nil, false, also(err, ch.Close())
	}
	if err = setup(id, cfg.Setup); err == nil {
		err = id.BindAddr(addr)
	}
	if err == nil {
		err = id.sameDevice("rdma_bind_addr")
	}
	if err == nil {
		called = true
		err = id.Listen(backlog)
	}
	if err != nil {
		return nil, called, also(err, id.Close(), ch.Close())
	}
	l = &Listener{vctx: vctx, ch: ch, id: id, addr: id.LocalAddr()}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l, true, nil
}

// Addr returns the address that the listener is bound to, even after Close.
func (l *Listener) Addr() netip.AddrPort {
	if l == nil {
		return netip.AddrPort{}
	}
	return l.addr
}

// Accept waits for a connection request. It does not answer the request: inspect it, then call its
// Accept or Reject, from any goroutine, before the peer gives up. Accept may be called
// concurrently; each request goes to one caller. After Close it returns os.ErrClosed.
//
// When ctx ends, the error wraps ctx.Err(). ENODEV says that the device was removed. Any other
// error except os.ErrClosed concerns one request, and the listener goes on.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	if l == nil || l.id == nil {
		return nil, errNil("rdma_get_cm_event", "listener")
	}
	l.mu.Lock()
	if l.ctx.Err() != nil {
		l.mu.Unlock()
		return nil, l.closed()
	}
	l.accepts.Add(1)
	l.mu.Unlock()
	defer l.accepts.Done()

	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	for {
		ev, err := l.ch.next(wait)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, object.GaveUp(ctx, "rdma_get_cm_event", "listener "+l.Addr().String(), ctx.Err(), "the next request came")
		case err != nil && l.ctx.Err() != nil:
			return nil, l.closed()
		case err != nil:
			return nil, err
		case ev.Type == ConnectRequest:
			return newRequest(ev)
		case ev.Type == DeviceRemoval && ev.ID == l.id:
			return nil, ev.Err()
		}
		// Any other event belongs to a request that has not been moved to its own channel yet. If
		// that request's peer has gone, its answer fails.
	}
}

func (l *Listener) closed() error {
	return &ibverbs.Error{Op: "rdma_get_cm_event", Object: "listener", Err: os.ErrClosed}
}

// Close ends listening. Waiting calls of Accept return os.ErrClosed. Close drops requests that
// Accept has not returned, and does not affect the others.
func (l *Listener) Close() error {
	if l == nil || l.id == nil {
		return nil
	}
	l.mu.Lock()
	l.stop()
	l.mu.Unlock()
	l.accepts.Wait()
	if err := l.id.Close(); err != nil {
		return err
	}
	return l.ch.Close()
}

// Request is a connection request that waits for an answer. The program must answer it with Accept
// or Reject, or close it.
type Request struct {
	ch *EventChannel
	id *ID
	ev *Event

	mu       sync.Mutex
	answered bool
}

// newRequest gives the id of ev its own channel, so that no other goroutine gets its events.
func newRequest(ev *Event) (*Request, error) {
	ch, err := createEventChannel(ev.ID.vctx, object.KindRequest)
	if err != nil {
		return nil, also(err, refuse(ev.ID, nil))
	}
	if err := ev.ID.Migrate(ch); err != nil {
		return nil, also(err, refuse(ev.ID, nil), ch.Close())
	}
	return &Request{ch: ch, id: ev.ID, ev: ev}, nil
}

// refuse rejects and closes an id.
func refuse(id *ID, private []byte) error {
	return errors.Join(id.Reject(private), id.Close())
}

// event returns the event of the request, or an empty one if there is none.
func (r *Request) event() *Event {
	if r == nil || r.ev == nil {
		return &Event{}
	}
	return r.ev
}

// PrivateData returns the private data of the peer's request. All calls return the same slice.
func (r *Request) PrivateData() []byte { return r.event().PrivateData }

// LocalAddr returns the address that the peer connected to.
func (r *Request) LocalAddr() netip.AddrPort { return r.event().ID.LocalAddr() }

// RemoteAddr returns the peer's address.
func (r *Request) RemoteAddr() netip.AddrPort { return r.event().ID.RemoteAddr() }

// ResponderResources returns how many RDMA Reads the peer wants to have outstanding (its ORD). 0
// also means that the peer did not say (MPA revision 1).
func (r *Request) ResponderResources() int { return r.event().ResponderResources }

// InitiatorDepth returns how many RDMA Reads we may have outstanding (the peer's IRD). 0 also means
// that the peer did not say.
func (r *Request) InitiatorDepth() int { return r.event().InitiatorDepth }

// RDMAC reports whether the connection will speak the RDMA Consortium's version of the
// protocols, as [Event].RDMAC says.
func (r *Request) RDMAC() bool { return r.event().RDMAC }

// Accept makes the QP and accepts the request. A nil cfg means defaults. If Accept fails, the
// request cannot be used again; Accept rejects it if the reply has not been sent.
func (r *Request) Accept(ctx context.Context, cfg *ConnConfig) (*Conn, error) {
	if cfg == nil {
		cfg = &ConnConfig{}
	}
	if err := r.answer("rdma_accept"); err != nil {
		return nil, err
	}
	r.ch.obj.Become(object.KindConn)
	c, err := newConn(r.ch, r.id, cfg)
	c.offered(r.ev)
	var param *ConnParam
	if err == nil {
		param, err = c.prepare(ctx, cfg, r.ev.ResponderResources, r.ev.InitiatorDepth)
	}
	if err == nil {
		err = ctx.Err()
	}
	gaveUp := func(err error) error {
		return object.GaveUp(ctx, "rdma_accept", r.id.peer(), err, "the connection was accepted")
	}
	if err != nil {
		err = gaveUp(err)
		_ = r.id.Reject(nil)
		return nil, c.failed(ctx, err)
	}
	if err = r.id.Accept(param); err != nil {
		_ = r.id.Reject(nil) // fails if the reply has been sent
		return nil, c.failed(ctx, err)
	}
	if _, err = r.id.await(ctx, Established); err != nil {
		return nil, c.failed(ctx, gaveUp(err))
	}
	c.established(r.ev)
	return c, nil
}

// Reject refuses the request and frees it, even if it returns an error. private goes to the peer
// with the reply; Reject does not keep it.
func (r *Request) Reject(private []byte) error {
	if err := r.answer("rdma_reject"); err != nil {
		return err
	}
	return errors.Join(refuse(r.id, private), r.ch.Close())
}

// Close rejects the request without private data if it has not been answered, and otherwise does
// nothing, so it can be deferred.
func (r *Request) Close() error {
	if r.answer("rdma_reject") != nil {
		return nil
	}
	return errors.Join(refuse(r.id, nil), r.ch.Close())
}

// answer claims the right to answer the request, which only one call gets.
func (r *Request) answer(op string) error {
	if r == nil || r.id == nil {
		return errNil(op, "request")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answered {
		return object.Errorf(op, r.id.peer(), syscall.EINVAL,
			"the request has been answered; call one of Accept, Reject and Close, once")
	}
	r.answered = true
	return nil
}
