package ibverbs_test

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/fake"
	"github.com/govs-rdma/govs/provider"
)

func TestParentsCloseLast(t *testing.T) {
	o := newObjects(t)
	o.fake.Calls()
	wantErrno(t, "context with children", o.ctx.Close(), syscall.EBUSY, "fake0", "1 CQ", "1 PD", "1 completion channel")
	wantErrno(t, "pd with children", o.pd.Close(), syscall.EBUSY, "1 MR", "1 QP")
	wantErrno(t, "channel with a CQ", o.ch.Close(), syscall.EBUSY, "1 CQ")
	wantErrno(t, "cq of a QP", o.cq.Close(), syscall.EBUSY, "QP")
	if calls := o.fake.Calls(); len(calls) != 0 {
		t.Errorf("closing too early reached the provider: %v", calls)
	}
	// All of them still work.
	if _, err := o.pd.AllocMR(1, 0); err != nil {
		t.Errorf("the pd after a Close that was EBUSY: %v", err)
	}
	wantErrno(t, "pd with two regions", o.pd.Close(), syscall.EBUSY, "2 MR")
}

func TestCloseInOrder(t *testing.T) {
	o := newObjects(t)
	o.fake.Calls()
	closers := []func() error{o.qp.Close, o.mr.Close, o.cq.Close, o.ch.Close, o.pd.Close, o.ctx.Close}
	for range 2 {
		for i, c := range closers {
			if err := c(); err != nil {
				t.Errorf("closer %d: %v", i, err)
			}
		}
	}
	if calls := o.fake.Calls(); len(calls) != len(closers) {
		t.Errorf("closing each twice made these calls: %v", calls)
	}
}

func TestClosedObjects(t *testing.T) {
	o := newObjects(t)
	for _, c := range []func() error{o.qp.Close, o.mr.Close, o.cq.Close, o.ch.Close, o.pd.Close, o.ctx.Close} {
		testkit.OK(t, c())
	}
	ctx := timeout(t)
	wc := make([]ibverbs.WC, 1)
	for name, f := range map[string]func() error{
		"Query":       func() error { _, err := o.ctx.Query(); return err },
		"QueryPort":   func() error { _, err := o.ctx.QueryPort(1); return err },
		"QueryGID":    func() error { _, err := o.ctx.QueryGID(1, 0); return err },
		"AsyncEvent":  func() error { _, err := o.ctx.AsyncEvent(ctx); return err },
		"AllocPD":     func() error { _, err := o.ctx.AllocPD(); return err },
		"CreateCQ":    func() error { _, err := o.ctx.CreateCQ(1, nil); return err },
		"CompChannel": func() error { _, err := o.ctx.CreateCompChannel(); return err },
		"RegMR":       func() error { _, err := o.pd.RegMR(make([]byte, 1), 0); return err },
		"AllocMR":     func() error { _, err := o.pd.AllocMR(1, 0); return err },
		"CreateQP": func() error {
			_, err := o.pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: o.cq, RecvCQ: o.cq})
			return err
		},
		"Next":      func() error { _, err := o.ch.Next(ctx); return err },
		"Poll":      func() error { _, err := o.cq.Poll(wc); return err },
		"PollWait":  func() error { _, err := o.cq.PollWait(ctx, wc); return err },
		"ReqNotify": func() error { return o.cq.ReqNotify(false) },
		"Modify":    func() error { return o.qp.Modify(ibverbs.QPAttr{}, 0) },
		"QP.Query":  func() error { _, _, err := o.qp.Query(); return err },
		"Drain":     func() error { return o.qp.Drain(ctx) },
		"SGE":       func() error { _, err := o.mr.SGE(0, 1); return err },
		"Remote":    func() error { _, err := o.mr.Remote(0, 1); return err },
	} {
		wantErr(t, name, f(), os.ErrClosed)
	}
	if o.mr.Bytes() != nil {
		t.Error("a closed region still shows its memory")
	}
}

// A parent that closes between the making and the registration of its child must not end up with a
// child: registration comes first, and a failure undoes it.
func TestFailedCreationLeavesNothing(t *testing.T) {
	o := newObjects(t)
	no := errors.New("no")
	for _, call := range []string{"alloc pd", "create cq", "create comp channel", "reg mr", "create qp"} {
		o.fake.Fail(call, no)
	}
	init := &ibverbs.QPInitAttr{SendCQ: o.cq, RecvCQ: o.cq}
	for name, f := range map[string]func() error{
		"AllocPD":     func() error { _, err := o.ctx.AllocPD(); return err },
		"CreateCQ":    func() error { _, err := o.ctx.CreateCQ(1, &ibverbs.CQOptions{Channel: o.ch}); return err },
		"CompChannel": func() error { _, err := o.ctx.CreateCompChannel(); return err },
		"AllocMR":     func() error { _, err := o.pd.AllocMR(1, 0); return err },
		"CreateQP":    func() error { _, err := o.pd.CreateQP(init); return err },
	} {
		wantErr(t, name, f(), no)
	}
	for _, c := range []func() error{o.qp.Close, o.mr.Close, o.cq.Close, o.ch.Close, o.pd.Close, o.ctx.Close} {
		if err := c(); err != nil {
			t.Error(err)
		}
	}
	o.fake.Fail("open", no)
	_, err := ibverbs.Open(o.fake, "")
	wantErr(t, "Open", err, no)
}

func TestFailedCloseCanBeRepeated(t *testing.T) {
	o := newObjects(t)
	eio := syscall.EIO
	o.fake.Fail("close qp", eio)
	wantErr(t, "first Close", o.qp.Close(), eio)
	wantErrno(t, "the pd of the QP that is still there", o.pd.Close(), syscall.EBUSY, "1 QP")
	if _, _, err := o.qp.Query(); err != nil {
		t.Errorf("the QP after a failed Close: %v", err)
	}
	o.fake.Fail("close qp", nil)
	testkit.OK(t, o.qp.Close())
	testkit.OK(t, o.mr.Close())
	testkit.OK(t, o.pd.Close())
}

// TestNilObjects: nil and zero objects can be closed and have no properties. TestNilAndZeroValues
// makes the calls that fail.
func TestNilObjects(t *testing.T) {
	_, err := ibverbs.Devices(nil)
	wantErrno(t, "Devices", err, syscall.EINVAL, "nil")
	for kind, o := range map[string]objects{"nil": {}, "zero": {
		ctx: new(ibverbs.Context), pd: new(ibverbs.PD), mr: new(ibverbs.MR),
		ch: new(ibverbs.CompChannel), cq: new(ibverbs.CQ), qp: new(ibverbs.QP), srq: new(ibverbs.SRQ),
	}} {
		for i, c := range []func() error{o.qp.Close, o.srq.Close, o.mr.Close, o.cq.Close, o.ch.Close, o.pd.Close, o.ctx.Close} {
			if err := c(); err != nil {
				t.Errorf("%s: close %d: %v", kind, i, err)
			}
		}
		if o.ctx.Name() != "" || o.ctx.Provider() != "" || o.pd.Context() != nil || o.ch.Context() != nil ||
			o.cq.Context() != nil || o.cq.Channel() != nil || o.cq.CQE() != 0 || o.cq.Cookie() != nil ||
			o.qp.QPN() != 0 || o.qp.PD() != nil || o.qp.SendCQ() != nil || o.qp.RecvCQ() != nil ||
			o.qp.SRQ() != nil || o.srq.PD() != nil || o.srq.Cookie() != nil || o.qp.Cookie() != nil ||
			o.qp.Cause() != nil || o.mr.PD() != nil || o.mr.Bytes() != nil || o.mr.Addr() != 0 ||
			o.mr.Len() != 0 || o.mr.LKey() != 0 || o.mr.RKey() != 0 || o.mr.Access() != 0 {
			t.Errorf("%s objects have properties", kind)
		}
	}
}

func TestForeignObjects(t *testing.T) {
	a, b := newObjects(t), newObjects(t)
	_, err := a.ctx.CreateCQ(1, &ibverbs.CQOptions{Channel: b.ch})
	wantErrno(t, "channel of another context", err, syscall.EINVAL, "another context")
	_, err = a.ctx.CreateCQ(1, &ibverbs.CQOptions{Channel: new(ibverbs.CompChannel)})
	wantErrno(t, "zero channel", err, syscall.EINVAL, "completion channel")
	_, err = a.pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: b.cq, RecvCQ: a.cq})
	wantErrno(t, "send CQ of another context", err, syscall.EINVAL, "send CQ", "another context")
	_, err = a.pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: a.cq, RecvCQ: b.cq})
	wantErrno(t, "receive CQ of another context", err, syscall.EINVAL, "receive CQ", "another context")
	_, err = a.pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: a.cq})
	wantErrno(t, "no receive CQ", err, syscall.EINVAL, "nil receive CQ")
	_, err = a.pd.CreateQP(nil)
	wantErrno(t, "no attributes", err, syscall.EINVAL, "nil QPInitAttr")
	if n := a.fake.Count("create qp") + a.fake.Count("create cq"); n != 2 {
		t.Errorf("the provider saw %d creations, want those 2 of newObjects", n)
	}
}

func TestWhatObjectsTell(t *testing.T) {
	o := newObjects(t)
	if o.ctx.Name() != "fake0" || o.ctx.Provider() != "fake" {
		t.Errorf("context is %q of %q", o.ctx.Name(), o.ctx.Provider())
	}
	if o.cq.CQE() != 16 || o.cq.Cookie() != "my cq" || o.cq.Channel() != o.ch || o.cq.Context() != o.ctx {
		t.Error("the CQ lost something")
	}
	if o.qp.QPN() != fake.QPN || o.qp.Cookie() != "my qp" || o.qp.PD() != o.pd || o.qp.SendCQ() != o.cq || o.qp.RecvCQ() != o.cq {
		t.Error("the QP lost something")
	}
	if !errors.Is(o.qp.Cause(), io.EOF) {
		t.Errorf("cause %v", o.qp.Cause())
	}
	attr, init, err := o.qp.Query()
	if err != nil || attr.State != ibverbs.QPRTS || init.Cap.MaxSendWR != 9 || init.Type != ibverbs.QPTypeRC ||
		init.SendCQ != o.cq || init.Cookie != "my qp" {
		t.Errorf("Query: %+v %+v %v", attr, init, err)
	}
	infos, err := ibverbs.Devices(o.fake)
	if err != nil || len(infos) != 1 || infos[0].Name != "fake0" {
		t.Errorf("Devices: %v %v", infos, err)
	}
}

func TestAsyncEventNamesOurObjects(t *testing.T) {
	o := newObjects(t)
	ctx := timeout(t)
	var pqp provider.QP
	o.fake.PostSend = func(qp *fake.QP, wrs []provider.SendWR) (int, error) { pqp = qp; return len(wrs), nil }
	testkit.OK(t, o.qp.PostSend(ibverbs.SendWR{}))
	o.fake.Async <- provider.AsyncEvent{Type: provider.EventQPFatal, QP: pqp}
	o.fake.Async <- provider.AsyncEvent{Type: provider.EventCQErr, CQ: pqp.(*fake.QP).Init.SendCQ}
	o.fake.Async <- provider.AsyncEvent{Type: provider.EventPortErr, Port: 1}
	for _, want := range []ibverbs.AsyncEvent{
		{Type: ibverbs.EventQPFatal, QP: o.qp},
		{Type: ibverbs.EventCQErr, CQ: o.cq},
		{Type: ibverbs.EventPortErr, Port: 1},
	} {
		if got, err := o.ctx.AsyncEvent(ctx); err != nil || got != want {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
	for e, want := range map[ibverbs.AsyncEvent]string{
		{Type: ibverbs.EventQPFatal, QP: o.qp}: "IBV_EVENT_QP_FATAL of qp 7",
		{Type: ibverbs.EventCQErr, CQ: o.cq}:   "IBV_EVENT_CQ_ERR of cq 1 of fake0 (room for 16 completions, my cq)",
		{Type: ibverbs.EventPortErr, Port: 1}:  "IBV_EVENT_PORT_ERR of port 1",
		{Type: ibverbs.EventDeviceFatal}:       "IBV_EVENT_DEVICE_FATAL",
		{Type: ibverbs.AsyncEventType(77)}:     "ibv_event_type 77",
	} {
		if got := e.String(); got != want {
			t.Errorf("an event is %q, want %q", got, want)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err := o.ctx.AsyncEvent(ended)
	wantErr(t, "AsyncEvent of an ended context", err, context.Canceled)
}
