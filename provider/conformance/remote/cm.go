package remote

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/govs-rdma/govs/provider"
)

// eventChannel is a CM event channel of the agent.
type eventChannel struct {
	far
	dev *Device
}

// CreateID implements provider.EventChannel.
func (ch *eventChannel) CreateID(cookie any) (provider.ID, error) {
	r, err := quiet[made](&ch.far, "rdma_create_id", none{})
	if err != nil {
		return nil, err
	}
	return ch.dev.newID(r.Handle, cookie), nil
}

func (d *Device) newID(h uint32, cookie any) *cmID {
	id := &cmID{far: d.of(h), dev: d, cookie: cookie}
	d.c.register(h, id)
	return id
}

// Next implements provider.EventChannel.
func (ch *eventChannel) Next(ctx context.Context) (provider.CMEvent, error) {
	for {
		e, err := do[cmEvent](ctx, &ch.far, nil, "rdma_get_cm_event", none{})
		if err != nil {
			return provider.CMEvent{}, err
		}
		ev := provider.CMEvent{Type: e.Type, Status: e.Status, Cause: e.Cause.decode(),
			Param: e.Param.param(), RDMAC: e.RDMAC}
		if e.Type == provider.CMConnectRequest {
			l := object[*cmID](ch.c, e.Listen)
			id := ch.dev.newID(e.ID, nil)
			if l == nil { // it is closed on this side
				_ = id.Close()
				continue
			}
			id.SetCookie(l.Cookie())
			ev.ID, ev.ListenID = id, l
			return ev, nil
		}
		id := object[*cmID](ch.c, e.ID)
		if id == nil {
			continue
		}
		ev.ID = id
		return ev, nil
	}
}

func (ch *eventChannel) Close() error { return ch.plain("rdma_destroy_event_channel", none{}) }

// cmID is a CM id of the agent.
type cmID struct {
	far
	dev *Device

	mu     sync.Mutex
	cookie any
}

// BindAddr implements provider.ID.
func (id *cmID) BindAddr(addr netip.AddrPort) error {
	return id.plain("rdma_bind_addr", bindAddrArgs{addr})
}

// ResolveAddr implements provider.ID.
func (id *cmID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	return id.plain("rdma_resolve_addr", resolveArgs{src, dst, timeout})
}

// ResolveRoute implements provider.ID.
func (id *cmID) ResolveRoute(timeout time.Duration) error {
	return id.plain("rdma_resolve_route", resolveArgs{Timeout: timeout})
}

// CreateQP implements provider.ID.
func (id *cmID) CreateQP(in provider.PD, init provider.QPInitAttr) (provider.QP, error) {
	const op = "rdma_create_qp"
	p, ok := in.(*pd)
	if !ok || p.c != id.c {
		return nil, foreign(op, "PD")
	}
	return id.dev.createQP(&id.far, op, p.h, init)
}

// Listen implements provider.ID.
func (id *cmID) Listen(backlog int) error { return id.plain("rdma_listen", numberArgs{backlog}) }

// Connect implements provider.ID.
func (id *cmID) Connect(param provider.ConnParam) error { return id.start("rdma_connect", &param) }

// Accept implements provider.ID.
func (id *cmID) Accept(param provider.ConnParam) error { return id.start("rdma_accept", &param) }

func (id *cmID) start(op string, param *provider.ConnParam) error {
	args := paramOf(param)
	if param.QP != nil {
		q, ok := param.QP.(*qp)
		if !ok || q.c != id.c {
			return foreign(op, "QP")
		}
		args.QP = q.h
	}
	return id.plain(op, args)
}

// Reject implements provider.ID.
func (id *cmID) Reject(private []byte) error { return id.plain("rdma_reject", privateArgs{private}) }

// Disconnect implements provider.ID.
func (id *cmID) Disconnect() error { return id.plain("rdma_disconnect", none{}) }

// Migrate implements provider.ID.
func (id *cmID) Migrate(to provider.EventChannel) error {
	const op = "rdma_migrate_id"
	ch, ok := to.(*eventChannel)
	if !ok || ch.c != id.c {
		return foreign(op, "event channel")
	}
	return id.plain(op, channelArgs{ch.h})
}

// SetOption implements provider.ID.
func (id *cmID) SetOption(option provider.IDOption, value int) error {
	return id.plain("rdma_set_option", optionArgs{option, value})
}

func (id *cmID) addresses() addresses {
	a, _ := quiet[addresses](&id.far, verbAddr, none{})
	return a
}

func (id *cmID) LocalAddr() netip.AddrPort  { return id.addresses().Local }
func (id *cmID) RemoteAddr() netip.AddrPort { return id.addresses().Remote }
func (id *cmID) DeviceName() string         { return id.addresses().Device }

// Cookie implements provider.ID.
func (id *cmID) Cookie() any {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.cookie
}

// SetCookie implements provider.ID.
func (id *cmID) SetCookie(cookie any) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.cookie = cookie
}

func (id *cmID) Close() error { return id.destroy("rdma_destroy_id") }
