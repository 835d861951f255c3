package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// Context is an open device (struct ibv_context). All other objects are made from it, and it can be
// closed only after them.
type Context struct {
	obj      object.Object
	dev      provider.Device
	provider string
}

// Devices lists the devices that p can open (ibv_get_device_list).
func Devices(p provider.Provider) ([]DeviceInfo, error) {
	if p == nil {
		return nil, errNoProvider("ibv_get_device_list")
	}
	return p.Devices()
}

// Open opens a device of p by its name (ibv_open_device). The empty name opens the first device; an
// unknown name is ENODEV.
func Open(p provider.Provider, name string) (*Context, error) {
	if p == nil {
		return nil, errNoProvider("ibv_open_device")
	}
	dev, err := p.Open(name)
	if err != nil {
		return nil, err
	}
	c := &Context{dev: dev, provider: p.Name()}
	c.obj.Describe(object.KindContext, dev.Name())
	c.obj.Root()
	return c, nil
}

// ok returns an error if c is nil or closed. Every method calls it first.
func (c *Context) ok(op string) error {
	if c == nil || c.dev == nil {
		return errNil(op, "context")
	}
	return c.obj.Check(op)
}

// Name returns the device's name: "siw0" (ibv_get_device_name).
func (c *Context) Name() string {
	if c == nil || c.dev == nil {
		return ""
	}
	return c.dev.Name()
}

// Provider returns the provider's name: "engine" or "kernel".
func (c *Context) Provider() string {
	if c == nil {
		return ""
	}
	return c.provider
}

// Transport returns the family of the device: TransportIWARP, or TransportIB for InfiniBand and
// RoCE (ibv_device.transport_type). It may be called after Close.
func (c *Context) Transport() TransportType {
	if c == nil || c.dev == nil {
		return TransportUnknown
	}
	return c.dev.Transport()
}

// Query returns the device's limits and capabilities (ibv_query_device).
func (c *Context) Query() (DeviceAttr, error) {
	if err := c.ok("ibv_query_device"); err != nil {
		return DeviceAttr{}, err
	}
	return c.dev.Query()
}

// QueryPort describes a port (ibv_query_port). Ports count from 1.
func (c *Context) QueryPort(port uint8) (PortAttr, error) {
	if err := c.ok("ibv_query_port"); err != nil {
		return PortAttr{}, err
	}
	return c.dev.QueryPort(port)
}

// QueryGID returns an entry of a port's GID table (ibv_query_gid).
func (c *Context) QueryGID(port uint8, index int) (GID, error) {
	if err := c.ok("ibv_query_gid"); err != nil {
		return GID{}, err
	}
	return c.dev.QueryGID(port, index)
}

// QueryGIDTable returns the valid entries of all ports' GID tables
// (ibv_query_gid_table).
func (c *Context) QueryGIDTable() ([]GIDEntry, error) {
	if err := c.ok("ibv_query_gid_table"); err != nil {
		return nil, err
	}
	return c.dev.QueryGIDTable()
}

// QueryPkey returns an entry of a port's P_Key table, in host order (ibv_query_pkey). iWARP has no
// partitions, so it has no P_Keys: on such a device PortAttr.PkeyTblLen is 0, and the error for
// every index is errors.ErrUnsupported, with the errno that libibverbs gives.
func (c *Context) QueryPkey(port uint8, index int) (uint16, error) {
	if err := c.ok("ibv_query_pkey"); err != nil {
		return 0, err
	}
	return c.dev.QueryPkey(port, index)
}

// AsyncEvent is something that happened to an object outside any call (struct ibv_async_event). The
// type decides which other field is set.
type AsyncEvent struct {
	Type AsyncEventType
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	Port uint8
}

// String returns the type's C name and the object of the event: "IBV_EVENT_QP_FATAL of qp 17",
// "IBV_EVENT_PORT_ERR of port 1".
func (e AsyncEvent) String() string {
	s := e.Type.String()
	switch {
	case e.QP != nil:
		return s + " of " + e.QP.obj.Name()
	case e.CQ != nil:
		return s + " of " + e.CQ.String()
	case e.SRQ != nil:
		return s + " of " + e.SRQ.obj.Name()
	case e.Port != 0:
		return fmt.Sprintf("%s of port %d", s, e.Port)
	}
	return s
}

// AsyncEvent waits for the device's next asynchronous event (ibv_get_async_event). It acknowledges
// the event before it returns (ibv_ack_async_event), so an event never delays a Close. The device
// keeps each event until a caller takes it or its object is closed, and gives it to one caller. A
// device keeps a few hundred events and drops further ones. The call after the last kept event then
// returns ENOBUFS, which says how many were dropped. When ctx ends, the error is an [*Error] that
// wraps ctx.Err(); when the context is closed, it is os.ErrClosed.
//
// The engine and siw raise these events; other devices of the kernel may raise fewer:
//
//   - EventQPFatal: a WR names memory that it may not use, or a message does not fit its queue.
//   - EventQPAccessErr: the peer wrote where it may not.
//   - EventQPReqErr: the peer read where it may not.
//   - EventCQErr: a CQ has overflowed.
//   - EventSQDrained: a send queue was flushed.
//   - EventSRQLimitReached.
//
// siw raises no EventSQDrained for QPAttr.EnSQDAsyncNotify; the engine and rxe do. Only the engine
// raises EventQPLastWQEReached, when a QP with an SRQ is in QPErr and takes no more receives. Only
// the engine raises EventDeviceFatal, when it can no longer wait for its sockets, which ends all
// its connections. Only the kernel raises EventPortActive, EventPortErr and EventLIDChange.
func (c *Context) AsyncEvent(ctx context.Context) (AsyncEvent, error) {
	const op = "ibv_get_async_event"
	if err := c.ok(op); err != nil {
		return AsyncEvent{}, err
	}
	e, err := c.dev.AsyncEvent(ctx)
	if err != nil {
		if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
			err = object.GaveUp(ctx, op, c.Name(), ended, "there was an event")
		}
		return AsyncEvent{}, err
	}
	ev := AsyncEvent{Type: e.Type, Port: e.Port}
	if e.QP != nil {
		ev.QP, _ = e.QP.Cookie().(*QP)
	}
	if e.CQ != nil {
		ev.CQ, _ = e.CQ.Cookie().(*CQ)
	}
	if e.SRQ != nil {
		ev.SRQ, _ = e.SRQ.Cookie().(*SRQ)
	}
	return ev, nil
}

// Close closes the device (ibv_close_device). While a PD, CQ, completion channel or CM event
// channel of it is open, Close returns EBUSY and names what is open. rdmacm's Conns, Listeners and
// Requests each have such a channel, so the error counts them by these names.
func (c *Context) Close() error {
	if c == nil || c.dev == nil {
		return nil
	}
	return c.obj.Close(c.dev.Close)
}

// errNil returns the error of a method of a nil or zero object.
func errNil(op, what string) error {
	return object.Errorf(op, "", syscall.EINVAL, "nil %s; check the error of the call that makes it", what)
}

func errNoProvider(op string) error {
	return object.Errorf(op, "", syscall.EINVAL, "nil provider; pass engine.New(nil) or kernel.New()")
}

func init() {
	object.Device = func(vctx any) (provider.Device, *object.Object) {
		c := vctx.(*Context)
		return c.dev, &c.obj
	}
	object.CreateQP = func(op string, pd, init any, owner *object.Object,
		create func(provider.PD, provider.QPInitAttr) (provider.QP, error),
	) (any, error) {
		return createQP(op, pd.(*PD), init.(*QPInitAttr), owner, create)
	}
	object.RetirePD = func(pd any) error {
		p := pd.(*PD)
		return p.obj.Retire(p.p.Close)
	}
	object.TakeCQ = func(cq any, why func() string, owns func(uint64) bool) (object.CQTaker, error) {
		return cq.(*CQ).take(why, owns)
	}
	object.Polled = func(cq any, op string) error { return cq.(*CQ).polled(op) }
	object.QP = func(qp any) provider.QP { return qp.(*QP).p }
	object.Mark = func(ctx context.Context, qp any) error {
		q := qp.(*QP)
		if err := q.ok("ibv_post_send"); err != nil {
			return err
		}
		_, err := q.mark(ctx, 0)
		return err
	}
}
