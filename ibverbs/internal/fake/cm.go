package fake

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/govs-rdma/govs/provider"
)

type eventChannel struct {
	p      *Provider
	events chan provider.CMEvent
	once   sync.Once
	closed chan struct{}
}

func (c *eventChannel) CreateID(cookie any) (provider.ID, error) {
	return &ID{p: c.p, ch: c, cookie: cookie}, c.p.called("create id")
}

func (c *eventChannel) Next(ctx context.Context) (provider.CMEvent, error) {
	select {
	case e := <-c.events:
		return e, nil
	case <-c.closed:
		return provider.CMEvent{}, &provider.Error{Op: "rdma_get_cm_event", Err: os.ErrClosed}
	case <-ctx.Done():
		return provider.CMEvent{}, ctx.Err()
	}
}

func (c *eventChannel) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.p.called("close event channel")
}

// ID is the fake's CM id.
type ID struct {
	p *Provider

	mu      sync.Mutex
	ch      *eventChannel
	cookie  any
	remote  netip.AddrPort
	Param   provider.ConnParam // of the last Connect or Accept
	Private []byte             // of the last Reject
}

// Event puts an event of the id on its channel.
func (d *ID) Event(t provider.CMEventType, status int, private []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ch.events <- provider.CMEvent{Type: t, Status: status, ID: d, Param: provider.ConnParam{PrivateData: private}}
}

// Waiting returns how many events of the id's channel are unread.
func (d *ID) Waiting() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ch.events)
}

// Request puts a CONNECT_REQUEST of a new id on the channel of the listener d.
func (d *ID) Request(param provider.ConnParam) *ID {
	d.mu.Lock()
	defer d.mu.Unlock()
	peer := netip.MustParseAddrPort("192.0.2.9:9")
	n := &ID{p: d.p, ch: d.ch, cookie: d.cookie, remote: peer}
	d.ch.events <- provider.CMEvent{Type: provider.CMConnectRequest, ID: n, ListenID: d, Param: param}
	return n
}

func (d *ID) call(name string) error {
	if err := d.p.called(name); err != nil {
		return err
	}
	if f := d.p.OnCM; f != nil {
		f(d, name)
	}
	return nil
}

// BindAddr implements provider.ID.
func (d *ID) BindAddr(netip.AddrPort) error { return d.call("bind addr") }

// ResolveAddr implements provider.ID.
func (d *ID) ResolveAddr(_, dst netip.AddrPort, _ time.Duration) error {
	d.mu.Lock()
	d.remote = dst
	d.mu.Unlock()
	return d.call("resolve addr")
}

// ResolveRoute implements provider.ID.
func (d *ID) ResolveRoute(time.Duration) error { return d.call("resolve route") }

// CreateQP implements provider.ID.
func (d *ID) CreateQP(_ provider.PD, init provider.QPInitAttr) (provider.QP, error) {
	return &QP{p: d.p, Init: init}, d.call("cm create qp")
}

// Listen implements provider.ID.
func (d *ID) Listen(int) error { return d.call("listen") }

// Connect implements provider.ID.
func (d *ID) Connect(param provider.ConnParam) error {
	d.setParam(param)
	return d.call("connect")
}

// Accept implements provider.ID.
func (d *ID) Accept(param provider.ConnParam) error {
	d.setParam(param)
	return d.call("accept")
}

func (d *ID) setParam(param provider.ConnParam) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Param = param
}

// Reject implements provider.ID.
func (d *ID) Reject(private []byte) error {
	d.mu.Lock()
	d.Private = private
	d.mu.Unlock()
	return d.call("reject")
}

// Disconnect implements provider.ID.
func (d *ID) Disconnect() error { return d.call("disconnect") }

// SetOption implements provider.ID.
func (d *ID) SetOption(provider.IDOption, int) error { return d.call("set option") }

// Migrate implements provider.ID.
func (d *ID) Migrate(ch provider.EventChannel) error {
	if err := d.p.called("migrate"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ch = ch.(*eventChannel)
	return nil
}

// LocalAddr implements provider.ID.
func (d *ID) LocalAddr() netip.AddrPort { return netip.MustParseAddrPort("192.0.2.1:1") }

// RemoteAddr implements provider.ID.
func (d *ID) RemoteAddr() netip.AddrPort {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.remote
}

// DeviceName implements provider.ID.
func (d *ID) DeviceName() string { return d.p.BoundTo }

// Cookie implements provider.ID.
func (d *ID) Cookie() any {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cookie
}

// SetCookie implements provider.ID.
func (d *ID) SetCookie(cookie any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cookie = cookie
}

// Close implements provider.ID.
func (d *ID) Close() error {
	err := d.call("close id")
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.remote = netip.AddrPort{} // as with the kernel, whose object is gone
	}
	return err
}
