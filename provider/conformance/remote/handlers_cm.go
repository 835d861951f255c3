package remote

import (
	"context"
	"fmt"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

var connectionVerbs = map[string]handler{
	"rdma_create_id": on(func(_ context.Context, s *served, t target[provider.EventChannel],
		_ none) (made, error) {
		return s.made(t.device, rankID, func(h uint32) (any, error) { return t.o.CreateID(h) })
	}),
	"rdma_destroy_id": ending(provider.ID.Close).moving(),
	"rdma_get_cm_event": on(func(ctx context.Context, s *served, t target[provider.EventChannel],
		_ none) (cmEvent, error) {
		e, err := t.o.Next(ctx)
		if err != nil {
			return cmEvent{}, err
		}
		return s.event(t.device, &e)
	}).moving(),
	"rdma_bind_addr": given(func(id provider.ID, a bindAddrArgs) error { return id.BindAddr(a.Addr) }),
	"rdma_resolve_addr": on(func(_ context.Context, s *served, t target[provider.ID],
		a resolveArgs) (none, error) {
		if n := max(len(a.Src.Addr().Zone()), len(a.Dst.Addr().Zone())); n > maxZone {
			return none{}, fmt.Errorf("a zone of %d bytes is no interface's: %w", n, syscall.EINVAL)
		}
		err := s.paying(eventBytes, func() error { return t.o.ResolveAddr(a.Src, a.Dst, a.Timeout) })
		if err == nil {
			s.eventWaits(t.h)
		}
		return none{}, err
	}),
	"rdma_resolve_route": given(func(id provider.ID, a resolveArgs) error {
		return id.ResolveRoute(a.Timeout)
	}),
	"rdma_create_qp": on(func(_ context.Context, s *served, t target[provider.ID],
		a qpArgs) (made, error) {
		const op = "rdma_create_qp"
		pd, err := also[provider.PD](s, op, a.PD)
		if err != nil {
			return made{}, err
		}
		return s.newQP(op, t.device, a, func(init provider.QPInitAttr) (provider.QP, error) {
			return t.o.CreateQP(pd, init)
		})
	}),
	"rdma_listen":     given(func(id provider.ID, a numberArgs) error { return id.Listen(a.N) }),
	"rdma_connect":    starting("rdma_connect", provider.ID.Connect),
	"rdma_accept":     starting("rdma_accept", provider.ID.Accept),
	"rdma_reject":     given(func(id provider.ID, a privateArgs) error { return id.Reject(a.PrivateData) }),
	"rdma_disconnect": simple(provider.ID.Disconnect).moving(),
	"rdma_migrate_id": on(func(_ context.Context, s *served, t target[provider.ID],
		a channelArgs) (none, error) {
		ch, err := also[provider.EventChannel](s, "rdma_migrate_id", a.Channel)
		if err != nil {
			return none{}, err
		}
		return none{}, t.o.Migrate(ch)
	}),
	"rdma_set_option": given(func(id provider.ID, a optionArgs) error {
		return id.SetOption(a.Option, a.Value)
	}),
	verbAddr: asked(func(id provider.ID) (addresses, error) {
		return addresses{id.LocalAddr(), id.RemoteAddr(), id.DeviceName()}, nil
	}),
}

// starting makes a handler for Connect or Accept.
func starting(op string, f func(provider.ID, provider.ConnParam) error) handler {
	return on(func(_ context.Context, s *served, t target[provider.ID], a connParam) (none, error) {
		param := a.param()
		q, err := also[provider.QP](s, op, a.QP)
		if err != nil {
			return none{}, err
		}
		if q != nil {
			param.QP = q
		}
		return none{}, f(t.o, param)
	})
}

// maxZone is the maximum length of an address's zone, because an id and its events keep it. It is
// longer than any name of an interface.
const maxZone = 64

// eventWaits adds the event that reports the end of ResolveAddr, already charged, to the id's cost
// until the event is fetched. A program can resolve again before that if the address was not found.
func (s *served) eventWaits(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.objects[id]; t != nil {
		t.cost += eventBytes
		return
	}
	s.refund(eventBytes) // the id was closed, with its events
}

// eventFetched undoes eventWaits. It may be called first.
func (s *served) eventFetched(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.objects[id]; t != nil {
		t.cost -= eventBytes
		s.refund(eventBytes)
	}
}

// event converts an event for the control connection. It registers the id that comes with a
// CONNECT_REQUEST in the session.
func (s *served) event(device uint32, e *provider.CMEvent) (cmEvent, error) {
	out := cmEvent{Type: e.Type, Status: e.Status, Cause: encodeError(e.Cause),
		Param: paramOf(&e.Param), RDMAC: e.RDMAC}
	if e.Type != provider.CMConnectRequest {
		if e.ID != nil {
			out.ID = numberOf(e.ID)
		}
		if e.Type == provider.CMAddrResolved || e.Type == provider.CMAddrError {
			s.eventFetched(out.ID)
		}
		return out, nil
	}
	if e.ListenID != nil {
		out.Listen = numberOf(e.ListenID)
	}
	h, err := s.add(device, rankID, objectBytes, func(h uint32) (any, error) {
		e.ID.SetCookie(h)
		return e.ID, nil
	})
	if err != nil {
		_ = e.ID.Close()
		return cmEvent{}, err
	}
	out.ID = h
	return out, nil
}
