package scenarios

import (
	"context"
	"errors"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance"
)

// sharedQueues are about shared receive queues of the responder.
func sharedQueues() []*conformance.Scenario {
	return []*conformance.Scenario{
		{
			Slug: "srq/shared", Level: conformance.Must,
			Title: "receives of a shared queue go in order to whichever connection a message comes on, and outlive a connection",
			Verbs: srqShared, Wire: legal,
		},
		{
			Slug: "srq/limit", Level: conformance.Must,
			Title:        "the limit of a shared queue gives one event, when a receive is taken and fewer are left",
			Requirements: []string{"DDP-8.3.2-01"},
			Verbs:        srqLimit, Wire: legal,
		},
		{
			Slug: "srq/empty", Level: conformance.Must,
			Title:        "a Send that finds a shared queue empty ends the connection",
			Requirements: []string{"DDP-7.1u2-01"},
			Verbs:        srqEmpty, Wire: terminated("1/2/0x02"),
		},
		{
			Slug: "srq/solicited", Level: conformance.Must,
			Title: "a CQ armed for solicited completions gives an event for a Send with " +
				"Solicited Event that takes a receive of a shared queue, and none for a plain one",
			Requirements: []string{"RDMAP-5.3-05"},
			Verbs:        srqSolicited, Wire: legal,
		},
	}
}

// newSRQ makes a shared queue on the responder's device, and what connects with it.
func newSRQ(r *conformance.VerbsRun, places int) (*ibverbs.SRQ, *conformance.SideConfig) {
	pd, err := r.Responder.Context.AllocPD()
	r.NoError(err, "a PD can be made")
	closing(r, "the PD", pd)
	srq, err := pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: places, MaxSGE: 1}})
	r.NoError(err, "a shared receive queue can be made")
	closing(r, "the shared receive queue", srq)
	return srq, &conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{SRQ: srq}}
}

// srqBuffers registers a buffer for each of n receives and posts them in one list.
func srqBuffers(s *conformance.Side, srq *ibverbs.SRQ, n, size int) []*conformance.Buffer {
	var bufs []*conformance.Buffer
	var list []ibverbs.RecvWR
	for k := range n {
		b := s.Buffer("a receive buffer", size, local)
		bufs, list = append(bufs, b), append(list, recv(uint64(k), b))
	}
	s.NoError(srq.PostRecv(list...), "receives can be posted to the shared queue")
	return bufs
}

func srqShared(r *conformance.VerbsRun) {
	const size = 20_000 // a few segments
	l := r.Listen(r.Responder)
	srq, second := newSRQ(r, 8)
	var bufs []*conformance.Buffer
	first := *second
	first.Before = func(s *conformance.Side) { bufs = srqBuffers(s, srq, 5, size) }
	i1, p1 := r.ConnectTo(l, nil, &first)
	i2, p2 := r.ConnectTo(l, nil, second)
	turn := 0
	talk := func(i, p *conformance.Side) {
		src := i.Buffer("a message", size-turn, local).Fill(r.Seed + uint64(turn))
		i.PostSend(send(uint64(turn), src))
		got := p.RecvWCs(1)
		p.WantWC(got, 0, uint64(turn), ibverbs.WCSuccess, "each message takes the oldest receive")
		if len(got) == 1 {
			conformance.Equal(r.T, got[0].QPN, p.QP.QPN(), "the completion names the queue pair that the message came on")
			bufs[turn].Holds(src.Data, "the message is in its receive")
		}
		i.WantWC(i.SendWCs(1), 0, uint64(turn), ibverbs.WCSuccess, "the Send completes")
		turn++
	}
	talk(i2, p2)
	talk(i1, p1)
	talk(i2, p2)
	end(i1, p1)
	p1.NoWC(p1.Conn.RecvCQ(), 20*time.Millisecond, "no receive of the shared queue is flushed with a connection")
	talk(i2, p2)
	end(i2, p2)
	p2.NoWC(p2.Conn.RecvCQ(), 20*time.Millisecond, "nor with the last one")
	bufs[4].Untouched("the last receive is not touched")
}

func srqLimit(r *conformance.VerbsRun) {
	srq, cfg := newSRQ(r, 8)
	var bufs []*conformance.Buffer
	cfg.Before = func(s *conformance.Side) { bufs = srqBuffers(s, srq, 6, 8) }
	i, p := r.Connect(nil, cfg)
	src := i.Buffer("the source", 8, local).Fill(r.Seed)
	turn := uint64(0)
	take := func() {
		i.PostSend(send(turn, src))
		p.WantWC(p.RecvWCs(1), 0, turn, ibverbs.WCSuccess, "the message arrives")
		i.WantWC(i.SendWCs(1), 0, turn, ibverbs.WCSuccess, "the Send completes")
		turn++
	}
	event := func(what string, due bool) {
		ev, err := asyncEvent(r, r.Responder, due)
		switch {
		case err == nil:
			r.Check(due && ev.Type == ibverbs.EventSRQLimitReached && ev.SRQ == srq, what, "%s", ev.Type)
		default:
			r.Check(!due && errors.Is(err, context.DeadlineExceeded), what, "%v", err)
		}
	}
	arm := func(n int) {
		r.NoError(srq.Modify(ibverbs.SRQAttr{Limit: n}, ibverbs.SRQAttrLimit), "the limit can be set")
	}
	take()
	event("there is no event before the limit is set", false)
	arm(4)
	take()
	event("there is none while as many as the limit are left", false)
	take()
	event("there is one when fewer are left", true)
	take()
	event("there is no second one", false)
	arm(2)
	take()
	event("there is one when the limit is set again", true)
	arm(1)
	arm(0)
	take()
	event("there is none when it is taken back", false)
	bufs[5].Holds(src.Data, "the last message is in its receive")
	end(i, p)
}

func srqEmpty(r *conformance.VerbsRun) {
	srq, cfg := newSRQ(r, 4)
	var bufs []*conformance.Buffer
	cfg.Before = func(s *conformance.Side) { bufs = srqBuffers(s, srq, 1, 64) }
	i, p := r.Connect(nil, cfg)
	src := i.Buffer("the source", 64, local).Fill(r.Seed)
	i.PostSend(send(1, src))
	p.WantWC(p.RecvWCs(1), 0, 0, ibverbs.WCSuccess, "the first Send finds a receive")
	bufs[0].Holds(src.Data, "and is there")
	i.PostSend(send(2, src))
	i.Quietly(i.Conn.SendCQ(), 2)
	i.WaitEnd()
	p.WaitEnd()
	p.NoWC(p.Conn.RecvCQ(), 20*time.Millisecond, "nothing else completes")
}

// srqSolicited has Sends of one segment and of several.
func srqSolicited(r *conformance.VerbsRun) {
	const size = 20_000
	bell := newBell(r.T, r.Responder)
	srq, cfg := newSRQ(r, 8)
	cfg.RecvCQ = bell.cq
	cfg.Before = func(s *conformance.Side) { srqBuffers(s, srq, 4, size) }
	i, p := r.Connect(nil, cfg)
	src := i.Buffer("the source", size, local).Fill(r.Seed)
	turn := uint64(0)
	say := func(n int, flags ibverbs.SendFlags) {
		wr := send(turn, src)
		wr.SGList, wr.Flags = []ibverbs.SGE{src.SGE(0, n)}, wr.Flags|flags
		i.PostSend(wr)
		i.WantWC(i.SendWCs(1), 0, turn, ibverbs.WCSuccess, "the Send completes")
		p.WantWC(p.RecvWCsPolled(1), 0, turn, ibverbs.WCSuccess,
			"it takes the next receive of the shared queue")
		turn++
	}
	for _, n := range []int{64, size} {
		bell.arm(r.T)
		say(n, 0)
		p.Check(!p.ChannelEvent(bell.ch, noEvent), "the plain Send gives no event", "of %d octets", n)
		say(n, ibverbs.SendSolicited)
		p.Check(p.ChannelEvent(bell.ch, anEvent), "the solicited Send gives an event", "of %d octets", n)
	}
	end(i, p)
}
