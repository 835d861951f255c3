package ibverbs_test

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// wrongPosts are work requests that cannot be posted.
var wrongPosts = []wrongUse{
	{name: "PostSend: the queue is full, all of it signalled",
		do:  func(t *testing.T) []seen { return longList(t, ibverbs.SendSignaled) },
		not: "siw takes work up as it is posted"},
	{name: "PostSend: the queue is full, all of it unsignalled",
		do:  func(t *testing.T) []seen { return longList(t, 0) },
		not: "siw gives the places of unsignalled work back at once"},
	{name: "PostSend: the queue is full, and the peer is silent",
		do:  func(t *testing.T) []seen { return fullQueue(t, ibverbs.SendSignaled) },
		not: "siw sends before the peer"},
	{name: "PostRecv: the queue is full", do: fullRecvQueue},
	{name: "SRQ.PostRecv: the queue is full", do: fullSRQ},
	{name: "PostSend: unknown opcode", do: badWR(func(wr *ibverbs.SendWR) { wr.Opcode = 77 })},
	{name: "PostSend: unknown flags", do: badWR(func(wr *ibverbs.SendWR) { wr.Flags = 1 << 30 })},
	{name: "PostSend: too many SGEs", do: badWR(func(wr *ibverbs.SendWR) { wr.SGList = make([]ibverbs.SGE, 1000) }), not: "libibverbs takes the SGEs of length 0 that this has"},
	{name: "PostSend: inline data too long", do: badWR(func(wr *ibverbs.SendWR) {
		*wr = ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Inline: make([]byte, 4096)}
	})},
	{name: "PostSend: inline data without the flag", do: badWR(func(wr *ibverbs.SendWR) { wr.Inline = []byte("12345678") })},
	{name: "PostSend: inline data and SGEs", do: badWR(func(wr *ibverbs.SendWR) { wr.Flags, wr.Inline = ibverbs.SendInline, []byte("12345678") })},
	{name: "PostSend: a Read with inline data", do: badWR(func(wr *ibverbs.SendWR) { wr.Opcode, wr.Flags = ibverbs.WRRDMARead, ibverbs.SendInline })},
	{name: "PostSend: more than 2^32-1 bytes", do: badWR(func(wr *ibverbs.SendWR) {
		wr.SGList = []ibverbs.SGE{{Length: math.MaxUint32}, {Length: 1}}
	}), not: "siw has no check of it"},
	{name: "PostSend: immediate data", do: badWR(func(wr *ibverbs.SendWR) { wr.Opcode = ibverbs.WRSendWithImm })},
	{name: "PostSend: an atomic operation", do: badWR(func(wr *ibverbs.SendWR) { wr.Opcode = ibverbs.WRAtomicFetchAdd })},
	{name: "PostSend: an atomic operation without a sink", do: atomicWithoutSink, not: noAtomics},
	{name: "PostSend: a bind without what to bind", do: badWR(func(wr *ibverbs.SendWR) { *wr = ibverbs.SendWR{Opcode: ibverbs.WRBindMW} })},
	{name: "PostSend: a Read where ORD is 0", do: readWithoutDepth},
	{name: "PostSend: in RESET", do: postInReset},
	{name: "PostSend: before the listener's side has accepted", do: postBeforeAccept},
	{name: "PostRecv: too many SGEs", do: manyRecvSGEs},
	{name: "PostRecv: the QP has an SRQ", do: recvBesideSRQ},
	{name: "PostSend: after the connection has ended", do: postAfterEnd},
}

const noAtomics = "siw has no atomic operations"

// badWR returns the result of PostSend for a good Send of 8 bytes that spoil has changed.
func badWR(spoil func(wr *ibverbs.SendWR)) func(t *testing.T) []seen {
	return func(t *testing.T) []seen {
		c := newLab(t, labConfig{})
		wr := ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{c.sge(t, 8)}}
		spoil(&wr)
		return c.posts(wr)
	}
}

// longList posts one work request more than the queue has places, in one call.
func longList(t *testing.T, flags ibverbs.SendFlags) []seen {
	wrs := make([]ibverbs.SendWR, rdmacm.DefaultSendWR+1)
	for i := range wrs {
		wrs[i] = ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: flags}
	}
	return saw("PostSend", newLab(t, labConfig{}).client.QP().PostSend(wrs...))
}

// fullQueue posts until the queue is full, on the accepting side, whose sends wait for the peer's
// first message.
func fullQueue(t *testing.T, flags ibverbs.SendFlags) []seen {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	result := make(chan *rdmacm.Conn, 1)
	go func() {
		result <- testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(),
			&rdmacm.ConnConfig{NoOpeningWrite: true}))(t)
	}()
	req := testkit.Must(l.Accept(ctx))(t)
	cq := testkit.Must(vctx.CreateCQ(64, nil))(t)
	t.Cleanup(func() { testkit.OK(t, cq.Close()) })
	server := testkit.Must(req.Accept(ctx, &rdmacm.ConnConfig{SendCQ: cq, RecvCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 8}}))(t)
	client := <-result
	t.Cleanup(func() { testkit.OK(t, server.Close()); testkit.OK(t, client.Close()) })
	for range 1000 {
		if err := server.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: flags}); err != nil {
			return saw("PostSend", err)
		}
	}
	return saw("PostSend", nil)
}

func fullRecvQueue(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	for range 1000 {
		if err := c.client.QP().PostRecv(ibverbs.RecvWR{}); err != nil {
			return saw("PostRecv", err)
		}
	}
	return nil
}

// newPD makes a PD.
func newPD(t *testing.T) *ibverbs.PD {
	vctx, _ := device(t)
	pd := testkit.Must(vctx.AllocPD())(t)
	t.Cleanup(func() { testkit.OK(t, pd.Close()) })
	return pd
}

// newSRQ makes an SRQ.
func newSRQ(t *testing.T) *ibverbs.SRQ {
	srq := testkit.Must(newPD(t).CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(t)
	t.Cleanup(func() { testkit.OK(t, srq.Close()) })
	return srq
}

func fullSRQ(t *testing.T) []seen {
	srq := newSRQ(t)
	for range 1000 {
		if err := srq.PostRecv(ibverbs.RecvWR{}); err != nil {
			return saw("SRQ.PostRecv", err)
		}
	}
	return nil
}

// extended opens an engine with the extensions of RFC 7306.
func extended() (*ibverbs.Context, netip.AddrPort) {
	vctx, err := ibverbs.Open(engine.New(&engine.Options{Extensions: true}), "")
	check(err)
	return vctx, netip.MustParseAddrPort("127.0.0.1:0")
}

func atomicWithoutSink(t *testing.T) []seen {
	return newLab(t, labConfig{open: extended}).posts(ibverbs.SendWR{Opcode: ibverbs.WRAtomicFetchAdd})
}

func readWithoutDepth(t *testing.T) []seen {
	c := newLab(t, labConfig{dial: rdmacm.ConnConfig{InitiatorDepth: -1}, accept: rdmacm.ConnConfig{ResponderResources: -1}})
	return c.posts(ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, SGList: []ibverbs.SGE{c.sge(t, 8)}})
}

// newQP makes a QP that is not connected.
func newQP(t *testing.T) *ibverbs.QP {
	pd := newPD(t)
	cq := testkit.Must(pd.Context().CreateCQ(4, nil))(t)
	t.Cleanup(func() { testkit.OK(t, cq.Close()) })
	qp := testkit.Must(pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
	t.Cleanup(func() { testkit.OK(t, qp.Close()) })
	return qp
}

func postInReset(t *testing.T) []seen {
	return saw("PostSend", newQP(t).PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend}))
}

func postBeforeAccept(t *testing.T) []seen {
	var rows []seen
	newLab(t, labConfig{server: func(c *rdmacm.Conn) error {
		rows = saw("PostSend", c.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend}))
		return nil
	}})
	return rows
}

func manyRecvSGEs(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	list := make([]ibverbs.SGE, 1000)
	for i := range list {
		list[i] = c.sge(t, 8)
	}
	return saw("PostRecv", c.client.QP().PostRecv(ibverbs.RecvWR{SGList: list}))
}

func recvBesideSRQ(t *testing.T) []seen {
	srq := newSRQ(t)
	pd := srq.PD()
	cq := testkit.Must(pd.Context().CreateCQ(4, nil))(t)
	defer cq.Close()
	qp := testkit.Must(pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: srq, Cap: ibverbs.QPCap{MaxSendWR: 4}}))(t)
	defer qp.Close()
	return saw("PostRecv", qp.PostRecv(ibverbs.RecvWR{}))
}

func postAfterEnd(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	testkit.OK(t, c.server.Close())
	testkit.OK(t, c.client.Wait(c.ctx))
	testkit.OK(t, c.client.QP().PostSend(ibverbs.SendWR{WRID: 7, Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{c.sge(t, 8)}}))
	return saw("completion", completion(t, c.ctx, c.client, c.client.SendCQ()))
}

// wrongLocalMemory are work requests that name our own memory wrongly.
var wrongLocalMemory = []wrongUse{
	{name: "Send: no region has the lkey", do: badSGE(func(_ *testing.T, _ *lab, s *ibverbs.SGE) { s.LKey ^= 0x5a5a5a00 })},
	{name: "Send: an SGE without lkey", do: badSGE(func(_ *testing.T, _ *lab, s *ibverbs.SGE) { s.LKey = 0 })},
	{name: "Send: the region is closed", do: badSGE(func(t *testing.T, c *lab, _ *ibverbs.SGE) { testkit.OK(t, c.clientMR.Close()) })},
	{name: "Send: the region is of another PD", do: badSGE(func(_ *testing.T, c *lab, s *ibverbs.SGE) { s.Addr, s.LKey = c.serverMR.Addr(), c.serverMR.LKey() })},
	{name: "Send: beyond the end of the region", do: badSGE(func(_ *testing.T, _ *lab, s *ibverbs.SGE) { s.Addr += 4090 })},
	{name: "Send: before the region", do: badSGE(func(_ *testing.T, _ *lab, s *ibverbs.SGE) { s.Addr-- })},
	{name: "Send: beyond the last address", do: badSGE(func(_ *testing.T, _ *lab, s *ibverbs.SGE) { s.Addr = math.MaxUint64 - 3 })},
	{name: "Send: 4 GiB of a region of 4 KiB", do: badSGE(func(_ *testing.T, _ *lab, s *ibverbs.SGE) { s.Length = math.MaxUint32 })},
	{name: "Read: the sink may not be written", do: readIntoConst},
	{name: "Receive: the memory may not be written", do: receiveIntoConst},
	{name: "Receive: no region has the lkey", do: receiveNowhere},
	{name: "MR.SGE: beyond the end of the region", do: func(t *testing.T) []seen {
		_, err := newMR(t).SGE(4000, 100)
		return saw("MR.SGE", err)
	}},
	{name: "MR.Remote: before the region", do: func(t *testing.T) []seen {
		_, err := newMR(t).Remote(-1, 100)
		return saw("MR.Remote", err)
	}},
}

// badSGE returns what a program sees of a Send whose SGE spoil has changed.
func badSGE(spoil func(t *testing.T, c *lab, s *ibverbs.SGE)) func(t *testing.T) []seen {
	return func(t *testing.T) []seen {
		c := newLab(t, labConfig{})
		sge := c.sge(t, 8)
		spoil(t, c, &sge)
		return c.fails(t, ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge}})
	}
}

// newMR makes a region of 4 KiB.
func newMR(t *testing.T) *ibverbs.MR {
	mr := testkit.Must(newPD(t).AllocMR(4096, ibverbs.AccessLocalWrite))(t)
	t.Cleanup(func() { testkit.OK(t, mr.Close()) })
	return mr
}

// readOnly returns an SGE of 8 bytes that the device may not write, in the PD of conn.
func readOnly(t *testing.T, conn *rdmacm.Conn) ibverbs.SGE {
	mr := testkit.Must(conn.PD().AllocMR(4096, 0))(t)
	t.Cleanup(func() { testkit.OK(t, mr.Close()) })
	return testkit.Must(mr.SGE(0, 8))(t)
}

func readIntoConst(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	return c.fails(t, c.remote(ibverbs.WRRDMARead, []ibverbs.SGE{readOnly(t, c.client)}))
}

func receiveIntoConst(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	return c.receives(t, readOnly(t, c.server))
}

func receiveNowhere(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	sge := testkit.Must(c.serverMR.SGE(0, 8))(t)
	sge.LKey ^= 0x5a5a5a00
	return c.receives(t, sge)
}

// receives returns what the two sides see of a Send of 8 bytes into a receive of sge.
func (c *lab) receives(t *testing.T, sge ibverbs.SGE) []seen {
	testkit.OK(t, c.server.QP().PostRecv(ibverbs.RecvWR{WRID: 9, SGList: []ibverbs.SGE{sge}}))
	rows := c.fails(t, ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{c.sge(t, 8)}})
	rows = append(rows, saw("peer's receive", completion(t, c.ctx, c.server, c.server.RecvCQ()))...)
	return append(rows, c.ended(t, "peer's Cause", c.server)...)
}

// wrongRemoteMemory are work requests that the peer refuses.
var wrongRemoteMemory = []wrongUse{
	{name: "zero Opcode, which is an RDMA Write", do: zeroOpcode},
	{name: "Write: no region has the rkey", do: badTarget(ibverbs.WRRDMAWrite, 0, func(wr *ibverbs.SendWR) { wr.RKey ^= 0x5a5a5a00 })},
	{name: "Write: beyond the end of the region", do: badTarget(ibverbs.WRRDMAWrite, 0, func(wr *ibverbs.SendWR) { wr.RemoteAddr += 4090 })},
	{name: "Write: without the right", do: badTarget(ibverbs.WRRDMAWrite, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead, nil)},
	{name: "Read: no region has the rkey", do: badTarget(ibverbs.WRRDMARead, 0, func(wr *ibverbs.SendWR) { wr.RKey ^= 0x5a5a5a00 })},
	{name: "Read: before the region", do: badTarget(ibverbs.WRRDMARead, 0, func(wr *ibverbs.SendWR) { wr.RemoteAddr-- })},
	{name: "Read: without the right", do: badTarget(ibverbs.WRRDMARead, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite, nil), not: "siw does not enforce it"},
	{name: "Atomic: without the right", do: badAtomic(ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite, 0), not: noAtomics},
	{name: "Atomic: the address is no multiple of 8", do: badAtomic(ibverbs.AccessLocalWrite|ibverbs.AccessRemoteAtomic, 4), not: noAtomics},
	{name: "Send: the peer has no receive", do: sendUnexpected},
	{name: "Send: the peer's receive is too short", do: sendTooLong},
	{name: "Send with Invalidate: no region has the key", do: invalidateNothing, not: "siw does not report it to this side"},
	{name: "a receive that is posted when the connection ends", do: flushedRecv},
	{name: "sends that are posted when a work request fails", do: flushedSend},
}

// remote returns a work request on the first 8 bytes of the server's region.
func (c *lab) remote(op ibverbs.WROpcode, list []ibverbs.SGE) ibverbs.SendWR {
	return ibverbs.SendWR{Opcode: op, SGList: list, RemoteAddr: c.serverMR.Addr(), RKey: c.serverMR.RKey()}
}

// badTarget returns what the two sides see of a Write or Read that spoil has changed, on a region
// with the rights access.
func badTarget(op ibverbs.WROpcode, access ibverbs.Access, spoil func(wr *ibverbs.SendWR)) func(t *testing.T) []seen {
	return func(t *testing.T) []seen {
		c := newLab(t, labConfig{access: access})
		wr := c.remote(op, []ibverbs.SGE{c.sge(t, 8)})
		if spoil != nil {
			spoil(&wr)
		}
		return append(c.fails(t, wr), c.ended(t, "peer's Cause", c.server)...)
	}
}

func zeroOpcode(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	return c.fails(t, ibverbs.SendWR{SGList: []ibverbs.SGE{c.sge(t, 8)}})
}

func badAtomic(access ibverbs.Access, off uint64) func(t *testing.T) []seen {
	return func(t *testing.T) []seen {
		c := newLab(t, labConfig{open: extended, access: access})
		wr := c.remote(ibverbs.WRAtomicFetchAdd, []ibverbs.SGE{c.sge(t, 8)})
		wr.RemoteAddr += off
		return append(c.fails(t, wr), c.ended(t, "peer's Cause", c.server)...)
	}
}

func sendUnexpected(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	rows := c.fails(t, ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{c.sge(t, 8)}})
	return append(rows, c.ended(t, "peer's Cause", c.server)...)
}

func sendTooLong(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	return c.receives(t, testkit.Must(c.serverMR.SGE(0, 4))(t))
}

func invalidateNothing(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	testkit.OK(t, c.server.QP().PostRecv(ibverbs.RecvWR{}))
	rows := c.fails(t, ibverbs.SendWR{Opcode: ibverbs.WRSendWithInv, InvalidateRKey: c.serverMR.RKey() ^ 0x5a5a5a00})
	return append(rows, c.ended(t, "peer's Cause", c.server)...)
}

func flushedRecv(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	testkit.OK(t, c.client.QP().PostRecv(ibverbs.RecvWR{WRID: 9}))
	testkit.OK(t, c.server.Shutdown(c.ctx))
	return saw("completion", completion(t, c.ctx, c.client, c.client.RecvCQ()))
}

func flushedSend(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	bad := ibverbs.SendWR{WRID: 7, Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{{Addr: 8, Length: 8, LKey: 0}}}
	good := ibverbs.SendWR{WRID: 8, Opcode: ibverbs.WRSend}
	testkit.OK(t, c.client.QP().PostSend(bad, good))
	rows := saw("completion 1", completion(t, c.ctx, c.client, c.client.SendCQ()))
	return append(rows, saw("completion 2", completion(t, c.ctx, c.client, c.client.SendCQ()))...)
}

// overflow posts more signalled Writes than a CQ of 2 holds.
func overflow(t *testing.T) []seen {
	vctx, _ := device(t)
	cq := testkit.Must(vctx.CreateCQ(2, nil))(t)
	t.Cleanup(func() { testkit.OK(t, cq.Close()) })
	c := overflowing(t, vctx, cq)
	for range cq.CQE() + 2 {
		testkit.OK(t, c.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled}))
	}
	return event(t, vctx)
}

// overflowing returns a connection that completes to cq.
func overflowing(t *testing.T, vctx *ibverbs.Context, cq *ibverbs.CQ) *rdmacm.Conn {
	ctx := timeout(t)
	_, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err != nil {
			panic(fmt.Sprint("Accept: ", err))
		}
		c, _ := req.Accept(ctx, nil)
		accepted <- c
	}()
	big := ibverbs.QPCap{MaxSendWR: 1024}
	c := testkit.Must(rdmacm.Dial(context.Background(), vctx, l.Addr(), &rdmacm.ConnConfig{SendCQ: cq, Cap: big}))(t)
	server := <-accepted
	t.Cleanup(func() { testkit.OK(t, c.Close()); testkit.OK(t, server.Close()) })
	return c
}
