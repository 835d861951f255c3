package scenarios

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// sends are the kinds of Send and the options of their work requests.
func sends() []*conformance.Scenario {
	return []*conformance.Scenario{
		{
			Slug: "send/with-invalidate", Level: conformance.Must,
			Title:        "a Send with Invalidate arrives, and ends the peer's use of the STag that it names",
			Requirements: []string{"RDMAP-5.3-09", "RDMAP-5.3-10"},
			Verbs:        func(r *conformance.VerbsRun) { sendWithInvalidate(r, false) },
			Wire:         invalidated(rdmap.OpSendInvalidate),
		},
		{
			Slug: "send/solicited-with-invalidate", Level: conformance.Must,
			Title: "a Send with Solicited Event and Invalidate arrives, gives an event, and ends the peer's use of the STag that it names",
			Verbs: func(r *conformance.VerbsRun) { sendWithInvalidate(r, true) },
			Wire:  invalidated(rdmap.OpSendSEInvalidate),
		},
		{
			Slug: "send/solicited", Level: conformance.Must,
			Title: "a CQ armed for solicited completions gives an event for a Send with Solicited Event, and none for a plain one",
			Verbs: sendSolicited, Wire: legal,
		},
		{
			Slug: "send/inline", Level: conformance.Must,
			Title: "an inline Send carries what its payload held when it was posted",
			Verbs: sendInline, Wire: legal,
		},
		{
			Slug: "send/gather-scatter", Level: conformance.Must,
			Title: "a Send gathered from three places is scattered to three others, in order",
			Verbs: sendGatherScatter, Wire: legal,
		},
		{
			Slug: "write/gather", Level: conformance.Must,
			Title: "an RDMA Write gathered from three places lands in one piece",
			Verbs: writeGather, Wire: legal,
		},
		{
			Slug: "send/unsignalled", Level: conformance.Must,
			Title: "of unsignalled Sends no success is reported, and a signalled one after them is",
			Verbs: sendUnsignalled, Wire: legal,
		},
	}
}

// How long the event of a completion that has come is waited for, and how long is watched for
// an event that must not come.
const (
	anEvent = 300 * time.Millisecond
	noEvent = 50 * time.Millisecond
)

// A bell is a CQ of a side's receives, and the channel on which it gives events.
type bell struct {
	ch *ibverbs.CompChannel
	cq *ibverbs.CQ
}

func newBell(t *conformance.T, ep *conformance.Endpoint) bell { return newBellOf(t, ep, 16) }

// newBellOf makes a bell whose CQ has room for n completions.
func newBellOf(t *conformance.T, ep *conformance.Endpoint, n int) bell {
	ch, err := ep.Context.CreateCompChannel()
	t.NoError(err, "a completion channel can be made")
	t.Cleanup(func() { t.Check(ch.Close() == nil, "the channel can be closed") })
	cq, err := ep.Context.CreateCQ(n, &ibverbs.CQOptions{Channel: ch})
	t.NoError(err, "a CQ can be made on it")
	t.Cleanup(func() { t.Check(cq.Close() == nil, "the CQ can be closed") })
	return bell{ch, cq}
}

// arm asks for an event for the next solicited completion.
func (b bell) arm(t *conformance.T) {
	t.NoError(b.cq.ReqNotify(true), "the CQ can be armed for solicited completions")
}

func sendWithInvalidate(r *conformance.VerbsRun, solicited bool) {
	var dst *conformance.Buffer
	bell := newBell(r.T, r.Responder)
	i, p := r.Connect(nil, &conformance.SideConfig{
		ConnConfig: rdmacm.ConnConfig{RecvCQ: bell.cq},
		Before: func(s *conformance.Side) {
			dst = s.Buffer("the receive buffer", 64, local)
			s.PostRecv(recv(7, dst))
		},
	})
	window := p.Buffer("the region to invalidate", 128, remoteWrite|ibverbs.AccessRemoteInvalidate)
	src := i.Buffer("the source", 64, local).Fill(r.Seed)

	i.PostSend(write(1, src, window))
	i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCSuccess, "a Write to the region completes")
	wr := send(2, src)
	wr.Opcode, wr.InvalidateRKey = ibverbs.WRSendWithInv, window.MR.RKey()
	if solicited {
		wr.Flags |= ibverbs.SendSolicited
	}
	bell.arm(r.T)
	i.PostSend(wr)
	i.WantWC(i.SendWCs(1), 0, 2, ibverbs.WCSuccess, "the Send completes")
	got := p.RecvWCsPolled(1)
	p.WantWC(got, 0, 7, ibverbs.WCSuccess, "the receive completes")
	if solicited {
		p.Check(p.ChannelEvent(bell.ch, anEvent), "the solicited Send gives an event")
	} else {
		p.Check(!p.ChannelEvent(bell.ch, noEvent), "a Send that is not solicited gives no event")
	}
	dst.Holds(src.Data, "the receive buffer holds the message")
	window.Holds(src.Data, "the earlier Write is in the region")
	if len(got) == 1 {
		told := got[0].Flags&ibverbs.WCWithInv != 0
		p.Check(told, "the receive says that a key was invalidated")
		p.Check(!told || got[0].InvalidatedRKey == window.MR.RKey(), "the key that the receive reports is the one invalidated")
	}

	before := bytes.Clone(window.Data)
	src.Fill(r.Seed + 1)
	i.PostSend(write(3, src, window))
	i.Quietly(i.Conn.SendCQ(), 1) // a Write's success says only that TCP has it
	i.WaitEnd()
	p.WaitEnd()
	window.Holds(before, "a Write to the invalidated region places nothing")
}

// invalidated checks that the one Send on the wire has an opcode, and that the
// Write after it gets the Terminate for an STag that names nothing.
func invalidated(op rdmap.Opcode) func(*conformance.WireRun) {
	refused := terminated("1/1/0x00")
	return func(w *conformance.WireRun) {
		var sends []string
		for _, f := range only(w).FPDUs(wire.ToResponder) {
			if f.Opcode() != rdmap.OpWrite {
				sends = append(sends, f.Opcode().String())
			}
		}
		w.Check(len(sends) == 1 && sends[0] == op.String(), "the Send is one "+op.String(), "%s", strings.Join(sends, ", "))
		refused(w)
		legal(w)
	}
}

func sendSolicited(r *conformance.VerbsRun) {
	var dst [2]*conformance.Buffer
	bell := newBell(r.T, r.Responder)
	i, p := r.Connect(nil, &conformance.SideConfig{
		ConnConfig: rdmacm.ConnConfig{RecvCQ: bell.cq},
		Before: func(s *conformance.Side) {
			for k := range dst {
				dst[k] = s.Buffer("a receive buffer", 16, local)
				s.PostRecv(recv(uint64(k), dst[k]))
			}
		},
	})
	src := i.Buffer("the source", 16, local).Fill(r.Seed)
	bell.arm(r.T)
	i.PostSend(send(1, src))
	i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCSuccess, "the plain Send completes")
	p.WantWC(p.RecvWCsPolled(1), 0, 0, ibverbs.WCSuccess, "the plain Send is delivered")
	p.Check(!p.ChannelEvent(bell.ch, noEvent), "the plain Send gives no event")
	wr := send(2, src)
	wr.Flags |= ibverbs.SendSolicited
	i.PostSend(wr)
	i.WantWC(i.SendWCs(1), 0, 2, ibverbs.WCSuccess, "the solicited Send completes")
	p.WantWC(p.RecvWCsPolled(1), 0, 1, ibverbs.WCSuccess, "the solicited Send is delivered")
	p.Check(p.ChannelEvent(bell.ch, anEvent), "the solicited Send gives an event")
	end(i, p)
}

func sendInline(r *conformance.VerbsRun) {
	const n = 64 // below what any provider offers
	var dst *conformance.Buffer
	cfg := &conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{Cap: ibverbs.QPCap{
		MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: n,
	}}}
	i, p := r.Connect(cfg, &conformance.SideConfig{Before: func(s *conformance.Side) {
		dst = s.Buffer("the receive buffer", n, local)
		s.PostRecv(recv(7, dst))
	}})
	payload := bytes.Repeat([]byte{0x42}, n)
	want := bytes.Clone(payload)
	i.PostSend(ibverbs.SendWR{WRID: 1, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled | ibverbs.SendInline, Inline: payload})
	for k := range payload {
		payload[k] = 0 // the buffer is the program's again
	}
	i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCSuccess, "the inline Send completes")
	p.WantWC(p.RecvWCs(1), 0, 7, ibverbs.WCSuccess, "the receive completes")
	dst.Holds(want, "the receive buffer holds what was posted, not what came later")
	end(i, p)
}

// thirds cuts a buffer at two offsets into three SGEs.
func thirds(b *conformance.Buffer, cut1, cut2 int) []ibverbs.SGE {
	return []ibverbs.SGE{b.SGE(0, cut1), b.SGE(cut1, cut2-cut1), b.SGE(cut2, len(b.Data)-cut2)}
}

func sendGatherScatter(r *conformance.VerbsRun) {
	const n = 100_003
	var dst *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		dst = s.Buffer("the receive buffer", n, local)
		s.PostRecv(ibverbs.RecvWR{WRID: 7, SGList: thirds(dst, 1, 70_001)})
	}})
	src := i.Buffer("the source", n, local).Fill(r.Seed)
	wr := send(1, src)
	wr.SGList = thirds(src, 50_001, 50_002)
	i.PostSend(wr)
	i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCSuccess, "the Send completes")
	p.WantWC(p.RecvWCs(1), 0, 7, ibverbs.WCSuccess, "the receive completes")
	dst.Holds(src.Data, "the octets are in order")
	end(i, p)
}

func writeGather(r *conformance.VerbsRun) {
	const n = 100_003
	var done *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		done = s.Buffer("the receive buffer", 1, local)
		s.PostRecv(recv(7, done))
	}})
	dst := p.Buffer("the sink", n, remoteWrite)
	src := i.Buffer("the source", n, local).Fill(r.Seed)
	wr := write(1, src, dst)
	wr.SGList = thirds(src, 3, 65_000)
	i.PostSend(wr, ibverbs.SendWR{WRID: 2, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled})
	i.WantWC(i.SendWCs(2), 0, 1, ibverbs.WCSuccess, "the Write completes")
	p.WantWC(p.RecvWCs(1), 0, 7, ibverbs.WCSuccess, "the Send after it arrives")
	dst.Holds(src.Data, "the octets are in order, and there when the Send after them is")
	end(i, p)
}

func sendUnsignalled(r *conformance.VerbsRun) {
	const count = 5
	var dst *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		dst = s.Buffer("the receive buffer", 16, local)
		for k := range count {
			s.PostRecv(recv(uint64(k), dst))
		}
	}})
	src := i.Buffer("the source", 16, local).Fill(r.Seed)
	for k := range count {
		wr := send(uint64(k), src)
		if k < count-1 {
			wr.Flags = 0
		}
		i.PostSend(wr)
	}
	i.WantWC(i.SendWCs(1), 0, count-1, ibverbs.WCSuccess, "the one completion is that of the signalled Send")
	got := p.RecvWCs(count)
	for k := range count {
		p.WantWC(got, k, uint64(k), ibverbs.WCSuccess, fmt.Sprintf("Send %d is delivered", k+1))
	}
	i.NoWC(i.Conn.SendCQ(), 50*time.Millisecond, "no other completion comes")
	end(i, p)
}
