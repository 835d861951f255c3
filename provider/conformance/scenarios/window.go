package scenarios

import (
	"errors"
	"strings"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
)

// windows are about memory windows of the responder, and regions that work requests
// register: what the peer may do with them, and that access ends when they are taken back.
// A responder without them, such as siw, is recognised by the errors of its verbs.
func windows() []*conformance.Scenario {
	return []*conformance.Scenario{
		{
			Slug: "window/type-1", Level: conformance.Must,
			Title:        "a window of type 1 lets the peer in while it is bound, and a bind of no octets ends that",
			Requirements: []string{"DDP-8.3-2-01"},
			Verbs:        windowType1, Wire: terminated("1/1/0x00"),
		},
		{
			Slug: "window/beyond-end", Level: conformance.Must,
			Title:        "an RDMA Write that reaches beyond a window, but not beyond its region, moves nothing and ends the connection",
			Requirements: []string{"DDP-7.1t4-01"},
			Verbs:        windowBeyondEnd, Wire: terminated("1/1/0x01"),
		},
		{
			Slug: "window/invalidated", Level: conformance.Must,
			Title:        "a window of type 2 is over for the peer after a local invalidation",
			Requirements: []string{"DDP-8.3-2-01"},
			Verbs:        windowInvalidated, Wire: terminated("1/1/0x00"),
		},
		{
			Slug: "window/invalidated-by-peer", Level: conformance.Must,
			Title: "a Send with Invalidate ends a window of type 2, reports its key, and " +
				"lets it be bound again with another",
			Requirements: []string{"RDMAP-5.3-10", "RDMAP-5.3-11"},
			Verbs:        windowInvalidatedByPeer, Wire: terminated("1/1/0x00"),
		},
		{
			Slug: "window/other-connection", Level: conformance.Must,
			Title:        "a window of type 2 is for the connection that bound it: another of the same protection domain ends at it",
			Requirements: []string{"DDP-8.3.1-2-01", "DDP-8.2-02"},
			Verbs:        windowOtherConnection,
		},
		{
			Slug: "window/no-right", Level: conformance.Must,
			Title: "a bind to a region without the right to bind windows completes with an error and ends the connection",
			Verbs: windowNoRight, Wire: terminated("0/0/0xff"),
		},
		{
			Slug: "window/fault-last", Level: conformance.Must, Concurrent: true,
			Title: "what was posted before a bind that fails arrives, also if it is long, and then the " +
				"connection ends",
			Verbs: windowFaultLast,
		},
		{
			Slug: "window/keeps-region", Level: conformance.Must,
			Title: "a region with a window bound to it can't be deregistered",
			Verbs: windowKeepsRegion, Wire: legal,
		},
		{
			Slug: "window/registered", Level: conformance.Must,
			Title:        "a region that a work request registers is the peer's until it is invalidated",
			Requirements: []string{"DDP-8.3-2-01"},
			Verbs:        regionRegistered, Wire: terminated("1/1/0x00"),
		},
	}
}

const (
	windowOff, windowLen = 32, 64
	windowBoth           = ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead
)

// lacks ends the run if err says that the responder lacks the operation.
func lacks(r *conformance.VerbsRun, err error, what string) {
	if errors.Is(err, errors.ErrUnsupported) {
		r.Unsupported("the responder has no %s", what)
	}
	r.NoError(err, "there is a "+what)
}

// newWindow makes a window and what it will be bound to.
func newWindow(r *conformance.VerbsRun, p *conformance.Side, typ ibverbs.MWType) (*ibverbs.MW, *conformance.Buffer) {
	b := p.Buffer("the region of the window", 2*windowOff+windowLen, local|ibverbs.AccessMWBind)
	mw, err := p.PD.AllocMW(typ)
	lacks(r, err, "memory window")
	closing(r, "the window", mw)
	return mw, b
}

// bind binds a window of either type to the middle of a region, and waits for it.
func bind(p *conformance.Side, mw *ibverbs.MW, b *conformance.Buffer) {
	info, err := b.MR.BindInfo(windowOff, windowLen, windowBoth)
	p.NoError(err, "the window lies in the region")
	if mw.Type() == ibverbs.MWType1 {
		p.NoError(p.QP.BindMW(mw, ibverbs.MWBind{WRID: 50, Flags: ibverbs.SendSignaled, Info: info}), "the bind is posted")
	} else {
		p.PostSend(ibverbs.SendWR{WRID: 50, Opcode: ibverbs.WRBindMW, Flags: ibverbs.SendSignaled, RKey: ibverbs.IncRKey(mw.RKey()), Bind: &info})
	}
	p.WantWC(p.SendWCs(1), 0, 50, ibverbs.WCSuccess, "the bind completes")
}

// through writes to what a key names, and reads it back, so that the Write has been placed.
func through(i *conformance.Side, seed, key, at uint64) (written []byte) {
	src, back := i.Buffer("the source", windowLen, local).Fill(seed), i.Buffer("the sink", windowLen, remoteWrite)
	i.PostSend(
		ibverbs.SendWR{WRID: 1, Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled, SGList: src.All(), RemoteAddr: at, RKey: uint32(key)},
		ibverbs.SendWR{WRID: 2, Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendSignaled, SGList: back.All(), RemoteAddr: at, RKey: uint32(key)})
	got := i.SendWCs(2)
	i.WantWC(got, 0, 1, ibverbs.WCSuccess, "the Write completes")
	i.WantWC(got, 1, 2, ibverbs.WCSuccess, "the Read completes")
	back.Holds(src.Data, "the Read brings what was written")
	return src.Data
}

// refusedWrite writes n octets where the key does not allow it, and checks that both ends
// get an error.
func refusedWrite(i, p *conformance.Side, seed uint64, n int, key uint32, at uint64) {
	src := i.Buffer("the source of the last Write", n, local).Fill(seed)
	i.PostSend(ibverbs.SendWR{WRID: 9, Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled, SGList: src.All(), RemoteAddr: at, RKey: key})
	i.Quietly(i.Conn.SendCQ(), 1) // a Write's success says only that TCP has it
	i.WaitEnd()
	p.WaitEnd()
}

// holdsWindow checks that a region has the octets written through a window, and is
// otherwise unchanged.
func holdsWindow(b *conformance.Buffer, written []byte) {
	fresh := strings.Repeat("\x5a", windowOff)
	b.Holds([]byte(fresh+string(written)+fresh), "the region has what was written through the window, and nothing beside it")
}

func windowType1(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, nil)
	mw, b := newWindow(r, p, ibverbs.MWType1)
	bind(p, mw, b)
	at := b.MR.Addr() + windowOff
	written := through(i, r.Seed, uint64(mw.RKey()), at)
	holdsWindow(b, written)
	p.NoError(p.QP.BindMW(mw, ibverbs.MWBind{WRID: 51, Flags: ibverbs.SendSignaled}), "the end of the bind is posted")
	p.WantWC(p.SendWCs(1), 0, 51, ibverbs.WCSuccess, "it completes")
	refusedWrite(i, p, r.Seed+1, windowLen, mw.RKey(), at)
	holdsWindow(b, written)
}

func windowBeyondEnd(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, nil)
	mw, b := newWindow(r, p, ibverbs.MWType1)
	bind(p, mw, b)
	refusedWrite(i, p, r.Seed, windowLen+1, mw.RKey(), b.MR.Addr()+windowOff)
	b.Untouched("the region is as it was")
}

func windowInvalidated(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, nil)
	mw, b := newWindow(r, p, ibverbs.MWType2)
	bind(p, mw, b)
	at := b.MR.Addr() + windowOff
	written := through(i, r.Seed, uint64(mw.RKey()), at)
	holdsWindow(b, written)
	p.PostSend(ibverbs.SendWR{WRID: 51, Opcode: ibverbs.WRLocalInv, Flags: ibverbs.SendSignaled, InvalidateRKey: mw.RKey()})
	p.WantWC(p.SendWCs(1), 0, 51, ibverbs.WCSuccess, "the invalidation completes")
	refusedWrite(i, p, r.Seed+1, windowLen, mw.RKey(), at)
	holdsWindow(b, written)
}

func windowInvalidatedByPeer(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, nil)
	mw, b := newWindow(r, p, ibverbs.MWType2)
	bind(p, mw, b)
	at, old := b.MR.Addr()+windowOff, mw.RKey()
	through(i, r.Seed, uint64(old), at)
	p.PostRecv(ibverbs.RecvWR{WRID: 60})
	i.PostSend(ibverbs.SendWR{WRID: 3, Opcode: ibverbs.WRSendWithInv, Flags: ibverbs.SendSignaled, InvalidateRKey: old})
	i.WantWC(i.SendWCs(1), 0, 3, ibverbs.WCSuccess, "the Send completes")
	got := p.RecvWCs(1)
	p.WantWC(got, 0, 60, ibverbs.WCSuccess, "the receive completes")
	if len(got) == 1 {
		r.Check(got[0].Flags&ibverbs.WCWithInv != 0 && got[0].InvalidatedRKey == old,
			"the completion has the key that was invalidated")
	}
	bind(p, mw, b)
	written := through(i, r.Seed+1, uint64(mw.RKey()), at)
	refusedWrite(i, p, r.Seed+2, windowLen, old, at)
	holdsWindow(b, written)
}

func windowOtherConnection(r *conformance.VerbsRun) {
	l := r.Listen(r.Responder)
	pd, err := r.Responder.Context.AllocPD()
	r.NoError(err, "a PD can be made")
	closing(r, "the PD", pd)
	cfg := func() *conformance.SideConfig {
		c := &conformance.SideConfig{}
		c.PD = pd
		return c
	}
	i1, p1 := r.ConnectTo(l, nil, cfg())
	i2, p2 := r.ConnectTo(l, nil, cfg())
	mw, b := newWindow(r, p1, ibverbs.MWType2)
	bind(p1, mw, b)
	at := b.MR.Addr() + windowOff
	written := through(i1, r.Seed, uint64(mw.RKey()), at)
	refusedWrite(i2, p2, r.Seed+1, windowLen, mw.RKey(), at)
	holdsWindow(b, written)
	written = through(i1, r.Seed+2, uint64(mw.RKey()), at)
	holdsWindow(b, written)
	end(i1, p1)
}

func windowNoRight(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, nil)
	plain := p.Buffer("a region without the right", windowLen, remoteWrite)
	mw, _ := newWindow(r, p, ibverbs.MWType1)
	p.PostRecv(ibverbs.RecvWR{WRID: 60})
	i.PostSend(ibverbs.SendWR{WRID: 1, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled})
	i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCSuccess, "a Send completes")
	p.WantWC(p.RecvWCs(1), 0, 60, ibverbs.WCSuccess, "it arrives, so that the responder may send")
	info, err := plain.MR.BindInfo(0, windowLen, ibverbs.AccessRemoteWrite)
	r.NoError(err, "the window lies in the region")
	r.NoError(p.QP.BindMW(mw, ibverbs.MWBind{WRID: 50, Info: info}), "the bind is posted")
	p.WantWC(p.SendWCs(1), 0, 50, ibverbs.WCMWBindErr, "the bind fails")
	i.WaitEnd()
	p.WaitEnd()
}

func windowFaultLast(r *conformance.VerbsRun) {
	probe, err := r.Initiator.Context.AllocPD()
	r.NoError(err, "a PD can be made")
	closing(r, "the PD", probe)
	mw, err := probe.AllocMW(ibverbs.MWType2)
	if errors.Is(err, errors.ErrUnsupported) {
		r.Unsupported("the initiator has no memory window")
	}
	r.NoError(err, "there is a memory window")
	r.NoError(mw.Close(), "a window that is not bound can be closed")
	faultLast(r, func(i *conformance.Side, list []ibverbs.SendWR) {
		plain := i.Buffer("a region without the right", windowLen, remoteWrite)
		info, err := plain.MR.BindInfo(0, windowLen, ibverbs.AccessRemoteWrite)
		r.NoError(err, "the window lies in the region")
		mw, err := i.PD.AllocMW(ibverbs.MWType2)
		r.NoError(err, "a window can be made")
		closing(r, "the window", mw)
		i.PostSend(append(list, ibverbs.SendWR{WRID: 9, Opcode: ibverbs.WRBindMW,
			Flags: ibverbs.SendSignaled, RKey: ibverbs.IncRKey(mw.RKey()), Bind: &info})...)
	})
}

func windowKeepsRegion(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, nil)
	mw, b := newWindow(r, p, ibverbs.MWType2)
	bind(p, mw, b)
	err := b.MR.Close()
	r.Check(errors.Is(err, syscall.EBUSY), "the region can't be closed", "%v", err)
	through(i, r.Seed, uint64(mw.RKey()), b.MR.Addr()+windowOff)
	p.PostSend(ibverbs.SendWR{WRID: 51, Opcode: ibverbs.WRLocalInv, Flags: ibverbs.SendSignaled, InvalidateRKey: mw.RKey()})
	p.WantWC(p.SendWCs(1), 0, 51, ibverbs.WCSuccess, "the invalidation completes")
	r.NoError(b.MR.Close(), "the region can be closed")
	end(i, p)
}

func regionRegistered(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, nil)
	mr, err := p.PD.AllocFastRegMR(windowLen)
	lacks(r, err, "region for work requests")
	closing(r, "the region", mr)
	memory := make([]byte, windowLen)
	r.NoError(mr.Map(memory), "memory can be mapped")
	p.PostSend(ibverbs.SendWR{WRID: 50, Opcode: ibverbs.WRRegMR, Flags: ibverbs.SendSignaled, RKey: ibverbs.IncRKey(mr.RKey()), Access: ibverbs.AccessLocalWrite | windowBoth})
	p.WantWC(p.SendWCs(1), 0, 50, ibverbs.WCSuccess, "the registration completes")
	written := through(i, r.Seed, uint64(mr.RKey()), mr.Addr())
	p.PostSend(ibverbs.SendWR{WRID: 51, Opcode: ibverbs.WRLocalInv, Flags: ibverbs.SendSignaled, InvalidateRKey: mr.RKey()})
	p.WantWC(p.SendWCs(1), 0, 51, ibverbs.WCSuccess, "the invalidation completes")
	r.Check(string(memory) == string(written), "the memory has what was written")
	refusedWrite(i, p, r.Seed+1, windowLen, mr.RKey(), mr.Addr())
	r.Check(string(memory) == string(written), "the Write after the invalidation places nothing")
}
