package rdmacm

import (
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// ID is a communication identifier (struct rdma_cm_id): one end of a connection, or a listener. A
// call whose comment names an "event" returns when the work has begun; an event on the id's channel
// reports the outcome. In a wrong state of the id, calls fail with the errno of the C call.
type ID struct {
	obj     object.Object
	p       provider.ID
	vctx    *ibverbs.Context
	passive bool // came with a ConnectRequest

	mu     sync.Mutex
	ch     *EventChannel
	qp     *ibverbs.QP
	cookie any
}

// newID makes an id and registers it with its channel. The caller sets p and lists the id.
func newID(op string, ch *EventChannel, cookie any) (*ID, error) {
	id := &ID{ch: ch, vctx: ch.vctx, cookie: cookie}
	id.obj.Describe(object.KindID, ch.vctx.Name())
	if err := id.obj.Open(op, &ch.obj); err != nil {
		return nil, err
	}
	return id, nil
}

// adoptID makes the ID for an id that the provider made for a ConnectRequest. It has the listener's
// cookie at first, as in C.
func adoptID(op string, ch *EventChannel, listener *ID, p provider.ID) (*ID, error) {
	id, err := newID(op, ch, listener.Cookie())
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	id.p, id.passive = p, true
	p.SetCookie(id)
	id.obj.List(id)
	return id, nil
}

// idOf returns our ID for a provider's id, which has it as its cookie.
func idOf(p provider.ID) *ID {
	if p == nil {
		return nil
	}
	id, _ := p.Cookie().(*ID)
	return id
}

func (id *ID) ok(op string) error {
	if id == nil || id.p == nil {
		return errNil(op, "cm id")
	}
	return id.obj.Check(op)
}

// BindAddr binds the id to a local address (rdma_bind_addr). For port 0 the provider chooses a
// port, which LocalAddr returns. The unspecified address, 0.0.0.0 or ::, means all addresses of the
// system; the zero AddrPort is EINVAL.
func (id *ID) BindAddr(addr netip.AddrPort) error {
	if err := id.ok("rdma_bind_addr"); err != nil {
		return err
	}
	if !addr.IsValid() {
		return id.obj.Errorf("rdma_bind_addr", syscall.EINVAL,
			"there is no address; use 0.0.0.0 or [::] for all addresses of this host")
	}
	return id.named(id.p.BindAddr(addr))
}

// ResolveAddr finds the device and local address for dst (rdma_resolve_addr). A zero src lets the
// provider choose. Event: AddrResolved or AddrError.
func (id *ID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	if err := id.ok("rdma_resolve_addr"); err != nil {
		return err
	}
	if !dst.IsValid() {
		return id.obj.Errorf("rdma_resolve_addr", syscall.EINVAL,
			"there is no destination address; pass the peer's")
	}
	return id.named(id.p.ResolveAddr(src, dst, timeout))
}

// ResolveRoute finds the route to ResolveAddr's dst (rdma_resolve_route). Event: RouteResolved or
// RouteError.
func (id *ID) ResolveRoute(timeout time.Duration) error {
	if err := id.ok("rdma_resolve_route"); err != nil {
		return err
	}
	return id.named(id.p.ResolveRoute(timeout))
}

// CreateQP makes the QP that the id connects (rdma_create_qp). EINVAL: pd is not of the context of
// the id's channel, or the id is bound to another device; the error then names the two devices.
// Close the QP before the id.
func (id *ID) CreateQP(pd *ibverbs.PD, init *ibverbs.QPInitAttr) (*ibverbs.QP, error) {
	const op = "rdma_create_qp"
	if err := id.ok(op); err != nil {
		return nil, err
	}
	if pd.Context() != nil && pd.Context() != id.vctx {
		return nil, id.obj.Errorf(op, syscall.EINVAL,
			"the pd and the cm id belong to different contexts; use a pd of the id's context")
	}
	if err := id.sameDevice(op); err != nil {
		return nil, err
	}
	create := func(pd provider.PD, init provider.QPInitAttr) (provider.QP, error) {
		return id.p.CreateQP(pd, init)
	}
	made, err := object.CreateQP(op, pd, init, &id.obj, create)
	if err != nil {
		return nil, err
	}
	qp := made.(*ibverbs.QP)
	id.mu.Lock()
	id.qp = qp
	id.mu.Unlock()
	return qp, nil
}

// sameDevice checks that the id is bound to the device of its context.
func (id *ID) sameDevice(op string) error {
	if bound := id.p.DeviceName(); bound != "" && bound != id.vctx.Name() {
		return object.Errorf(op, id.peer(), syscall.EINVAL,
			"the route to the address uses device %s, and the context is of %s; open %[1]s", bound, id.vctx.Name())
	}
	return nil
}

// Listen makes the id a listener (rdma_listen). backlog limits the requests that wait for an
// answer. Events: ConnectRequest.
func (id *ID) Listen(backlog int) error {
	if err := id.ok("rdma_listen"); err != nil {
		return err
	}
	return id.named(id.p.Listen(backlog))
}

// Connect requests a connection from the peer (rdma_connect). Event: Established, Rejected,
// Unreachable or ConnectError. On iWARP the call makes the TCP connection and sends the request,
// and may take as long as that. So a listener gets the requests of consecutive calls in the order
// of the calls. If TCP fails, a kernel device returns an error, and the engine raises the event.
func (id *ID) Connect(param *ConnParam) error {
	if err := id.ok("rdma_connect"); err != nil {
		return err
	}
	return id.named(id.p.Connect(param.provider()))
}

// Accept accepts the request that the id came with (rdma_accept). Event:
// Established or ConnectError.
func (id *ID) Accept(param *ConnParam) error {
	if err := id.ok("rdma_accept"); err != nil {
		return err
	}
	return id.named(id.p.Accept(param.provider()))
}

// Reject refuses the request that the id came with (rdma_reject). private goes
// to the peer with the reply.
func (id *ID) Reject(private []byte) error {
	if err := id.ok("rdma_reject"); err != nil {
		return err
	}
	return id.named(id.p.Reject(private))
}

// Disconnect ends the connection (rdma_disconnect). Event: Disconnected, on both sides. Work in the
// send queue may be lost: call QP.Drain first.
func (id *ID) Disconnect() error {
	if err := id.ok("rdma_disconnect"); err != nil {
		return err
	}
	return id.named(id.p.Disconnect())
}

// Migrate moves the id and its unread events to another channel of the same context
// (rdma_migrate_id).
func (id *ID) Migrate(ch *EventChannel) error {
	const op = "rdma_migrate_id"
	if err := id.ok(op); err != nil {
		return err
	}
	if err := ch.ok(op); err != nil {
		return err
	}
	if ch.vctx != id.vctx {
		return id.obj.Errorf(op, syscall.EINVAL,
			"the event channel belongs to another context; make one with the id's context")
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	err := id.obj.Move(op, &id.ch.obj, &ch.obj, func() error { return id.named(id.p.Migrate(ch.p)) })
	if err != nil {
		return err
	}
	id.ch = ch
	return nil
}

// SetOption sets an option of the id (rdma_set_option at level RDMA_OPTION_ID). Set OptionTOS
// before Connect or Listen, and OptionAFOnly before BindAddr. Later, or with an invalid value,
// SetOption returns EINVAL. The engine has no OptionAckTimeout (errors.ErrUnsupported). The id of a
// connection request has its listener's options.
func (id *ID) SetOption(option IDOption, value int) error {
	if err := id.ok("rdma_set_option"); err != nil {
		return err
	}
	return id.named(id.p.SetOption(option, value))
}

// Channel returns the channel of the id's events.
func (id *ID) Channel() *EventChannel {
	if id == nil {
		return nil
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.ch
}

// QP returns the QP that CreateQP made, nil if none.
func (id *ID) QP() *ibverbs.QP {
	if id == nil {
		return nil
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.qp
}

// LocalAddr returns the id's own address (rdma_get_local_addr), zero if it is
// not bound.
func (id *ID) LocalAddr() netip.AddrPort {
	if id == nil || id.p == nil {
		return netip.AddrPort{}
	}
	return id.p.LocalAddr()
}

// RemoteAddr returns the peer's address (rdma_get_peer_addr), zero if it is not
// known.
func (id *ID) RemoteAddr() netip.AddrPort {
	if id == nil || id.p == nil {
		return netip.AddrPort{}
	}
	return id.p.RemoteAddr()
}

// DeviceName returns the device that the id is bound to, "" if it is not bound yet. A listener on
// an unspecified address is bound to no device, but the ids of its requests are.
func (id *ID) DeviceName() string {
	if id == nil || id.p == nil {
		return ""
	}
	return id.p.DeviceName()
}

// Cookie returns the value given to CreateID or SetCookie (rdma_cm_id.context). The id of a
// ConnectRequest has its listener's cookie at first.
func (id *ID) Cookie() any {
	if id == nil {
		return nil
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.cookie
}

// SetCookie replaces the cookie.
func (id *ID) SetCookie(cookie any) {
	if id == nil {
		return
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	id.cookie = cookie
}

// Close destroys the id and its connection (rdma_destroy_id). While its QP is open, Close returns
// EBUSY and says so. No event of the id comes afterwards.
func (id *ID) Close() error {
	if id == nil || id.p == nil {
		return nil
	}
	return id.obj.Close(id.p.Close)
}

// peer returns the peer's address for errors, or the id's name if the address is not known.
func (id *ID) peer() string {
	if addr := id.RemoteAddr(); addr.IsValid() {
		return addr.String()
	}
	return id.obj.Name()
}

// named returns err, the error of a call on the id. A provider need not say which id it was.
func (id *ID) named(err error) error {
	if err == nil {
		return nil
	}
	return object.Named(err, id.peer())
}

// provider converts the parameters for a provider; nil means none.
func (p *ConnParam) provider() provider.ConnParam {
	if p == nil {
		return provider.ConnParam{}
	}
	q := provider.ConnParam{
		PrivateData:        p.PrivateData,
		ResponderResources: p.ResponderResources,
		InitiatorDepth:     p.InitiatorDepth,
		RetryCount:         p.RetryCount,
		RNRRetryCount:      p.RNRRetryCount,
	}
	if p.QP != nil {
		q.QP = object.QP(p.QP)
	}
	return q
}
