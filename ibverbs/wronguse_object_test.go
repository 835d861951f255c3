package ibverbs_test

import (
	"math"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// wrongObjects are objects that cannot be made.
var wrongObjects = []wrongUse{
	{name: "Open: no device of that name", do: openUnknown},
	{name: "Open: nil provider", do: func(*testing.T) []seen {
		_, err := ibverbs.Open(nil, "")
		return saw("Open", err)
	}},
	{name: "QueryPort: port 0", do: onDevice("QueryPort", func(c *ibverbs.Context) error { _, err := c.QueryPort(0); return err })},
	{name: "QueryGID: index 1000", do: onDevice("QueryGID", func(c *ibverbs.Context) error { _, err := c.QueryGID(1, 1000); return err })},
	{name: "QueryPkey: on iWARP", do: onDevice("QueryPkey", func(c *ibverbs.Context) error { _, err := c.QueryPkey(1, 0); return err })},
	{name: "CreateCQ: 0 completions", do: onDevice("CreateCQ", func(c *ibverbs.Context) error { _, err := c.CreateCQ(0, nil); return err })},
	{name: "CreateCQ: too many completions", do: onDevice("CreateCQ", func(c *ibverbs.Context) error { _, err := c.CreateCQ(math.MaxInt32, nil); return err })},
	{name: "CreateCQ: no such vector", do: onDevice("CreateCQ", func(c *ibverbs.Context) error {
		_, err := c.CreateCQ(1, &ibverbs.CQOptions{CompVector: 1000})
		return err
	})},
	{name: "CQ.Resize: 0 completions", do: resizeTo0},
	{name: "RegMR: nil buffer", do: onPD("RegMR", func(pd *ibverbs.PD) error { _, err := pd.RegMR(nil, 0); return err })},
	{name: "RegMR: empty buffer", do: onPD("RegMR", func(pd *ibverbs.PD) error { _, err := pd.RegMR([]byte{}, ibverbs.AccessLocalWrite); return err })},
	{name: "RegMR: remote write without local write", do: onPD("RegMR", func(pd *ibverbs.PD) error {
		_, err := pd.RegMR(make([]byte, 64), ibverbs.AccessRemoteWrite)
		return err
	})},
	{name: "RegMR: unknown rights", do: onPD("RegMR", func(pd *ibverbs.PD) error { _, err := pd.RegMR(make([]byte, 64), 1<<12); return err }), not: "libibverbs' optional rights are there, and siw drops them"},
	{name: "MR.Remote: no right for the peer", do: onPD("MR.Remote", func(pd *ibverbs.PD) error {
		mr, err := pd.RegMR(make([]byte, 64), ibverbs.AccessLocalWrite)
		if err != nil {
			return err
		}
		defer mr.Close()
		_, err = mr.Remote(0, 64)
		return err
	})},
	{name: "AllocMR: 0 bytes", do: onPD("AllocMR", func(pd *ibverbs.PD) error { _, err := pd.AllocMR(0, 0); return err })},
	{name: "AllocMR: -1 bytes", do: onPD("AllocMR",
		func(pd *ibverbs.PD) error { _, err := pd.AllocMR(-1, 0); return err })},
	{name: "AllocMR: more than there is", do: onPD("AllocMR", func(pd *ibverbs.PD) error { _, err := pd.AllocMR(math.MaxInt/2+1, 0); return err })},
	{name: "CreateQP: nil", do: onPD("CreateQP", func(pd *ibverbs.PD) error { _, err := pd.CreateQP(nil); return err })},
	{name: "CreateQP: no CQs", do: onPD("CreateQP", func(pd *ibverbs.PD) error { _, err := pd.CreateQP(&ibverbs.QPInitAttr{}); return err })},
	{name: "CreateQP: MaxSendWR 0", do: badQP(func(c *ibverbs.QPInitAttr) { c.Cap.MaxSendWR = 0 })},
	{name: "CreateQP: MaxSendWR too large", do: badQP(func(c *ibverbs.QPInitAttr) { c.Cap.MaxSendWR = math.MaxInt32 })},
	{name: "CreateQP: MaxRecvWR too large", do: badQP(func(c *ibverbs.QPInitAttr) { c.Cap.MaxRecvWR = math.MaxInt32 })},
	{name: "CreateQP: MaxSendSGE too large", do: badQP(func(c *ibverbs.QPInitAttr) { c.Cap.MaxSendSGE = 1000 })},
	{name: "CreateQP: MaxInlineData too large", do: badQP(func(c *ibverbs.QPInitAttr) { c.Cap.MaxInlineData = 1 << 20 })},
	{name: "CreateQP: datagrams", do: badQP(func(c *ibverbs.QPInitAttr) { c.Type = 4 })},
	{name: "CreateSRQ: 0 receives", do: onPD("CreateSRQ", func(pd *ibverbs.PD) error { _, err := pd.CreateSRQ(&ibverbs.SRQInitAttr{}); return err })},
	{name: "CreateSRQ: too many receives", do: onPD("CreateSRQ", func(pd *ibverbs.PD) error {
		_, err := pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: math.MaxInt32, MaxSGE: 1}})
		return err
	})},
	{name: "SRQ.Modify: a limit above its size", do: func(t *testing.T) []seen {
		return saw("SRQ.Modify", newSRQ(t).Modify(ibverbs.SRQAttr{Limit: 1000}, ibverbs.SRQAttrLimit))
	}},
	{name: "NewSRQReceiver: the CQ is too small", do: smallCQ},
	{name: "RemoteRegion.UnmarshalBinary: too few bytes", do: func(*testing.T) []seen {
		return saw("Unmarshal", new(ibverbs.RemoteRegion).UnmarshalBinary(make([]byte, 7)))
	}},
}

func openUnknown(t *testing.T) []seen {
	vctx, err := openNamed("rocket0")
	testkit.OK(t, vctx.Close())
	return saw("Open", err)
}

// onDevice returns the result of f for a device.
func onDevice(where string, f func(c *ibverbs.Context) error) func(t *testing.T) []seen {
	return func(t *testing.T) []seen {
		vctx, _ := device(t)
		return saw(where, f(vctx))
	}
}

// onPD returns the result of f for a PD.
func onPD(where string, f func(pd *ibverbs.PD) error) func(t *testing.T) []seen {
	return func(t *testing.T) []seen { return saw(where, f(newPD(t))) }
}

// badQP returns the result of CreateQP for good attributes that spoil has changed.
func badQP(spoil func(c *ibverbs.QPInitAttr)) func(t *testing.T) []seen {
	return func(t *testing.T) []seen {
		pd := newPD(t)
		cq := testkit.Must(pd.Context().CreateCQ(4, nil))(t)
		defer cq.Close()
		init := ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 4}}
		spoil(&init)
		_, err := pd.CreateQP(&init)
		return saw("CreateQP", err)
	}
}

func resizeTo0(t *testing.T) []seen {
	vctx, _ := device(t)
	cq := testkit.Must(vctx.CreateCQ(4, nil))(t)
	defer cq.Close()
	return saw("CQ.Resize", cq.Resize(0))
}

// smallCQ makes a Receiver for an SRQ with a CQ that has fewer entries than there are receives.
func smallCQ(t *testing.T) []seen {
	srq := newSRQ(t)
	ch := testkit.Must(srq.PD().Context().CreateCompChannel())(t)
	defer ch.Close()
	cq := testkit.Must(srq.PD().Context().CreateCQ(1, &ibverbs.CQOptions{Channel: ch}))(t)
	defer cq.Close()
	attr := testkit.Must(srq.Query())(t)
	if cq.CQE() >= attr.MaxWR {
		t.Errorf("the CQ has %d entries, and the SRQ %d", cq.CQE(), attr.MaxWR)
	}
	in, err := rdmacm.NewSRQReceiver(srq, cq, attr.MaxWR, 64)
	testkit.OK(t, in.Close())
	return saw("Receiver", err)
}

// wrongEnds are objects that are used after Close, or closed while others need them.
var wrongEnds = []wrongUse{
	{name: "a CQ overflows", do: overflow},
	{name: "PD.Close: an MR and a QP are open on it", do: closePD},
	{name: "CQ.Close: a QP completes to it", do: closeCQ},
	{name: "Context.Close: a PD is open on it", do: closeContext},
	{name: "CompChannel.Close: a CQ uses it", do: closeChannel},
	{name: "EventChannel.Close: an id is on it", do: func(t *testing.T) []seen { ch, _, _ := newID(t); return saw("Close", ch.Close()) }},
	{name: "MR.SGE: the MR is closed", do: afterClose("MR.SGE", func(o *closed) error { _, err := o.mr.SGE(0, 8); return err })},
	{name: "PD.RegMR: the PD is closed", do: afterClose("RegMR", func(o *closed) error { _, err := o.pd.RegMR(make([]byte, 8), 0); return err })},
	{name: "QP.PostSend: the QP is closed", do: afterClose("PostSend", func(o *closed) error { return o.qp.PostSend(ibverbs.SendWR{}) })},
	{name: "QP.PostRecv: the QP is closed", do: afterClose("PostRecv", func(o *closed) error { return o.qp.PostRecv(ibverbs.RecvWR{}) })},
	{name: "QP.Modify: the QP is closed", do: afterClose("Modify", func(o *closed) error {
		return o.qp.Modify(ibverbs.QPAttr{State: ibverbs.QPErr}, ibverbs.QPAttrState)
	})},
	{name: "CQ.Poll: the CQ is closed", do: afterClose("Poll", func(o *closed) error { _, err := o.cq.Poll(make([]ibverbs.WC, 1)); return err })},
	{name: "CQ.ReqNotify: the CQ is closed", do: afterClose("ReqNotify", func(o *closed) error { return o.cq.ReqNotify(false) })},
	{name: "CompChannel.Next: the channel is closed", do: func(t *testing.T) []seen {
		return afterClose("Next", func(o *closed) error { _, err := o.ch.Next(timeout(t)); return err })(t)
	}},
	{name: "SRQ.PostRecv: the SRQ is closed", do: afterClose("PostRecv", func(o *closed) error { return o.srq.PostRecv(ibverbs.RecvWR{}) })},
	{name: "SRQ.Query: the SRQ is closed", do: afterClose("Query", func(o *closed) error { _, err := o.srq.Query(); return err })},
	{name: "Context.AllocPD: the context is closed", do: afterClose("AllocPD", func(o *closed) error { _, err := o.vctx.AllocPD(); return err })},
	{name: "Context.AsyncEvent: the context is closed", do: func(t *testing.T) []seen {
		return afterClose("AsyncEvent", func(o *closed) error { _, err := o.vctx.AsyncEvent(timeout(t)); return err })(t)
	}},
	{name: "Close: a second time, of each", do: closeTwice},
	{name: "ID.Listen: the id is closed", do: listenClosed},
	{name: "Accept: the listener is closed", do: acceptClosed},
	{name: "Conn.Disconnect: the Conn is closed", do: onClosedConn("Disconnect", func(c *lab) error { return c.client.Disconnect() })},
	{name: "Conn.Shutdown: the Conn is closed", do: onClosedConn("Shutdown", func(c *lab) error { return c.client.Shutdown(c.ctx) })},
	{name: "Conn.Wait: the Conn is closed", do: onClosedConn("Wait", func(c *lab) error { return c.client.Wait(c.ctx) })},
	{name: "QP.Modify: no such state", do: func(t *testing.T) []seen {
		return saw("Modify", newQP(t).Modify(ibverbs.QPAttr{State: 77}, ibverbs.QPAttrState))
	}},
	{name: "QP.Modify: from RESET to RTS", do: func(t *testing.T) []seen {
		return saw("Modify", newQP(t).Modify(ibverbs.QPAttr{State: ibverbs.QPRTS}, ibverbs.QPAttrState))
	}, not: "siw takes it"},
	{name: "a method of a nil MR", do: func(*testing.T) []seen {
		_, err := (*ibverbs.MR)(nil).SGE(0, 1)
		return saw("MR.SGE", err)
	}},
	{name: "a method of a nil Conn", do: func(*testing.T) []seen { return saw("Disconnect", (*rdmacm.Conn)(nil).Disconnect()) }},
}

func closePD(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	return saw("PD.Close", c.client.PD().Close())
}

func closeCQ(t *testing.T) []seen { return saw("CQ.Close", newQP(t).SendCQ().Close()) }

func closeContext(t *testing.T) []seen { return saw("Context.Close", newPD(t).Context().Close()) }

func closeChannel(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	return saw("Close", c.client.SendCQ().Channel().Close())
}

// closed is one of each object, closed.
type closed struct {
	vctx *ibverbs.Context
	pd   *ibverbs.PD
	mr   *ibverbs.MR
	ch   *ibverbs.CompChannel
	cq   *ibverbs.CQ
	srq  *ibverbs.SRQ
	qp   *ibverbs.QP
}

// closeAll closes them in order.
func (o *closed) closeAll(t *testing.T) {
	t.Helper()
	for _, close := range []func() error{o.qp.Close, o.srq.Close, o.cq.Close, o.ch.Close, o.mr.Close, o.pd.Close, o.vctx.Close} {
		testkit.OK(t, close())
	}
}

// newClosed makes one of each object and closes it.
func newClosed(t *testing.T) *closed {
	t.Helper()
	vctx, _ := open()
	o := &closed{vctx: vctx}
	o.pd = testkit.Must(vctx.AllocPD())(t)
	o.mr = testkit.Must(o.pd.AllocMR(4096, 0))(t)
	o.ch = testkit.Must(vctx.CreateCompChannel())(t)
	o.cq = testkit.Must(vctx.CreateCQ(4, &ibverbs.CQOptions{Channel: o.ch}))(t)
	o.srq = testkit.Must(o.pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(t)
	o.qp = testkit.Must(o.pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: o.cq, RecvCQ: o.cq, Cap: ibverbs.QPCap{MaxSendWR: 4}}))(t)
	o.closeAll(t)
	return o
}

func afterClose(where string, f func(o *closed) error) func(t *testing.T) []seen {
	return func(t *testing.T) []seen { return saw(where, f(newClosed(t))) }
}

func closeTwice(t *testing.T) []seen {
	newClosed(t).closeAll(t)
	return saw("Close", nil)
}

func listenClosed(t *testing.T) []seen {
	_, id, _ := newID(t)
	testkit.OK(t, id.Close())
	return saw("ID.Listen", id.Listen(1))
}

func acceptClosed(t *testing.T) []seen {
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(timeout(t), vctx, addr, nil))(t)
	testkit.OK(t, l.Close())
	_, err := l.Accept(timeout(t))
	return saw("Accept", err)
}

func onClosedConn(where string, f func(c *lab) error) func(t *testing.T) []seen {
	return func(t *testing.T) []seen {
		c := newLab(t, labConfig{})
		testkit.OK(t, c.client.Close())
		return saw(where, f(c))
	}
}
