package mutants

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync"

	"github.com/govs-rdma/govs/provider/engine/transport"
)

// networkFault changes how streams are made. Each may be nil.
type networkFault struct {
	bind   func(local netip.AddrPort) error
	dialed func(err error) error // replaces the error of a failed Dial
	accept func() (keep bool)    // called for each stream that a listener has accepted
}

// network is a Network whose streams have a fault.
type network struct {
	transport.Network
	world  *world
	mutant *Mutant
	fault  networkFault

	mu   sync.Mutex
	kept []transport.Conn // that a fault did not let the engine close
}

// Bind implements transport.Network.
func (n *network) Bind(local netip.AddrPort) (transport.Binding, error) {
	if n.fault.bind != nil {
		if err := n.fault.bind(local); err != nil {
			return nil, err
		}
	}
	b, err := n.Network.Bind(local)
	if err != nil {
		return nil, err
	}
	return &binding{b, n}, nil
}

// Listen implements transport.Network.
func (n *network) Listen(local netip.AddrPort, backlog int) (transport.Listener, error) {
	if n.fault.bind != nil {
		if err := n.fault.bind(local); err != nil {
			return nil, err
		}
	}
	l, err := n.Network.Listen(local, backlog)
	if err != nil {
		return nil, err
	}
	return &listener{l, n}, nil
}

// Dial implements transport.Network.
func (n *network) Dial(ctx context.Context, src, dst netip.AddrPort) (transport.Conn, error) {
	c, err := n.Network.Dial(ctx, src, dst)
	return n.dialed(c, err)
}

func (n *network) dialed(c transport.Conn, err error) (transport.Conn, error) {
	if err != nil {
		if n.fault.dialed != nil {
			err = n.fault.dialed(err)
		}
		return nil, err
	}
	return newConn(n, c, true), nil
}

// NewPoller implements transport.Network.
func (n *network) NewPoller() (transport.Poller, error) {
	p, err := n.Network.NewPoller()
	if err != nil {
		return nil, err
	}
	return &poller{Poller: p, watched: make(map[*conn]*watch)}, nil
}

// keep takes a stream that stays open after the engine has closed it.
func (n *network) keep(c transport.Conn) {
	n.mu.Lock()
	n.kept = append(n.kept, c)
	n.mu.Unlock()
}

// release closes what was kept.
func (n *network) release() {
	n.mu.Lock()
	kept := n.kept
	n.kept = nil
	n.mu.Unlock()
	for _, c := range kept {
		_ = c.Abort()
	}
}

type binding struct {
	transport.Binding
	n *network
}

// Dial implements transport.Binding.
func (b *binding) Dial(ctx context.Context, dst netip.AddrPort) (transport.Conn, error) {
	c, err := b.Binding.Dial(ctx, dst)
	return b.n.dialed(c, err)
}

// Listen implements transport.Binding.
func (b *binding) Listen(backlog int) (transport.Listener, error) {
	l, err := b.Binding.Listen(backlog)
	if err != nil {
		return nil, err
	}
	return &listener{l, b.n}, nil
}

type listener struct {
	transport.Listener
	n *network
}

// Accept implements transport.Listener.
func (l *listener) Accept(ctx context.Context) (transport.Conn, error) {
	for {
		c, err := l.Listener.Accept(ctx)
		if err != nil {
			return nil, err
		}
		if f := l.n.fault.accept; f != nil && !f() {
			_ = c.Abort()
			continue
		}
		return newConn(l.n, c, false), nil
	}
}

// poller makes the network's own poller watch the network's own streams. It also reports what a
// conn holds back: octets that have arrived and that the engine has not read, which the socket no
// longer reports, and octets that the engine has written and the socket has not taken.
type poller struct {
	transport.Poller

	mu      sync.Mutex
	watched map[*conn]*watch
}

// watch is a stream that the engine has given to the poller. It is the handler
// that the network's own poller knows.
type watch struct {
	p *poller
	c *conn
	h transport.Handler

	mu          sync.Mutex
	read, write bool // what the engine wants reports of
	flushing    bool // the conn has octets for the socket
	removed     bool
}

// Add implements transport.Poller.
func (p *poller) Add(c transport.Conn, h transport.Handler) error {
	own, ok := c.(*conn)
	if !ok {
		return errors.New("mutants: a stream of another network")
	}
	w := &watch{p: p, c: own, h: h, read: true}
	if err := p.Poller.Add(own.Conn, w); err != nil {
		return err
	}
	p.mu.Lock()
	p.watched[own] = w
	p.mu.Unlock()
	own.watchedBy(w)
	if own.holdsBack() {
		p.Wake()
	}
	return nil
}

// Remove implements transport.Poller.
func (p *poller) Remove(c transport.Conn) {
	own, ok := c.(*conn)
	if !ok {
		return
	}
	p.forget(own)
	p.Poller.Remove(own.Conn)
}

func (p *poller) forget(c *conn) {
	p.mu.Lock()
	w := p.watched[c]
	delete(p.watched, c)
	p.mu.Unlock()
	if w != nil {
		w.mu.Lock()
		w.removed = true
		w.mu.Unlock()
		c.watchedBy(nil)
	}
}

func (p *poller) find(c transport.Conn) *watch {
	own, ok := c.(*conn)
	if !ok {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.watched[own]
}

// WantRead implements transport.Poller.
func (p *poller) WantRead(c transport.Conn, on bool) error {
	w := p.find(c)
	if w == nil {
		return p.Poller.WantRead(inner(c), on)
	}
	w.mu.Lock()
	w.read = on
	err := p.Poller.WantRead(w.c.Conn, on)
	w.mu.Unlock()
	if on && w.c.holdsBack() {
		p.Wake()
	}
	return err
}

// WantWrite implements transport.Poller.
func (p *poller) WantWrite(c transport.Conn, on bool) error {
	w := p.find(c)
	if w == nil {
		return p.Poller.WantWrite(inner(c), on)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.write = on
	return p.Poller.WantWrite(w.c.Conn, w.write || w.flushing)
}

func inner(c transport.Conn) transport.Conn {
	if own, ok := c.(*conn); ok {
		return own.Conn
	}
	return c
}

// Poll implements transport.Poller.
func (p *poller) Poll() int { return p.Poller.Poll() + p.late() }

// Serve implements transport.Poller.
func (p *poller) Serve() int { return p.Poller.Serve() + p.late() }

// late serves the streams that hold octets back, and returns how many these are.
func (p *poller) late() (n int) {
	for _, w := range p.heldBack() {
		w.h.Ready(true, false)
		n++
	}
	return n
}

// Wait implements transport.Poller.
func (p *poller) Wait(ctx context.Context) error {
	if len(p.heldBack()) > 0 {
		return ctx.Err()
	}
	return p.Poller.Wait(ctx)
}

// heldBack returns the streams that hold back octets from a handler that wants to read.
func (p *poller) heldBack() []*watch {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []*watch
	for c, w := range p.watched {
		w.mu.Lock()
		wants := w.read && !w.removed
		w.mu.Unlock()
		if wants && c.holdsBack() {
			list = append(list, w)
		}
	}
	return list
}

// Close implements transport.Poller.
func (p *poller) Close() error {
	p.mu.Lock()
	clear(p.watched)
	p.mu.Unlock()
	return p.Poller.Close()
}

// Ready implements transport.Handler. The network's poller also calls it for room in the socket
// that only the conn waited for.
func (w *watch) Ready(readable, writable bool) {
	if writable {
		w.c.resume()
		w.mu.Lock()
		writable = w.write && !w.flushing
		w.mu.Unlock()
	}
	w.mu.Lock()
	readable = readable && w.read
	removed := w.removed
	w.mu.Unlock()
	if !removed && (readable || writable) {
		w.h.Ready(readable, writable)
	}
}

// flush records whether the conn waits for room in the socket.
func (w *watch) flush(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.flushing == on || w.removed {
		return
	}
	w.flushing = on
	if err := w.p.Poller.WantWrite(w.c.Conn, w.write || on); err != nil && !errors.Is(err, os.ErrClosed) {
		w.flushing = false
	}
}
