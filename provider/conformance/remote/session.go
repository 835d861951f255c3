package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider"
)

// Options configures a session with an agent.
type Options struct {
	Secret []byte // the agent's secret; may be empty if both ends are on a loopback address
	Build  string // the version of the program, for error texts

	// Patience is how long the agent may be silent before it counts as gone; 0 means [Patience].
	// The agent needs the same if it is shorter than that.
	Patience time.Duration
}

// Host is an agent's description of its host.
type Host struct {
	Build         string    `json:"build"`
	Kernel        string    `json:"kernel"`                   // uname -r
	KernelVersion string    `json:"kernel_version,omitempty"` // version of the kernel's sources
	Siw           string    `json:"siw,omitempty"`            // variant of the module
	CPUs          int       `json:"cpus"`
	Offers        []Offer   `json:"offers"`
	Captures      string    `json:"captures,omitempty"` // "wire" or "tap"; empty if it takes none
	Clock         time.Time `json:"clock"`
}

// Offer is a provider that an agent offers, or the reason why it cannot.
type Offer struct {
	Name  string     `json:"name"`            // "engine", "kernel" or "bridge"
	Addr  netip.Addr `json:"addr,omitzero"`   // of the interface under its device, if it is bound to one
	Fixed bool       `json:"fixed,omitempty"` // its device is the same for all options
	Why   string     `json:"why,omitempty"`   // why it cannot be used
}

// Session is a control connection to an agent, made by [Dial]. Its methods may be called
// concurrently. The methods of a nil or zero Session that return an error return EINVAL.
type Session struct {
	address string
	conn    *conn
	host    Host
	done    chan struct{} // closed when the connection ends
	beats   sync.WaitGroup

	sending sync.Mutex // held while changes are collected and sent

	mu         sync.Mutex
	waiting    map[uint64]chan reply
	lastNumber uint64
	gone       error // why the session has ended
	closing    bool  // Close was called: the agent may hang up before or after end is reached
	objects    map[uint32]any

	mem      sync.Mutex
	devices  map[*Device]bool
	lastSlot uint16
	blocks   map[uint32]*block
	pending  []record // records that go first in the next message
	carried  uint64   // the last request that carried changes of memory
	answered uint64   // the highest number of an answered request
}

// usable returns an error if the session was not made by Dial.
func (c *Session) usable() error {
	if c == nil || c.conn == nil {
		return fmt.Errorf("nil or zero remote.Session, which remote.Dial makes: %w", syscall.EINVAL)
	}
	return nil
}

// GoneError reports that an agent cannot be reached any more.
type GoneError struct {
	Address string
	Err     error
}

// Error implements error.
func (e *GoneError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("the agent at %s has gone", e.Address)
	}
	why := e.Err.Error()
	var timeout net.Error
	switch {
	case errors.Is(e.Err, io.EOF), errors.Is(e.Err, io.ErrUnexpectedEOF),
		errors.Is(e.Err, syscall.ECONNRESET), errors.Is(e.Err, syscall.EPIPE):
		why = "it has ended, or was restarted"
	case errors.As(e.Err, &timeout) && timeout.Timeout():
		why = "nothing has come from it for too long"
	}
	return fmt.Sprintf("the agent at %s has gone: %s", e.Address, why)
}

// Unwrap returns Err.
func (e *GoneError) Unwrap() error { return e.Err }

// Dial connects to an agent: "host:port".
func Dial(ctx context.Context, address string, o Options) (*Session, error) {
	fail := func(err error) (*Session, error) {
		return nil, fmt.Errorf("agent at %s: %w", address, err)
	}
	var d net.Dialer
	dctx, stop := context.WithTimeout(ctx, handshakeLimit)
	defer stop()
	nc, err := d.DialContext(dctx, "tcp", address)
	if err != nil {
		return fail(err)
	}
	peer := nc.RemoteAddr().(*net.TCPAddr).AddrPort()
	if err := CheckSecret(o.Secret, peer.Addr()); err != nil {
		_ = nc.Close()
		return fail(err)
	}
	unstop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	c, err := newSession(nc, address, o)
	if !unstop() {
		err = ctx.Err()
	}
	if err != nil {
		_ = nc.Close()
		return fail(err)
	}
	c.beats.Go(func() { c.conn.beat(c.done) })
	c.beats.Go(c.listen)
	return c, nil
}

// newSession does the client's part of the start on a connection to an agent.
func newSession(nc net.Conn, address string, o Options) (*Session, error) {
	k, _, err := greet(nc, o.Secret, o.Build)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("it is no agent, or serves as many as it can: %w", err)
	}
	if err != nil {
		return nil, err
	}
	c := &Session{address: address, conn: newConn(nc, k.toClient, k.toAgent, o.Patience),
		done: make(chan struct{}), waiting: make(map[uint64]chan reply),
		objects: make(map[uint32]any), devices: make(map[*Device]bool),
		blocks: make(map[uint32]*block)}
	return c, c.meet()
}

// meet reads the agent's description of its host.
func (c *Session) meet() error {
	m, err := c.conn.read()
	if err != nil {
		return err
	}
	if m.kind != kindAnswer || json.Unmarshal(printable(m.head), &c.host) != nil {
		return errFrame
	}
	return nil
}

// Host returns what the agent reported when the session began.
func (c *Session) Host() Host {
	if c == nil {
		return Host{}
	}
	return c.host
}

// Address returns the address that Dial was called with.
func (c *Session) Address() string {
	if c == nil {
		return ""
	}
	return c.address
}

// RemoteAddr returns the address that the session is connected to.
func (c *Session) RemoteAddr() netip.Addr {
	if c.usable() != nil {
		return netip.Addr{}
	}
	return c.conn.nc.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// LocalAddr returns the address that the session is connected from.
func (c *Session) LocalAddr() netip.Addr {
	if c.usable() != nil {
		return netip.Addr{}
	}
	return c.conn.nc.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// Done is closed when the session has ended.
func (c *Session) Done() <-chan struct{} {
	if c.usable() != nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	return c.done
}

// Err returns why the session has ended: a [*GoneError], or [os.ErrClosed] after Close. It returns
// nil while the session exists.
func (c *Session) Err() error {
	if err := c.usable(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone
}

// Close ends the session. The agent frees everything that was made in it.
func (c *Session) Close() error {
	if err := c.usable(); err != nil {
		return err
	}
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.conn.bye("the run is over")
	_ = c.end(os.ErrClosed)
	c.beats.Wait()
	return nil
}

// fail ends the session because of err, and returns why it has ended.
func (c *Session) fail(err error) error {
	return c.end(&GoneError{c.address, err})
}

func (c *Session) end(why error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone != nil {
		return c.gone
	}
	if c.closing {
		why = os.ErrClosed
	}
	c.gone = why
	_ = c.conn.nc.Close()
	for number, got := range c.waiting {
		got <- reply{err: why}
		delete(c.waiting, number)
	}
	close(c.done)
	return why
}

// listen processes the agent's messages.
func (c *Session) listen() {
	for {
		m, err := c.conn.read()
		if err == nil {
			err = c.handle(&m)
		}
		if err != nil {
			_ = c.fail(err)
			return
		}
	}
}

func (c *Session) handle(m *message) error {
	head := printable(m.head)
	switch m.kind {
	case kindBeat:
		return nil
	case kindBye:
		var why string
		if json.Unmarshal(head, &why) != nil {
			return errFrame
		}
		return errors.New(why)
	case kindAnswer:
	default:
		return fmt.Errorf("%w: kind %d from the agent", errFrame, m.kind)
	}
	var r reply
	if err := json.Unmarshal(head, &r.answer); err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	c.mu.Lock()
	got := c.waiting[m.number]
	delete(c.waiting, m.number)
	c.mu.Unlock()
	if got == nil {
		return fmt.Errorf("%w: an answer to no request", errFrame)
	}
	c.mem.Lock()
	c.answered = max(c.answered, m.number)
	c.mem.Unlock()
	if r.answer.Raw {
		r.body = m.body
	} else if err := c.take(m.body); err != nil {
		got <- reply{err: c.fail(err)}
		return err
	}
	got <- r
	return nil
}

// register stores an object under the agent's number, so that events can find it.
func (c *Session) register(h uint32, o any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects[h] = o
}

// unregister forgets a closed object.
func (c *Session) unregister(h uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.objects, h)
}

// object returns the object with a number, or nil if there is none of type O.
func object[O any](c *Session, h uint32) O {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, _ := c.objects[h].(O)
	return o
}

// Provider returns a provider of the agent. The agent opens each device with options.
func (c *Session) Provider(name string, options []string) provider.Provider {
	return &farProvider{c, name, options}
}
