package scenarios

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
)

// objects are about making and closing objects of a device, without a connection or
// before it is made. Scenarios that need only one side use the initiator's.
func objects() []*conformance.Scenario {
	return []*conformance.Scenario{
		{
			Slug: "objects/query", Level: conformance.Must,
			Title: "a device reports limits that a program can work with, and an active port",
			Verbs: query,
		},
		{
			Slug: "objects/many-cqs", Level: conformance.Must, Timeout: 20 * time.Second,
			Title: "three hundred completion queues can be open at once, and again after they are closed",
			Verbs: manyCQs,
		},
		{
			Slug: "objects/many-qps", Level: conformance.Must, Timeout: 20 * time.Second,
			Title: "three hundred queue pairs can be open at once, each with a number of its own",
			Verbs: manyQPs,
		},
		{
			Slug: "objects/many-mrs", Level: conformance.Must, Timeout: 20 * time.Second,
			Title: "a thousand regions can be open at once, also of the same memory, each with keys of its own",
			Verbs: manyMRs,
		},
		{
			Slug: "objects/no-receive-queue", Level: conformance.Must,
			Title: "a queue pair that only sends needs no room for receives",
			Verbs: noReceiveQueue,
		},
		{
			Slug: "objects/close-order", Level: conformance.Must,
			Title: "an object that others are open on can't be closed, the error names them, and closing twice is no error",
			Verbs: closeOrder,
		},
		{
			Slug: "objects/use-after-close", Level: conformance.Must,
			Title: "every call on a closed object fails with os.ErrClosed",
			Verbs: useAfterClose,
		},
		{
			Slug: "objects/bad-arguments", Level: conformance.Must,
			Title: "arguments that make no sense are refused with an errno",
			Verbs: badArguments,
		},
		{
			Slug: "objects/post-before-connect", Level: conformance.Must,
			Title: "sends are refused before there is a connection, which the queue pair can have afterwards",
			Verbs: postBeforeConnect, Wire: legal,
		},
		{
			Slug: "objects/error-before-connect", Level: conformance.Must,
			Title: "a queue pair that is moved to the error state before it was connected flushes all work",
			Verbs: errorBeforeConnect,
		},
	}
}

// closing makes the run close objects at its end, last first. Closing must succeed.
func closing(r *conformance.VerbsRun, what string, objects ...io.Closer) {
	r.Cleanup(func() {
		for k := len(objects) - 1; k >= 0; k-- {
			if err := objects[k].Close(); err != nil {
				r.Check(false, what+" can be closed", "number %d: %v", k+1, err)
				return
			}
		}
		r.Check(true, what+" can be closed")
	})
}

// bench holds the objects that a QP needs.
type bench struct {
	ctx *ibverbs.Context
	pd  *ibverbs.PD
	cq  *ibverbs.CQ
}

func newBench(r *conformance.VerbsRun) *bench {
	b := &bench{ctx: r.Initiator.Context}
	var err error
	b.pd, err = b.ctx.AllocPD()
	r.NoError(err, "a PD can be made")
	closing(r, "the PD", b.pd)
	b.cq, err = b.ctx.CreateCQ(16, nil)
	r.NoError(err, "a CQ can be made")
	closing(r, "the CQ", b.cq)
	return b
}

func (b *bench) init(room ibverbs.QPCap) *ibverbs.QPInitAttr {
	return &ibverbs.QPInitAttr{SendCQ: b.cq, RecvCQ: b.cq, Cap: room}
}

var littleRoom = ibverbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}

func query(r *conformance.VerbsRun) {
	ctx := r.Initiator.Context
	attr, err := ctx.Query()
	r.NoError(err, "the device can be queried")
	for _, limit := range []struct {
		name         string
		value, least int
	}{
		{"MaxQP", attr.MaxQP, 300}, {"MaxQPWR", attr.MaxQPWR, 256}, {"MaxSGE", attr.MaxSGE, 2}, {"MaxSGERd", attr.MaxSGERd, 1},
		{"MaxCQ", attr.MaxCQ, 300}, {"MaxCQE", attr.MaxCQE, 1024}, {"MaxMR", attr.MaxMR, 1000}, {"MaxPD", attr.MaxPD, 100},
		{"MaxQPRdAtom", attr.MaxQPRdAtom, 1}, {"MaxQPInitRdAtom", attr.MaxQPInitRdAtom, 1}, {"PhysPortCnt", int(attr.PhysPortCnt), 1},
	} {
		r.Check(limit.value >= limit.least, limit.name+" is enough to work with", "%d", limit.value)
		r.Log("%s %d", limit.name, limit.value)
	}
	r.Check(attr.NodeGUID != 0, "the device has a node GUID")
	r.Observe("atomic-cap", "%d", attr.AtomicCap)
	r.Observe("ports", "%d", attr.PhysPortCnt)
	r.Observe("max-inline", "%v", attr.MaxInline >= 64)

	port, err := ctx.QueryPort(1)
	r.NoError(err, "port 1 can be queried")
	r.Observe("port.state", "%s", port.State)
	r.Check(port.State == ibverbs.PortActive, "port 1 is active", "%s", port.State)
	r.Check(port.ActiveMTU >= 256 && port.ActiveMTU <= port.MaxMTU, "the MTU in use is within what the port can do", "%d of %d", port.ActiveMTU, port.MaxMTU)
	r.Check(port.MaxMsgSz >= 1<<20, "a message may have a MiB", "%d octets", port.MaxMsgSz)
	r.Require(port.GIDTblLen >= 1, "port 1 has a GID")
	gid, err := ctx.QueryGID(1, 0)
	r.NoError(err, "it can be queried")
	r.Check(gid != ibverbs.GID{}, "and is not zero")

	b := newBench(r)
	qp, err := b.pd.CreateQP(b.init(ibverbs.QPCap{MaxSendWR: 5, MaxRecvWR: 6, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 16}))
	r.NoError(err, "a QP can be made")
	closing(r, "the QP", qp)
	now, init, err := qp.Query()
	r.NoError(err, "the QP can be queried")
	k := init.Cap
	r.Check(k.MaxSendWR >= 5 && k.MaxRecvWR >= 6 && k.MaxSendSGE >= 2 && k.MaxRecvSGE >= 2 && k.MaxInlineData >= 16, "it has at least the room that was asked for", "%+v", k)
	r.Check(now.Cap == k, "and reports the same twice", "%+v, %+v", now.Cap, k)
	r.Check(init.SendCQ == b.cq && init.RecvCQ == b.cq && init.Type == ibverbs.QPTypeRC, "and what it was made with")
	conformance.Equal(r.T, now.State, ibverbs.QPReset, "and is in the state RESET")
}

func manyCQs(r *conformance.VerbsRun) {
	const count = 300
	ctx := r.Initiator.Context
	for round := range 2 {
		var open []*ibverbs.CQ
		var err error
		for k := range count {
			var cq *ibverbs.CQ
			// Sizes differ, so that each object takes another amount of what a provider
			// counts.
			if cq, err = ctx.CreateCQ(1<<(k%9), nil); err != nil {
				break
			}
			open = append(open, cq)
		}
		r.Check(err == nil, fmt.Sprintf("all can be made, round %d", round+1), "number %d: %v", len(open)+1, err)
		var wc [1]ibverbs.WC
		for k, cq := range open {
			if n, err := cq.Poll(wc[:]); n != 0 || err != nil || cq.CQE() < 1<<(k%9) {
				r.Check(false, "each is empty and has the room that was asked for", "number %d: %d completions, %v, room for %d", k+1, n, err, cq.CQE())
				break
			}
		}
		for k := range open {
			// The order is neither the order of making nor its reverse.
			if err := open[(k*7)%len(open)].Close(); err != nil {
				r.Check(false, "each can be closed", "%v", err)
				break
			}
		}
	}
}

func manyQPs(r *conformance.VerbsRun) {
	const count = 300
	b := newBench(r)
	numbers := make(map[uint32]bool)
	var open []io.Closer
	var err error
	for range count {
		var qp *ibverbs.QP
		if qp, err = b.pd.CreateQP(b.init(littleRoom)); err != nil {
			break
		}
		open = append(open, qp)
		numbers[qp.QPN()] = true
	}
	closing(r, "every QP", open...)
	r.Check(err == nil, "all can be made", "number %d: %v", len(open)+1, err)
	conformance.Equal(r.T, len(numbers), len(open), "all have numbers of their own")
}

func manyMRs(r *conformance.VerbsRun) {
	const count = 1000
	b := newBench(r)
	memory := make([]byte, 1<<16)
	rkeys := make(map[uint32]bool)
	lkeys := make(map[uint32]bool)
	var open []io.Closer
	var err error
	for k := range count {
		// Every second one has the same memory as the one before it.
		off := k / 2 * 64
		var mr *ibverbs.MR
		if mr, err = b.pd.RegMR(memory[off:off+100], remoteRead); err != nil {
			break
		}
		open = append(open, mr)
		rkeys[mr.RKey()], lkeys[mr.LKey()] = true, true
		if mr.Len() != 100 {
			r.Check(false, "each has its length", "%d", mr.Len())
		}
	}
	closing(r, "every region", open...)
	r.Check(err == nil, "all can be made", "number %d: %v", len(open)+1, err)
	conformance.Equal(r.T, len(rkeys), len(open), "all have rkeys of their own")
	conformance.Equal(r.T, len(lkeys), len(open), "and lkeys")
	r.Check(!rkeys[0], "no rkey is 0")
}

func noReceiveQueue(r *conformance.VerbsRun) {
	b := newBench(r)
	qp, err := b.pd.CreateQP(b.init(ibverbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}))
	r.NoError(err, "it can be made")
	closing(r, "it", qp)
}

// errno is what a failure is compared by.
func errno(err error) string {
	switch {
	case errors.Is(err, os.ErrClosed):
		return "closed"
	case errors.Is(err, errors.ErrUnsupported):
		return "unsupported"
	}
	return fmt.Sprintf("%v", ibverbs.Errno(err))
}

// closeOrder tests the refusals of package ibverbs, which counts open objects itself and
// does not ask the provider. The provider shows that the remaining objects can be closed
// in any order; its own tests cover its refusals.
func closeOrder(r *conformance.VerbsRun) {
	ctx := r.Initiator.Context
	pd, err := ctx.AllocPD()
	r.NoError(err, "a PD can be made")
	mr, err := pd.RegMR(make([]byte, 64), local)
	r.NoError(err, "a region can be made")
	ch, err := ctx.CreateCompChannel()
	r.NoError(err, "a completion channel can be made")
	cq, err := ctx.CreateCQ(16, &ibverbs.CQOptions{Channel: ch})
	r.NoError(err, "a CQ can be made")
	qp, err := pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: littleRoom})
	r.NoError(err, "a QP can be made")
	busy := func(what string, o io.Closer, on ...string) {
		err := o.Close()
		r.Check(ibverbs.Errno(err) == syscall.EBUSY, what+" can't be closed", "%v", err)
		for _, name := range on {
			r.Check(err != nil && strings.Contains(err.Error(), name), what+"'s error names a "+name, "%v", err)
		}
	}
	busy("the PD", pd, "MR", "QP")
	busy("the CQ", cq, "QP")
	busy("the channel", ch, "CQ")
	busy("the device", ctx, "PD", "CQ", "completion channel")

	// The refusals have changed nothing.
	_, _, err = qp.Query()
	r.Check(err == nil, "the QP is what it was", "%v", err)
	var wc [1]ibverbs.WC
	_, err = cq.Poll(wc[:])
	r.Check(err == nil, "the CQ is what it was", "%v", err)

	r.Check(qp.Close() == nil, "the QP can be closed")
	busy("the PD, without its QP,", pd, "MR")
	for _, o := range []io.Closer{mr, pd, cq, ch} {
		err := o.Close()
		r.Check(err == nil, "in turn each can be closed", "%v", err)
	}
	for _, o := range []io.Closer{qp, mr, pd, cq, ch} {
		err := o.Close()
		r.Check(err == nil, "closing it again is no error", "%v", err)
	}
}

func useAfterClose(r *conformance.VerbsRun) {
	ctx := r.Initiator.Context
	b := newBench(r)
	buf := make([]byte, 64)
	closed := func(what string, err error) {
		r.Check(errors.Is(err, os.ErrClosed), what+" fails", "%v", err)
	}
	shut := func(o io.Closer, err error) {
		r.NoError(err, "an object can be made")
		r.NoError(o.Close(), "it can be closed")
	}
	qp, err := b.pd.CreateQP(b.init(littleRoom))
	shut(qp, err)
	closed("PostSend", qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend}))
	closed("PostRecv", qp.PostRecv(ibverbs.RecvWR{}))
	_, _, err = qp.Query()
	closed("QP.Query", err)
	closed("QP.Modify", qp.Modify(ibverbs.QPAttr{State: ibverbs.QPErr}, ibverbs.QPAttrState))

	ch, err := ctx.CreateCompChannel()
	shut(ch, err)
	_, err = ch.Next(r.Context())
	closed("CompChannel.Next", err)
	_, err = ctx.CreateCQ(4, &ibverbs.CQOptions{Channel: ch})
	closed("CreateCQ with its channel closed", err)

	cq, err := ctx.CreateCQ(4, nil)
	shut(cq, err)
	var wc [1]ibverbs.WC
	_, err = cq.Poll(wc[:])
	closed("Poll", err)
	closed("ReqNotify", cq.ReqNotify(false))
	_, err = b.pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: b.cq, Cap: littleRoom})
	closed("CreateQP with its send CQ closed", err)

	pd, err := ctx.AllocPD()
	shut(pd, err)
	_, err = pd.RegMR(buf, local)
	closed("RegMR", err)
	_, err = pd.CreateQP(b.init(littleRoom))
	closed("CreateQP", err)
}

func badArguments(r *conformance.VerbsRun) {
	ctx := r.Initiator.Context
	b := newBench(r)
	buf := make([]byte, 64)
	refused := func(what string, o io.Closer, err error) {
		if r.Check(err != nil, what+" is refused") {
			r.Check(ibverbs.Errno(err) == syscall.EINVAL || errors.Is(err, errors.ErrUnsupported), what+" is EINVAL, or not supported", "%v", err)
		} else if o != nil {
			closing(r, what, o)
		}
		r.Observe("errno."+strings.ReplaceAll(what, " ", "-"), "%s", errno(err))
		r.Log("%s: %v", what, err)
	}
	mr := func(what string, buf []byte, access ibverbs.Access) {
		m, err := b.pd.RegMR(buf, access)
		refused(what, m, err)
	}
	mr("a region without memory", nil, local)
	mr("a region of no octets", buf[:0], local)
	mr("remote write without local write", buf, ibverbs.AccessRemoteWrite)
	mr("a right that does not exist", buf, local|1<<16)

	cq := func(what string, cqe int, opts *ibverbs.CQOptions) {
		q, err := ctx.CreateCQ(cqe, opts)
		refused(what, q, err)
	}
	cq("a CQ without entries", 0, nil)
	cq("a CQ of fewer than none", -1, nil)
	cq("a CQ of 2^30 entries", 1<<30, nil)
	cq("a CQ on vector 100000", 16, &ibverbs.CQOptions{CompVector: 100000})
	cq("a CQ on vector -1", 16, &ibverbs.CQOptions{CompVector: -1})

	attr, err := ctx.Query()
	r.NoError(err, "the device can be queried")
	qp := func(what string, change func(*ibverbs.QPInitAttr)) {
		init := b.init(littleRoom)
		change(init)
		q, err := b.pd.CreateQP(init)
		refused(what, q, err)
	}
	qp("a QP without queues", func(i *ibverbs.QPInitAttr) { i.Cap = ibverbs.QPCap{} })
	qp("a longer send queue than the device has", func(i *ibverbs.QPInitAttr) { i.Cap.MaxSendWR = attr.MaxQPWR + 1 })
	qp("a longer receive queue than the device has", func(i *ibverbs.QPInitAttr) { i.Cap.MaxRecvWR = attr.MaxQPWR + 1 })
	qp("a send queue of fewer than none", func(i *ibverbs.QPInitAttr) { i.Cap.MaxSendWR = -1 })
	qp("more send SGEs than the device has", func(i *ibverbs.QPInitAttr) { i.Cap.MaxSendSGE = attr.MaxSGE + 1 })
	qp("more receive SGEs than the device has", func(i *ibverbs.QPInitAttr) { i.Cap.MaxRecvSGE = attr.MaxSGE + 1 })
	qp("more inline data than the device has", func(i *ibverbs.QPInitAttr) { i.Cap.MaxInlineData = attr.MaxInline + 1 })
	qp("a QP without a send CQ", func(i *ibverbs.QPInitAttr) { i.SendCQ = nil })
	qp("a QP of type UD", func(i *ibverbs.QPInitAttr) { i.Type = ibverbs.QPType(4) })
	foreign, err := r.Responder.Context.CreateCQ(16, nil)
	r.NoError(err, "the other side can make a CQ")
	closing(r, "the other side's CQ", foreign)
	qp("a QP with another device's CQ", func(i *ibverbs.QPInitAttr) { i.RecvCQ = foreign })

	_, err = ctx.QueryPort(0)
	refused("port 0", nil, err)
	_, err = ctx.QueryPort(attr.PhysPortCnt + 1)
	refused("a port that does not exist", nil, err)
	_, err = ctx.QueryGID(1, 100000)
	refused("a GID that does not exist", nil, err)

	good, err := b.pd.CreateQP(b.init(littleRoom))
	r.NoError(err, "a QP can be made")
	closing(r, "the QP", good)
	refused("RTS without a connection", nil, good.Modify(ibverbs.QPAttr{State: ibverbs.QPRTS}, ibverbs.QPAttrState))
	refused("a state that does not exist", nil, good.Modify(ibverbs.QPAttr{State: 77}, ibverbs.QPAttrState))
	refused("a read depth of -1", nil, good.Modify(ibverbs.QPAttr{MaxRdAtomic: -1}, ibverbs.QPAttrMaxRdAtomic))
}

func postBeforeConnect(r *conformance.VerbsRun) {
	var src, dst *conformance.Buffer
	early := func(s *conformance.Side, b *conformance.Buffer) {
		err := s.QP.PostSend(send(5, b))
		s.Check(ibverbs.Errno(err) == syscall.EINVAL, string(s.Role)+"'s Send is refused with EINVAL before the connection", "%v", err)
		var pe *ibverbs.PostError
		s.Check(errors.As(err, &pe) && pe.Posted == 0, "and is not posted", "%v", err)
	}
	i, p := r.Connect(
		&conformance.SideConfig{Before: func(s *conformance.Side) {
			src = s.Buffer("the source", 64, local).Fill(r.Seed)
			early(s, src)
		}},
		&conformance.SideConfig{Before: func(s *conformance.Side) {
			dst = s.Buffer("the receive buffer", 64, local)
			early(s, dst)
			s.PostRecv(recv(7, dst))
		}})
	i.PostSend(send(1, src))
	i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCSuccess, "a Send works after it")
	p.WantWC(p.RecvWCs(1), 0, 7, ibverbs.WCSuccess, "and takes the receive that was posted before")
	dst.Holds(src.Data, "with its octets")
	end(i, p)
	i.NoWC(i.Conn.SendCQ(), 20*time.Millisecond, "nothing of what was refused completes")
}

func errorBeforeConnect(r *conformance.VerbsRun) {
	b := newBench(r)
	init := b.init(littleRoom)
	rcq, err := b.ctx.CreateCQ(16, nil)
	r.NoError(err, "a CQ can be made")
	closing(r, "the receive CQ", rcq)
	init.RecvCQ = rcq
	qp, err := b.pd.CreateQP(init)
	r.NoError(err, "a QP can be made")
	closing(r, "the QP", qp)
	r.NoError(qp.PostRecv(ibverbs.RecvWR{WRID: 1}), "a receive can be posted")
	r.NoError(qp.Modify(ibverbs.QPAttr{State: ibverbs.QPErr}, ibverbs.QPAttrState), "the QP can be moved to the error state")
	r.NoError(qp.PostRecv(ibverbs.RecvWR{WRID: 2}), "another can be posted then")
	r.NoError(qp.PostSend(ibverbs.SendWR{WRID: 3, Opcode: ibverbs.WRSend}), "and a Send")
	flushed := func(cq *ibverbs.CQ, what string, wrids ...uint64) {
		var wc [4]ibverbs.WC
		n := 0
		until := time.Now().Add(r.Scaled(2 * time.Second))
		for n < len(wrids) && time.Now().Before(until) {
			k, err := cq.Poll(wc[n:])
			r.NoError(err, "the CQ can be polled")
			if n += k; k == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		r.Check(n == len(wrids), what+" complete", "%d of %d", n, len(wrids))
		for k := range min(n, len(wrids)) {
			r.Check(wc[k].WRID == wrids[k] && wc[k].Status == ibverbs.WCWRFlushErr, what+" are flushed in order", "WR %d with %s", wc[k].WRID, wc[k].Status)
		}
	}
	flushed(rcq, "both receives", 1, 2)
	flushed(b.cq, "the late Send", 3)
}
