package memnet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/internal/turns"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// registration is an end that a poller watches. link.mu guards the wants, poller.mu guards queued.
type registration struct {
	poller              *poller
	conn                *conn
	handler             transport.Handler
	sharer              transport.Sharer // handler, nil if it is none
	turns               turns.State
	wantRead, wantWrite bool
	queued              bool
}

// poller implements transport.Poller. Ends are queued when something happens to them and stay
// queued, in turn, as long as they are ready.
type poller struct {
	n       *Network
	signal  chan struct{} // capacity 1: the queue was empty, or Wake
	done    chan struct{}
	waiting sched.Mutex[locks.Waiting]

	mu     sched.Mutex[locks.Poller]
	woken  bool
	closed bool
	all    map[*registration]struct{}
	ready  []*registration

	rnd    *rand.Rand      // nil if nothing is random
	listed []*registration // all, in order, if there are spurious calls
	spin   spinning

	sharing turns.Sharing
}

func newPoller(n *Network) *poller {
	p := &poller{
		n: n, signal: make(chan struct{}, 1), done: make(chan struct{}),
		all: make(map[*registration]struct{}),
	}
	n.mu.Lock()
	n.pollers++
	serial := n.pollers
	n.mu.Unlock()
	if o := &n.opts; o.Shuffle || o.MaxWake > 0 || o.Spurious > 0 {
		p.rnd = rand.New(rand.NewPCG(o.Seed, ^serial))
	}
	return p
}

// ownConn returns c as an end of this network.
func (p *poller) ownConn(c transport.Conn) (*conn, error) {
	if e, ok := c.(*conn); ok && e.lk.n == p.n {
		return e, nil
	}
	return nil, syscall.EINVAL
}

// Add implements transport.Poller.
func (p *poller) Add(c transport.Conn, h transport.Handler) error {
	e, err := p.ownConn(c)
	if err != nil {
		return err
	}
	e.lk.mu.Lock()
	defer e.lk.mu.Unlock()
	if e.closed {
		return os.ErrClosed
	}
	if e.reg != nil {
		return syscall.EEXIST
	}
	reg := &registration{poller: p, conn: e, handler: h, wantRead: true}
	reg.sharer, _ = h.(transport.Sharer)
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.all[reg] = struct{}{}
		if p.n.opts.Spurious > 0 {
			p.listed = append(p.listed, reg)
		}
	}
	p.mu.Unlock()
	if closed {
		return os.ErrClosed
	}
	e.reg = reg
	p.queue(reg)
	return nil
}

// Remove implements transport.Poller.
func (p *poller) Remove(c transport.Conn) {
	e, err := p.ownConn(c)
	if err != nil {
		return
	}
	e.lk.mu.Lock()
	defer e.lk.mu.Unlock()
	if e.reg != nil && e.reg.poller == p {
		e.unwatch()
	}
}

// WantRead implements transport.Poller.
func (p *poller) WantRead(c transport.Conn, on bool) error {
	return p.want(c, func(reg *registration) { reg.wantRead = on })
}

// WantWrite implements transport.Poller.
func (p *poller) WantWrite(c transport.Conn, on bool) error {
	return p.want(c, func(reg *registration) { reg.wantWrite = on })
}

func (p *poller) want(c transport.Conn, set func(*registration)) error {
	p.n.yield()
	defer p.n.yield()
	e, err := p.ownConn(c)
	if err != nil {
		return err
	}
	e.lk.mu.Lock()
	defer e.lk.mu.Unlock()
	if e.reg == nil || e.reg.poller != p {
		return syscall.ENOENT
	}
	set(e.reg)
	p.queue(e.reg)
	return nil
}

// queue makes Poll look at reg.
func (p *poller) queue(reg *registration) {
	p.mu.Lock()
	if !reg.queued && !p.closed {
		reg.queued = true
		p.ready = append(p.ready, reg)
	}
	p.mu.Unlock()
	p.notify()
}

func (p *poller) notify() {
	select {
	case p.signal <- struct{}{}:
	default:
	}
}

// forget removes reg. Its place in the queue stays until Poll reaches it.
func (p *poller) forget(reg *registration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, reg)
	p.listed = slices.DeleteFunc(p.listed, func(r *registration) bool { return r == reg })
}

// Poll implements transport.Poller.
func (p *poller) Poll() int { return p.Serve() }

// Serve implements transport.Poller.
func (p *poller) Serve() int {
	var batch [policy.Round]*registration
	p.mu.Lock()
	n := p.choose(batch[:])
	rest := copy(p.ready, p.ready[n:])
	clear(p.ready[rest:])
	p.ready = p.ready[:rest]
	for _, reg := range batch[:n] {
		reg.queued = false
	}
	p.mu.Unlock()
	if rest > 0 {
		p.notify() // so that Wait returns for what was left
	}

	ready := 0
	var can [policy.Round]struct{ read, write bool }
	var round turns.Round
	round.Begin(&p.sharing)
	for _, reg := range batch[:n] {
		readable, writable := reg.readiness()
		if readable || writable {
			p.queue(reg) // and it stays there as long as it is ready
			round.Add(&reg.turns)
			batch[ready] = reg
			can[ready].read, can[ready].write = readable, writable
			ready++
		}
	}
	served := 0
	for i, budget := round.Next(); i >= 0; i, budget = round.Next() {
		p.holdUp()
		used, more := batch[i].ready(can[i].read, can[i].write, budget)
		round.Done(i, used, more)
		p.n.told.Add(1)
		p.spin.count(p.n, batch[i])
		served++
	}
	p.spurious()
	return served
}

// ready calls the handler.
func (reg *registration) ready(readable, writable bool, budget int) (used int, more bool) {
	if reg.sharer != nil {
		return reg.sharer.ReadyTurn(readable, writable, budget)
	}
	reg.handler.Ready(readable, writable)
	return 4 * policy.CallCost, false // it wakes a goroutine
}

// readiness returns the readiness that a handler wants to have reported.
func (reg *registration) readiness() (readable, writable bool) {
	c := reg.conn
	c.lk.mu.Lock()
	defer c.lk.mu.Unlock()
	if c.reg != reg {
		return false, false
	}
	readable, writable = c.ready()
	return readable && reg.wantRead, writable && reg.wantWrite
}

// anyReady removes ends that are not ready from the front of the queue until it finds a ready one.
func (p *poller) anyReady() bool {
	for {
		p.mu.Lock()
		if len(p.ready) == 0 {
			p.mu.Unlock()
			return false
		}
		first := p.ready[0]
		first.queued = false
		p.ready = p.ready[:copy(p.ready, p.ready[1:])]
		p.mu.Unlock()
		if readable, writable := first.readiness(); readable || writable {
			p.queue(first)
			return true
		}
	}
}

// Wait implements transport.Poller. It leaves no streams to goroutines that poll, because waking
// costs nothing here.
func (p *poller) Wait(ctx context.Context) error {
	if !p.waiting.TryLock() {
		return fmt.Errorf("poller: another goroutine waits: %w", syscall.EBUSY)
	}
	defer p.waiting.Unlock()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		p.mu.Lock()
		woken, closed := p.woken, p.closed
		p.woken = false
		p.mu.Unlock()
		switch {
		case closed:
			return os.ErrClosed
		case woken || p.anyReady():
			return nil
		}
		select {
		case <-p.signal:
		case <-p.done:
		case <-ctx.Done():
		}
	}
}

// Wake implements transport.Poller.
func (p *poller) Wake() {
	p.mu.Lock()
	p.woken = true
	p.mu.Unlock()
	p.notify()
}

// BeforeSleep implements transport.Poller.
func (p *poller) BeforeSleep() {}

// Close implements transport.Poller.
func (p *poller) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	all := p.all
	p.all, p.ready = nil, nil
	p.mu.Unlock()
	if !first {
		return nil
	}
	for reg := range all {
		reg.conn.lk.mu.Lock()
		if reg.conn.reg == reg {
			reg.conn.reg = nil
		}
		reg.conn.lk.mu.Unlock()
	}
	close(p.done)
	return nil
}
