// Package memnet is a network in memory: it implements the interfaces of package transport with
// TCP's behaviour and without a kernel. A seed determines what happens to streams. Package memnet
// waits only for channels and timers, so whole engines run deterministically in a bubble of
// testing/synctest.
//
// A [Network] is one host with several addresses. Its connections can be slowed down
// ([Options].MinDelay), and cut into other segments than were written (Options.Cut). A filter can
// corrupt, reset or stall them at any byte (Options.Filter). Handlers can be called late, in
// another order and without cause (Options.MaxWake, Shuffle and Spurious), and every call can be
// interrupted (Options.Yield). [Network.Reset] resets connections at once, as the end of a process
// does.
//
// # Limitations
//
// Nothing is lost and sent again, and nothing overtakes: TCP hides both from a stream. A wildcard
// listener takes connections to every address of the network.
package memnet

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// Options configures a network. Every zero value is the default.
type Options struct {
	// Seed is the seed of all random decisions. The same seed, options and order of calls give the
	// same run.
	Seed uint64

	// Addrs are the host's addresses. Default 192.0.2.1, 192.0.2.2 (RFC 5737),
	// 2001:db8::1 and 2001:db8::2 (RFC 3849).
	Addrs []netip.Addr

	MSS    int // bytes per segment at most; default 1448
	Window int // bytes written and not yet read, for each direction; default 128 KiB

	// WriteRoom is how many bytes of the window must be free before a poller reports that an end
	// can be written. A write takes as much as there is room for. Default 1. TCP on Linux waits
	// until a third of its buffer is free.
	WriteRoom int

	// MinDelay and MaxDelay bound how long a segment is under way, and how long a dial waits for
	// the answer. Order is kept. Default: 0.
	MinDelay, MaxDelay time.Duration

	// Cut makes segments of random length, mostly short ones, and makes Writev sometimes take less
	// than it could. Otherwise segments have MSS bytes. A Readv never returns more than one
	// segment.
	Cut bool

	// Filter is called for every segment before it arrives, and decides about it. It is called with
	// locks of the connection held, so it must not call the connection.
	Filter func(*Segment) Verdict

	// Shuffle makes pollers serve ready streams in a random order, and leave some of them for the
	// next time.
	Shuffle bool

	// MaxWake bounds for how long Poll is occasionally delayed before it calls a Handler, so that
	// the call comes late, as in a goroutine that gets no CPU. Poll then takes time, against its
	// contract. Default: 0.
	MaxWake time.Duration

	// Spurious makes one in so many calls of Poll, on average, report to a Handler that its stream
	// can be read, written, or both, whether that is true or not. Default: none.
	Spurious int

	// Yield is how many times, at most, a call of a method of a stream, or of a poller for a
	// stream, lets other goroutines run, before and after its work. Default: none.
	Yield int

	// OnSpin is called, with the number of a connection, when a poller has called handlers
	// thousands of times, other goroutines have run until all of them waited, and still no byte has
	// moved. The handler then neither acts on the readiness nor asks the poller to stop reporting
	// it. Poll waits a moment each time, so that the clock of a bubble advances. Default: this is
	// not checked.
	OnSpin func(conn uint64)

	// Tap sees both ends of every connection.
	Tap transport.Tap
}

// Segment is the argument of Options.Filter.
type Segment struct {
	Conn       uint64 // number of the connection in this Network, from 1
	FromDialer bool
	From, To   netip.AddrPort
	Offset     int64  // of the first byte in its direction of the stream
	Data       []byte // may be changed, for its length
}

// Verdict is the filter's decision about a segment.
type Verdict uint8

// Verdicts.
const (
	Pass  Verdict = iota
	Reset         // both ends see ECONNRESET instead
	Stall         // nothing arrives any more, in either direction
)

// Reach says how a foreign address answers.
type Reach uint8

// Kinds of addresses. An address that the Network does not know has no route.
const (
	NoRoute     Reach = iota // ENETUNREACH at once
	HostUnknown              // EHOSTUNREACH after a delay
	Silent                   // no answer: ETIMEDOUT after two minutes, as with TCP
)

// connectTimeout is about what Linux's six retries of a SYN take.
const connectTimeout = 127 * time.Second

const (
	firstEphemeral = 49152
	lastEphemeral  = 65535
)

// Network implements transport.Network.
type Network struct {
	opts  Options
	addrs map[netip.Addr]bool

	mu        sched.Mutex[locks.Network]
	reach     map[netip.Addr]Reach
	used      map[netip.AddrPort]int // bindings, listeners and connections on a port
	listeners map[netip.AddrPort]*listener
	nextPort  uint16
	conns     uint64
	pollers   uint64
	links     map[*link]struct{} // with an end that is open

	drawn atomic.Uint64 // of Yield
	moved atomic.Uint64 // events of streams, for OnSpin
	told  atomic.Uint64 // calls of handlers, without the spurious ones
}

// New makes a network. opts may be nil.
func New(opts *Options) *Network {
	n := &Network{
		addrs:     make(map[netip.Addr]bool),
		reach:     make(map[netip.Addr]Reach),
		used:      make(map[netip.AddrPort]int),
		listeners: make(map[netip.AddrPort]*listener),
		nextPort:  firstEphemeral,
		links:     make(map[*link]struct{}),
	}
	if opts != nil {
		n.opts = *opts
	}
	if n.opts.Addrs == nil {
		for _, s := range []string{"192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"} {
			n.opts.Addrs = append(n.opts.Addrs, netip.MustParseAddr(s))
		}
	}
	for _, a := range n.opts.Addrs {
		n.addrs[a] = true
	}
	if n.opts.MSS <= 0 {
		n.opts.MSS = 1448
	}
	if n.opts.Window <= 0 {
		n.opts.Window = 128 << 10
	}
	n.opts.WriteRoom = max(n.opts.WriteRoom, 1)
	n.opts.MaxDelay = max(n.opts.MinDelay, n.opts.MaxDelay)
	return n
}

// SetReach sets how addr, which is not one of the network's own, answers.
func (n *Network) SetReach(addr netip.Addr, reach Reach) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reach[addr] = reach
}

// NewPoller implements transport.Network.
func (n *Network) NewPoller() (transport.Poller, error) { return newPoller(n), nil }

// Route implements transport.Network.
func (n *Network) Route(dst netip.Addr) (netip.Addr, error) {
	if !dst.IsValid() || dst.IsUnspecified() {
		return netip.Addr{}, fmt.Errorf("route to %s: %w", dst, syscall.EADDRNOTAVAIL)
	}
	dst = dst.Unmap()
	if n.addrs[dst] {
		return dst, nil
	}
	n.mu.Lock()
	_, known := n.reach[dst]
	n.mu.Unlock()
	if known {
		for _, a := range n.opts.Addrs {
			if a.Is4() == dst.Is4() {
				return a, nil
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("route to %s: %w", dst, syscall.ENETUNREACH)
}

// Bind implements transport.Network.
func (n *Network) Bind(local netip.AddrPort) (transport.Binding, error) {
	return n.bind(local)
}

func (n *Network) bind(local netip.AddrPort) (*binding, error) {
	if n.used == nil {
		return nil, fmt.Errorf("zero memnet.Network, which memnet.New makes: %w", syscall.EINVAL)
	}
	if !local.Addr().IsValid() {
		local = netip.AddrPortFrom(netip.IPv6Unspecified(), local.Port())
	}
	if a := local.Addr(); !a.IsUnspecified() && !n.addrs[a] {
		return nil, opError("bind", local, syscall.EADDRNOTAVAIL)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	bound, err := n.reserve(local)
	if err != nil {
		return nil, opError("bind", local, err)
	}
	return &binding{n: n, addr: bound}, nil
}

// reserve reserves a port. n.mu is held.
func (n *Network) reserve(local netip.AddrPort) (netip.AddrPort, error) {
	if local.Port() != 0 {
		if n.inUse(local) {
			return local, syscall.EADDRINUSE
		}
		n.used[local]++
		return local, nil
	}
	for range lastEphemeral - firstEphemeral + 1 {
		try := netip.AddrPortFrom(local.Addr(), n.nextPort)
		if n.nextPort++; n.nextPort < firstEphemeral {
			n.nextPort = firstEphemeral
		}
		if !n.inUse(try) {
			n.used[try]++
			return try, nil
		}
	}
	return local, syscall.EADDRINUSE
}

// inUse reports whether somebody has the port on the same address or on all.
func (n *Network) inUse(local netip.AddrPort) bool {
	if local.Addr().IsUnspecified() {
		for _, a := range n.opts.Addrs {
			if n.used[netip.AddrPortFrom(a, local.Port())] > 0 {
				return true
			}
		}
	}
	for _, a := range []netip.Addr{local.Addr(), netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if n.used[netip.AddrPortFrom(a, local.Port())] > 0 {
			return true
		}
	}
	return false
}

// give undoes take for one use of a port.
func (n *Network) give(local netip.AddrPort) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.used[local]--; n.used[local] == 0 {
		delete(n.used, local)
	}
}

// Listen implements transport.Network.
func (n *Network) Listen(local netip.AddrPort, backlog int) (transport.Listener, error) {
	b, err := n.bind(local)
	if err != nil {
		return nil, err
	}
	return b.Listen(backlog)
}

// Dial implements transport.Network.
func (n *Network) Dial(ctx context.Context, src, dst netip.AddrPort) (transport.Conn, error) {
	if !src.Addr().IsValid() || src.Addr().IsUnspecified() {
		a, err := n.Route(dst.Addr())
		if err != nil {
			return nil, opError("connect", dst, syscall.ENETUNREACH)
		}
		src = netip.AddrPortFrom(a, src.Port())
	}
	b, err := n.bind(src)
	if err != nil {
		return nil, err
	}
	return b.Dial(ctx, dst)
}

func opError(op string, addr netip.AddrPort, err error) error {
	return fmt.Errorf("%s %s: %w", op, addr, err)
}

// binding implements transport.Binding.
type binding struct {
	n    *Network
	addr netip.AddrPort

	mu   sched.Mutex[locks.Binding]
	gone bool
}

// Addr implements transport.Binding.
func (b *binding) Addr() netip.AddrPort { return b.addr }

// use hands the port over to the caller that uses the binding.
func (b *binding) use() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone {
		return os.ErrClosed
	}
	b.gone = true
	return nil
}

// Close implements transport.Binding.
func (b *binding) Close() error {
	if b.use() == nil {
		b.n.give(b.addr)
	}
	return nil
}

// Listen implements transport.Binding.
func (b *binding) Listen(backlog int) (transport.Listener, error) {
	if err := b.use(); err != nil {
		return nil, opError("listen", b.addr, err)
	}
	if backlog <= 0 {
		backlog = 4096
	}
	l := &listener{n: b.n, addr: b.addr, queue: make(chan *conn, backlog), closed: make(chan struct{})}
	b.n.mu.Lock()
	b.n.listeners[b.addr] = l
	b.n.mu.Unlock()
	return l, nil
}

// Dial implements transport.Binding.
func (b *binding) Dial(ctx context.Context, dst netip.AddrPort) (transport.Conn, error) {
	if err := b.use(); err != nil {
		return nil, opError("connect", dst, err)
	}
	c, err := b.n.connect(ctx, b.addr, dst)
	if err != nil {
		b.n.give(b.addr)
		return nil, opError("connect", dst, err)
	}
	return c, nil
}

// connect makes a connection from a port that the caller has taken.
func (n *Network) connect(ctx context.Context, src, dst netip.AddrPort) (*conn, error) {
	dst = netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port())
	if err := sleep(ctx, n.opts.MinDelay+n.opts.MaxDelay); err != nil { // about a round trip
		return nil, err
	}
	if !n.addrs[dst.Addr()] {
		return nil, n.noAnswer(ctx, dst.Addr())
	}
	if src.Addr().IsUnspecified() {
		src = netip.AddrPortFrom(dst.Addr(), src.Port())
	}
	n.mu.Lock()
	l := n.listenerFor(dst)
	if l == nil {
		n.mu.Unlock()
		return nil, syscall.ECONNREFUSED
	}
	n.conns++
	lk := newLink(n, n.conns, src, dst)
	n.links[lk] = struct{}{}
	n.mu.Unlock()

	if err := l.enqueue(ctx, &lk.ends[accepted]); err != nil {
		n.forget(lk)
		return nil, err
	}
	c := &lk.ends[dialed]
	c.open()
	return c, nil
}

// listenerFor finds the listener on dst. n.mu is held.
func (n *Network) listenerFor(dst netip.AddrPort) *listener {
	for _, a := range []netip.Addr{dst.Addr(), netip.IPv6Unspecified(), netip.IPv4Unspecified()} {
		l := n.listeners[netip.AddrPortFrom(a, dst.Port())]
		if l != nil && (a != netip.IPv4Unspecified() || dst.Addr().Is4()) {
			return l
		}
	}
	return nil
}

func (n *Network) noAnswer(ctx context.Context, dst netip.Addr) error {
	n.mu.Lock()
	reach := n.reach[dst]
	n.mu.Unlock()
	switch reach {
	case HostUnknown:
		return syscall.EHOSTUNREACH
	case Silent:
		if err := sleep(ctx, connectTimeout); err != nil {
			return err
		}
		return syscall.ETIMEDOUT
	}
	return syscall.ENETUNREACH
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// listener implements transport.Listener.
type listener struct {
	n     *Network
	addr  netip.AddrPort
	queue chan *conn

	once   sync.Once
	closed chan struct{}
}

// Addr implements transport.Listener.
func (l *listener) Addr() netip.AddrPort { return l.addr }

// Accept implements transport.Listener.
func (l *listener) Accept(ctx context.Context) (transport.Conn, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		select {
		case <-l.closed:
			return nil, opError("accept", l.addr, os.ErrClosed)
		default:
		}
		select {
		case c := <-l.queue:
			if !c.broken() {
				c.open()
				return c, nil
			}
			_ = c.Abort()
		case <-l.closed:
		case <-ctx.Done():
		}
	}
}

// Close implements transport.Listener. Connections that nobody accepted are
// reset.
func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.n.mu.Lock()
		delete(l.n.listeners, l.addr)
		l.n.mu.Unlock()
		l.n.give(l.addr)
		l.drain()
	})
	return nil
}

// enqueue puts c into the backlog. While the backlog is full, SYNs are dropped and sent again.
func (l *listener) enqueue(ctx context.Context, c *conn) error {
	timeout := time.NewTimer(connectTimeout)
	defer timeout.Stop()
	select {
	case l.queue <- c:
	case <-l.closed:
		return syscall.ECONNREFUSED
	case <-timeout.C:
		return syscall.ETIMEDOUT
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-l.closed: // perhaps after Close emptied it
		l.drain()
	default:
	}
	return nil
}

func (l *listener) drain() {
	for {
		select {
		case c := <-l.queue:
			_ = c.Abort()
		default:
			return
		}
	}
}
