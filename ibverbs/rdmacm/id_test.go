package rdmacm_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

func TestEventsNameOurIDs(t *testing.T) {
	f, vctx := newFake(t, goodDial())
	ch := must[*rdmacm.EventChannel](t)(rdmacm.CreateEventChannel(vctx))
	other := must[*rdmacm.EventChannel](t)(rdmacm.CreateEventChannel(vctx))
	if ch.Context() != vctx {
		t.Error("the channel lost its context")
	}
	id := must[*rdmacm.ID](t)(ch.CreateID("mine"))
	ok(t, id.ResolveAddr(netip.AddrPort{}, somewhere, time.Second))
	ev := must[*rdmacm.Event](t)(ch.GetEvent(t.Context()))
	if ev.Type != rdmacm.AddrResolved || ev.ID != id || ev.ListenID != nil || ev.Err() != nil || id.Cookie() != "mine" {
		t.Errorf("event %+v", ev)
	}
	wantErr(t, "channel with an id", ch.Close(), syscall.EBUSY, "1 CM id")
	ok(t, id.Migrate(other))
	if id.Channel() != other {
		t.Error("the id is still on its first channel")
	}
	ok(t, ch.Close())
	ok(t, ch.Close())
	_, err := ch.GetEvent(t.Context())
	wantErr(t, "GetEvent of a closed channel", err, os.ErrClosed)
	_, err = ch.CreateID(nil)
	wantErr(t, "CreateID on a closed channel", err, os.ErrClosed)
	wantErr(t, "Migrate to a closed channel", id.Migrate(ch), os.ErrClosed)
	f.Fail("migrate", syscall.EIO)
	third := must[*rdmacm.EventChannel](t)(rdmacm.CreateEventChannel(vctx))
	wantErr(t, "Migrate that fails", id.Migrate(third), syscall.EIO)
	ok(t, third.Close())

	ok(t, id.ResolveRoute(time.Second))
	ev = must[*rdmacm.Event](t)(other.GetEvent(t.Context()))
	if ev.Type != rdmacm.RouteResolved || ev.ID != id {
		t.Errorf("event %+v", ev)
	}
	id.SetCookie(5)
	if id.Cookie() != 5 {
		t.Error("SetCookie did not")
	}
	ok(t, id.Close())
	ok(t, id.Close())
	wantErr(t, "call on a closed id", id.Disconnect(), os.ErrClosed)
	ok(t, other.Close())
	ok(t, vctx.Close())
}

func TestConnectRequestMakesAnID(t *testing.T) {
	_, vctx, l, lid := listen(t)
	_ = l
	nid := lid.Request(provider.ConnParam{PrivateData: []byte("x"), ResponderResources: 1, InitiatorDepth: 2})
	lid.Event(provider.CMAddrChange, 0, nil) // of no interest to Accept
	req := must[*rdmacm.Request](t)(l.Accept(t.Context()))
	if _, is := nid.Cookie().(*rdmacm.ID); !is {
		t.Errorf("the new id's cookie is %T", nid.Cookie())
	}
	ok(t, req.Close())
	ok(t, l.Close())
	ok(t, vctx.Close())
}

func TestQPOfAnID(t *testing.T) {
	f, vctx := newFake(t, goodDial())
	_, foreign := newFake(t, nil)
	ch := must[*rdmacm.EventChannel](t)(rdmacm.CreateEventChannel(vctx))
	id := must[*rdmacm.ID](t)(ch.CreateID(nil))
	pd := must[*ibverbs.PD](t)(vctx.AllocPD())
	cq := must[*ibverbs.CQ](t)(vctx.CreateCQ(1, nil))
	init := &ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cookie: "c"}

	_, err := id.CreateQP(nil, init)
	wantErr(t, "no pd", err, syscall.EINVAL, "nil pd")
	_, err = id.CreateQP(pd, nil)
	wantErr(t, "no attributes", err, syscall.EINVAL, "nil QPInitAttr")
	_, err = id.CreateQP(must[*ibverbs.PD](t)(foreign.AllocPD()), init)
	wantErr(t, "foreign pd", err, syscall.EINVAL, "different contexts")
	wantErr(t, "foreign channel", id.Migrate(must[*rdmacm.EventChannel](t)(rdmacm.CreateEventChannel(foreign))), syscall.EINVAL, "another context")
	f.BoundTo = "other0"
	_, err = id.CreateQP(pd, init)
	wantErr(t, "other device", err, syscall.EINVAL, "other0", "fake0")
	if id.DeviceName() != "other0" {
		t.Errorf("the id says it's on %q", id.DeviceName())
	}
	f.BoundTo = "fake0"

	qp := must[*ibverbs.QP](t)(id.CreateQP(pd, init))
	if id.QP() != qp || qp.Cookie() != "c" || qp.PD() != pd {
		t.Error("the QP is not what was asked for")
	}
	wantErr(t, "id with a QP", id.Close(), syscall.EBUSY, "1 QP")
	ok(t, qp.Close())
	ok(t, id.Close())

	// A QP that the id did not make goes to Connect and Accept.
	id = must[*rdmacm.ID](t)(ch.CreateID(nil))
	qp = must[*ibverbs.QP](t)(pd.CreateQP(init))
	for _, call := range []func(*rdmacm.ConnParam) error{id.Connect, id.Accept} {
		ok(t, call(&rdmacm.ConnParam{QP: qp, PrivateData: []byte("p"), ResponderResources: 3, InitiatorDepth: 4}))
		must[*rdmacm.Event](t)(ch.GetEvent(t.Context()))
		ok(t, call(nil))
		must[*rdmacm.Event](t)(ch.GetEvent(t.Context()))
	}
	for _, c := range []func() error{qp.Close, id.Close, ch.Close, cq.Close, pd.Close, vctx.Close} {
		ok(t, c())
	}
}

func TestNilAndZero(t *testing.T) {
	ctx := context.Background()
	var zero rdmacm.ID
	for _, id := range []*rdmacm.ID{nil, &zero} {
		for name, f := range map[string]func() error{
			"BindAddr":     func() error { return id.BindAddr(somewhere) },
			"ResolveAddr":  func() error { return id.ResolveAddr(somewhere, somewhere, 1) },
			"ResolveRoute": func() error { return id.ResolveRoute(1) },
			"CreateQP":     func() error { _, err := id.CreateQP(nil, nil); return err },
			"Listen":       func() error { return id.Listen(1) },
			"Connect":      func() error { return id.Connect(nil) },
			"Accept":       func() error { return id.Accept(nil) },
			"Reject":       func() error { return id.Reject(nil) },
			"Disconnect":   func() error { return id.Disconnect() },
			"Migrate":      func() error { return id.Migrate(nil) },
		} {
			wantErr(t, name, f(), syscall.EINVAL, "nil cm id")
		}
		ok(t, id.Close())
		if id.LocalAddr().IsValid() || id.RemoteAddr().IsValid() || id.DeviceName() != "" || id.Cookie() != nil || id.QP() != nil || id.Channel() != nil {
			t.Error("no id has properties")
		}
	}
	for _, ch := range []*rdmacm.EventChannel{nil, new(rdmacm.EventChannel)} {
		_, err := ch.CreateID(nil)
		wantErr(t, "CreateID", err, syscall.EINVAL, "nil event channel")
		_, err = ch.GetEvent(ctx)
		wantErr(t, "GetEvent", err, syscall.EINVAL, "nil event channel")
		ok(t, ch.Close())
	}
	for _, vctx := range []*ibverbs.Context{nil, new(ibverbs.Context)} {
		_, err := rdmacm.CreateEventChannel(vctx)
		wantErr(t, "CreateEventChannel", err, syscall.EINVAL, "nil context")
		_, err = rdmacm.Dial(ctx, vctx, somewhere, nil)
		wantErr(t, "Dial", err, syscall.EINVAL, "nil context")
		_, err = rdmacm.Listen(ctx, vctx, somewhere, nil)
		wantErr(t, "Listen", err, syscall.EINVAL, "nil context")
	}
	for _, c := range []*rdmacm.Conn{nil, new(rdmacm.Conn)} {
		wantErr(t, "Disconnect", c.Disconnect(), syscall.EINVAL, "nil cm id")
		wantErr(t, "Shutdown", c.Shutdown(ctx), syscall.EINVAL, "nil connection")
		ok(t, c.Wait(ctx))
		<-c.Done()
		ok(t, c.Close())
		if c.QP() != nil || c.PD() != nil || c.SendCQ() != nil || c.RecvCQ() != nil || c.ID() != nil ||
			c.PrivateData() != nil || c.LocalAddr().IsValid() || c.RemoteAddr().IsValid() {
			t.Error("no connection has properties")
		}
	}
	for _, l := range []*rdmacm.Listener{nil, new(rdmacm.Listener)} {
		_, err := l.Accept(ctx)
		wantErr(t, "Listener.Accept", err, syscall.EINVAL, "nil listener")
		ok(t, l.Close())
		if l.Addr().IsValid() {
			t.Error("no listener has an address")
		}
	}
	for _, r := range []*rdmacm.Request{nil, new(rdmacm.Request)} {
		_, err := r.Accept(ctx, nil)
		wantErr(t, "Request.Accept", err, syscall.EINVAL, "nil request")
		wantErr(t, "Request.Reject", r.Reject(nil), syscall.EINVAL, "nil request")
		ok(t, r.Close())
		if r.PrivateData() != nil || r.LocalAddr().IsValid() || r.RemoteAddr().IsValid() || r.ResponderResources() != 0 || r.InitiatorDepth() != 0 {
			t.Error("no request has properties")
		}
	}
}

func TestGetEventGivenUp(t *testing.T) {
	_, vctx := newFake(t, nil)
	ch := must[*rdmacm.EventChannel](t)(rdmacm.CreateEventChannel(vctx))
	first, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	for range cap(errs) { // one waits for events, the other for its turn
		go func() {
			_, err := ch.GetEvent(first)
			errs <- err
		}()
	}
	cancel()
	for range cap(errs) {
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
	ok(t, ch.Close())
	ok(t, vctx.Close())
}
