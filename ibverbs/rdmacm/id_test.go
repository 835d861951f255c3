package rdmacm_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

func TestEventsNameOurIDs(t *testing.T) {
	f, vctx := newFake(t, goodDial())
	ch := testkit.Must(rdmacm.CreateEventChannel(vctx))(t)
	other := testkit.Must(rdmacm.CreateEventChannel(vctx))(t)
	if ch.Context() != vctx {
		t.Error("the channel lost its context")
	}
	id := testkit.Must(ch.CreateID("mine"))(t)
	testkit.OK(t, id.ResolveAddr(netip.AddrPort{}, somewhere, time.Second))
	ev := testkit.Must(ch.GetEvent(t.Context()))(t)
	if ev.Type != rdmacm.AddrResolved || ev.ID != id || ev.ListenID != nil || ev.Err() != nil || id.Cookie() != "mine" {
		t.Errorf("event %+v", ev)
	}
	wantErr(t, "channel with an id", ch.Close(), syscall.EBUSY, "1 CM id")
	testkit.OK(t, id.Migrate(other))
	if id.Channel() != other {
		t.Error("the id is still on its first channel")
	}
	testkit.OK(t, ch.Close())
	testkit.OK(t, ch.Close())
	_, err := ch.GetEvent(t.Context())
	wantErr(t, "GetEvent of a closed channel", err, os.ErrClosed)
	_, err = ch.CreateID(nil)
	wantErr(t, "CreateID on a closed channel", err, os.ErrClosed)
	wantErr(t, "Migrate to a closed channel", id.Migrate(ch), os.ErrClosed)
	f.Fail("migrate", syscall.EIO)
	third := testkit.Must(rdmacm.CreateEventChannel(vctx))(t)
	wantErr(t, "Migrate that fails", id.Migrate(third), syscall.EIO)
	testkit.OK(t, third.Close())

	testkit.OK(t, id.ResolveRoute(time.Second))
	ev = testkit.Must(other.GetEvent(t.Context()))(t)
	if ev.Type != rdmacm.RouteResolved || ev.ID != id {
		t.Errorf("event %+v", ev)
	}
	id.SetCookie(5)
	if id.Cookie() != 5 {
		t.Error("SetCookie did not")
	}
	testkit.OK(t, id.Close())
	testkit.OK(t, id.Close())
	wantErr(t, "call on a closed id", id.Disconnect(), os.ErrClosed)
	testkit.OK(t, other.Close())
	testkit.OK(t, vctx.Close())
}

func TestConnectRequestMakesAnID(t *testing.T) {
	_, vctx, l, lid := listen(t)
	_ = l
	nid := lid.Request(provider.ConnParam{PrivateData: []byte("x"), ResponderResources: 1, InitiatorDepth: 2})
	lid.Event(provider.CMAddrChange, 0, nil) // Accept ignores it
	req := testkit.Must(l.Accept(t.Context()))(t)
	if _, is := nid.Cookie().(*rdmacm.ID); !is {
		t.Errorf("the new id's cookie is %T", nid.Cookie())
	}
	testkit.OK(t, req.Close())
	testkit.OK(t, l.Close())
	testkit.OK(t, vctx.Close())
}

func TestQPOfAnID(t *testing.T) {
	f, vctx := newFake(t, goodDial())
	_, foreign := newFake(t, nil)
	ch := testkit.Must(rdmacm.CreateEventChannel(vctx))(t)
	id := testkit.Must(ch.CreateID(nil))(t)
	pd := testkit.Must(vctx.AllocPD())(t)
	cq := testkit.Must(vctx.CreateCQ(1, nil))(t)
	init := &ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cookie: "c"}

	_, err := id.CreateQP(nil, init)
	wantErr(t, "no pd", err, syscall.EINVAL, "nil pd")
	_, err = id.CreateQP(pd, nil)
	wantErr(t, "no attributes", err, syscall.EINVAL, "nil QPInitAttr")
	_, err = id.CreateQP(testkit.Must(foreign.AllocPD())(t), init)
	wantErr(t, "foreign pd", err, syscall.EINVAL, "different contexts")
	wantErr(t, "foreign channel", id.Migrate(testkit.Must(rdmacm.CreateEventChannel(foreign))(t)), syscall.EINVAL, "another context")
	f.BoundTo = "other0"
	_, err = id.CreateQP(pd, init)
	wantErr(t, "other device", err, syscall.EINVAL, "other0", "fake0")
	if id.DeviceName() != "other0" {
		t.Errorf("the id says it's on %q", id.DeviceName())
	}
	f.BoundTo = "fake0"

	qp := testkit.Must(id.CreateQP(pd, init))(t)
	if id.QP() != qp || qp.Cookie() != "c" || qp.PD() != pd {
		t.Error("the QP is not what was asked for")
	}
	wantErr(t, "id with a QP", id.Close(), syscall.EBUSY, "1 QP")
	testkit.OK(t, qp.Close())
	testkit.OK(t, id.Close())

	// Connect and Accept take a QP that the id did not make.
	id = testkit.Must(ch.CreateID(nil))(t)
	qp = testkit.Must(pd.CreateQP(init))(t)
	for _, call := range []func(*rdmacm.ConnParam) error{id.Connect, id.Accept} {
		testkit.OK(t, call(&rdmacm.ConnParam{QP: qp, PrivateData: []byte("p"), ResponderResources: 3, InitiatorDepth: 4}))
		testkit.Must(ch.GetEvent(t.Context()))(t)
		testkit.OK(t, call(nil))
		testkit.Must(ch.GetEvent(t.Context()))(t)
	}
	for _, c := range []func() error{qp.Close, id.Close, ch.Close, cq.Close, pd.Close, vctx.Close} {
		testkit.OK(t, c())
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
		testkit.OK(t, id.Close())
		if id.LocalAddr().IsValid() || id.RemoteAddr().IsValid() || id.DeviceName() != "" || id.Cookie() != nil || id.QP() != nil || id.Channel() != nil {
			t.Error("no id has properties")
		}
	}
	for _, ch := range []*rdmacm.EventChannel{nil, new(rdmacm.EventChannel)} {
		_, err := ch.CreateID(nil)
		wantErr(t, "CreateID", err, syscall.EINVAL, "nil event channel")
		_, err = ch.GetEvent(ctx)
		wantErr(t, "GetEvent", err, syscall.EINVAL, "nil event channel")
		testkit.OK(t, ch.Close())
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
		testkit.OK(t, c.Wait(ctx))
		<-c.Done()
		testkit.OK(t, c.Close())
		if c.QP() != nil || c.PD() != nil || c.SendCQ() != nil || c.RecvCQ() != nil || c.ID() != nil ||
			c.PrivateData() != nil || c.LocalAddr().IsValid() || c.RemoteAddr().IsValid() {
			t.Error("no connection has properties")
		}
	}
	for _, l := range []*rdmacm.Listener{nil, new(rdmacm.Listener)} {
		_, err := l.Accept(ctx)
		wantErr(t, "Listener.Accept", err, syscall.EINVAL, "nil listener")
		testkit.OK(t, l.Close())
		if l.Addr().IsValid() {
			t.Error("no listener has an address")
		}
	}
	for _, r := range []*rdmacm.Request{nil, new(rdmacm.Request)} {
		_, err := r.Accept(ctx, nil)
		wantErr(t, "Request.Accept", err, syscall.EINVAL, "nil request")
		wantErr(t, "Request.Reject", r.Reject(nil), syscall.EINVAL, "nil request")
		testkit.OK(t, r.Close())
		if r.PrivateData() != nil || r.LocalAddr().IsValid() || r.RemoteAddr().IsValid() || r.ResponderResources() != 0 || r.InitiatorDepth() != 0 {
			t.Error("no request has properties")
		}
	}
}

func TestGetEventGivenUp(t *testing.T) {
	_, vctx := newFake(t, nil)
	ch := testkit.Must(rdmacm.CreateEventChannel(vctx))(t)
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
	testkit.OK(t, ch.Close())
	testkit.OK(t, vctx.Close())
}
