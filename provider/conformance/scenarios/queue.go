package scenarios

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance"
)

// queues are about work queues that are full, in error, or not connected.
func queues() []*conformance.Scenario {
	return []*conformance.Scenario{
		{
			Slug: "queue/send-queue-full", Level: conformance.Must,
			Title: "more send work than the queue holds is refused with ENOMEM, and what was accepted completes",
			Verbs: sendQueueFull, Wire: legal, Concurrent: true,
		},
		{
			Slug: "queue/receive-queue-full", Level: conformance.Must,
			Title: "more receives than the queue holds are refused with ENOMEM",
			Verbs: receiveQueueFull,
		},
		{
			Slug: "queue/post-after-end", Level: conformance.Must,
			Title: "work posted after the connection's end is flushed",
			Verbs: postAfterEnd,
		},
		{
			Slug: "queue/flush-in-order", Level: conformance.Must,
			Title: "when a connection ends, all work that is posted completes, in order",
			Verbs: flushInOrder, Concurrent: true,
		},
		{
			Slug: "queue/too-many-sges", Level: conformance.Must,
			Title: "a work request with more SGEs than the queue takes is refused with EINVAL",
			Verbs: tooManySGEs,
		},
		{
			Slug: "queue/partial-post", Level: conformance.Must,
			Title: "of a list with a bad work request those before it are posted, and the call says how many",
			Verbs: partialPost,
		},
		{
			Slug: "queue/events-together", Level: conformance.Must,
			Title: "events of several CQs on one channel that come while another goroutine waits there " +
				"are reported, each once",
			Verbs: eventsTogether, Concurrent: true,
		},
	}
}

func smallQueues() rdmacm.ConnConfig {
	return rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 2}}
}

// granted asks a QP for its true sizes: a provider may round up.
func granted(s *conformance.Side) ibverbs.QPCap {
	_, init, err := s.QP.Query()
	s.NoError(err, "the QP can be queried")
	return init.Cap
}

func sendQueueFull(r *conformance.VerbsRun) {
	// One Read at a time keeps the queue busy longer than posting takes. A long list needs several
	// calls of ibv_post_send, and on a busy machine the program may lose its CPU between two of
	// them while Reads complete. So the list has many more requests than can complete then, and the
	// CQ has room for all.
	const size, more = 1 << 20, 128
	cfg := smallQueues()
	cfg.InitiatorDepth = 1
	cfg.SendCQ = newBellOf(r.T, r.Initiator, 2*more).cq
	i, p := r.Connect(&conformance.SideConfig{ConnConfig: cfg}, nil)
	src := p.Buffer("the source", size, remoteRead)
	dst := i.Buffer("the sink", size, remoteWrite)
	room := granted(i).MaxSendWR
	wrs := make([]ibverbs.SendWR, room+more)
	for k := range wrs {
		wrs[k] = read(uint64(k), dst, src)
	}
	err := i.QP.PostSend(wrs...)
	posted := len(wrs)
	var pe *ibverbs.PostError
	if i.Check(errors.As(err, &pe), "a list longer than the queue is refused", "%v", err) {
		posted = pe.Posted
		conformance.Equal(r.T, ibverbs.Errno(err), syscall.ENOMEM, "the error is ENOMEM")
		i.Check(posted >= room, "the queue takes as many as it was granted", "%d of %d", posted, room)
	}
	got := i.Quietly(i.Conn.SendCQ(), posted)
	conformance.Equal(r.T, len(got), posted, "as many complete as were accepted")
	for k := range got {
		if got[k].WRID != uint64(k) || got[k].Status != ibverbs.WCSuccess {
			i.Check(false, "what was accepted completes in order", "number %d is WR %d with %s", k, got[k].WRID, got[k].Status)
			break
		}
	}
	end(i, p)
}

func receiveQueueFull(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, &conformance.SideConfig{ConnConfig: smallQueues()})
	b := p.Buffer("the receive buffer", 8, local)
	room := granted(p).MaxRecvWR
	for k := range room {
		p.PostRecv(recv(uint64(k), b))
	}
	err := p.QP.PostRecv(recv(99, b))
	p.Check(ibverbs.Errno(err) == syscall.ENOMEM, "one more is refused with ENOMEM", "%v", err)
	r.NoError(i.Conn.Disconnect(), "the initiator can disconnect")
	p.WaitEnd()
	got := p.RecvWCs(room)
	for k := range room {
		p.WantWC(got, k, uint64(k), ibverbs.WCWRFlushErr, fmt.Sprintf("receive %d is flushed", k+1))
	}
}

func postAfterEnd(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, nil)
	b := i.Buffer("a buffer", 8, local)
	r.NoError(p.Conn.Disconnect(), "the responder can disconnect")
	i.WaitEnd()
	serr := i.QP.PostSend(send(1, b))
	rerr := i.QP.PostRecv(recv(2, b))
	if i.Check(serr == nil, "a Send can be posted", "%v", serr) {
		i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCWRFlushErr, "the Send is flushed")
	}
	if i.Check(rerr == nil, "a receive can be posted", "%v", rerr) {
		i.WantWC(i.RecvWCs(1), 0, 2, ibverbs.WCWRFlushErr, "the receive is flushed")
	}
}

func flushInOrder(r *conformance.VerbsRun) {
	const count, size = 6, 8 << 20 // longer than posting and the end take on a busy machine
	cfg := &conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{InitiatorDepth: 1, ResponderResources: 1}}
	i, p := r.Connect(cfg, &conformance.SideConfig{ConnConfig: cfg.ConnConfig})
	src := p.Buffer("the source", size, remoteRead)
	dst := i.Buffer("the sink", size, remoteWrite)
	in := i.Buffer("the receive buffer", 8, local)
	var recvs []ibverbs.RecvWR
	var reads []ibverbs.SendWR
	for k := range count {
		recvs = append(recvs, recv(uint64(100+k), in))
		reads = append(reads, read(uint64(k), dst, src))
	}
	i.PostRecv(recvs...)
	i.PostSend(reads...) // in one list: with a provider on another host each call takes a round trip
	r.NoError(i.QP.Modify(ibverbs.QPAttr{State: ibverbs.QPErr}, ibverbs.QPAttrState), "the QP can be moved to the error state")
	var wcs [2 * count]ibverbs.WC
	collect := func(cq *ibverbs.CQ, first uint64, what string) {
		until := time.Now().Add(r.Scaled(2 * time.Second))
		n := 0
		for n < count && time.Now().Before(until) {
			k, err := cq.Poll(wcs[n:count])
			r.NoError(err, "the CQ can be polled")
			n += k
			time.Sleep(time.Millisecond)
		}
		r.Check(n == count, "all "+what+" complete", "%d of %d", n, count)
		for k := range n {
			r.Check(wcs[k].WRID == first+uint64(k), fmt.Sprintf("%s %d completes in its turn", what, k+1), "WR %d", wcs[k].WRID)
		}
		// How many Reads were done before the end depends on timing, but the last
		// can't have been done.
		if n == count {
			conformance.Equal(r.T, wcs[count-1].Status, ibverbs.WCWRFlushErr, "the last of the "+what+" is flushed")
		}
	}
	collect(i.Conn.SendCQ(), 0, "send work requests")
	collect(i.Conn.RecvCQ(), 100, "receives")
	r.Check(ended(r, p), "the responder learns of the end")
}

func tooManySGEs(r *conformance.VerbsRun) {
	i, p := r.Connect(&conformance.SideConfig{ConnConfig: smallQueues()}, &conformance.SideConfig{Before: func(s *conformance.Side) {
		s.PostRecv(recv(7, s.Buffer("the receive buffer", 64, local))) // should the Send be accepted after all
	}})
	b := i.Buffer("a buffer", 64, local)
	most := granted(i)
	list := func(n int) []ibverbs.SGE {
		var l []ibverbs.SGE
		for k := range n {
			l = append(l, b.SGE(k, 1))
		}
		return l
	}
	serr := i.QP.PostSend(ibverbs.SendWR{WRID: 1, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: list(most.MaxSendSGE + 1)})
	rerr := i.QP.PostRecv(ibverbs.RecvWR{WRID: 2, SGList: list(most.MaxRecvSGE + 1)})
	i.Check(ibverbs.Errno(serr) == syscall.EINVAL, "the Send is refused with EINVAL", "%v", serr)
	i.Check(ibverbs.Errno(rerr) == syscall.EINVAL, "the receive is refused with EINVAL", "%v", rerr)
	end(i, p)
}

func partialPost(r *conformance.VerbsRun) {
	var dst *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		dst = s.Buffer("the receive buffer", 8, local)
		s.PostRecv(recv(7, dst), recv(8, dst))
	}})
	src := i.Buffer("the source", 8, local).Fill(r.Seed)
	bad := send(3, src)
	bad.Opcode = ibverbs.WROpcode(77)
	err := i.QP.PostSend(send(1, src), send(2, src), bad, send(4, src))
	var pe *ibverbs.PostError
	if i.Check(errors.As(err, &pe), "the list is refused", "%v", err) {
		conformance.Equal(r.T, pe.Posted, 2, "two work requests were posted")
		conformance.Equal(r.T, ibverbs.Errno(err), syscall.EINVAL, "the error is EINVAL")
	}
	got := i.SendWCs(2)
	i.WantWC(got, 0, 1, ibverbs.WCSuccess, "the first completes")
	i.WantWC(got, 1, 2, ibverbs.WCSuccess, "the second completes")
	got = p.RecvWCs(2)
	p.WantWC(got, 0, 7, ibverbs.WCSuccess, "the first arrives")
	p.WantWC(got, 1, 8, ibverbs.WCSuccess, "the second arrives")
	end(i, p)
}

// eventsTogether makes the completions of two connections arrive in four CQs of one channel, while
// PollWait of a fifth reads the channel's events.
func eventsTogether(r *conformance.VerbsRun) {
	const rounds = 3
	l := r.Listen(r.Responder)
	bell := newBell(r.T, r.Responder) // the fifth CQ
	cfg := func() *conformance.SideConfig {
		c := &conformance.SideConfig{}
		for _, cq := range []**ibverbs.CQ{&c.SendCQ, &c.RecvCQ} {
			var err error
			*cq, err = r.Responder.Context.CreateCQ(16, &ibverbs.CQOptions{Channel: bell.ch})
			r.NoError(err, "a CQ can be made on the channel")
			closing(r, "the CQ", *cq)
		}
		c.Before = func(s *conformance.Side) {
			for k := range rounds {
				s.PostRecv(ibverbs.RecvWR{WRID: uint64(k)})
			}
		}
		return c
	}
	i1, p1 := r.ConnectTo(l, nil, cfg())
	i2, p2 := r.ConnectTo(l, nil, cfg())
	ctx, stop := context.WithCancel(r.Context())
	waited := make(chan error, 1)
	go func() {
		_, err := bell.cq.PollWait(ctx, make([]ibverbs.WC, 1))
		waited <- err
	}()
	r.Cleanup(func() {
		stop()
		err := <-waited
		r.Check(errors.Is(err, context.Canceled), "the goroutine that waits for the fifth CQ gives up",
			"%v", err)
	})
	cqs := []*ibverbs.CQ{p1.Conn.RecvCQ(), p2.Conn.RecvCQ(), p1.Conn.SendCQ(), p2.Conn.SendCQ()}
	for k := range uint64(rounds) {
		for _, cq := range cqs {
			r.NoError(cq.ReqNotify(false), "a CQ can be armed")
		}
		for _, i := range []*conformance.Side{i1, i2} {
			i.PostSend(ibverbs.SendWR{WRID: k, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled})
			i.WantWC(i.SendWCs(1), 0, k, ibverbs.WCSuccess, "a Send completes")
		}
		for _, p := range []*conformance.Side{p1, p2} {
			p.WantWC(p.RecvWCsPolled(1), 0, k, ibverbs.WCSuccess, "it arrives")
			p.PostSend(ibverbs.SendWR{WRID: k, Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled})
			p.WantWC(p.SendWCsPolled(1), 0, k, ibverbs.WCSuccess, "a Write of no octets completes")
		}
		time.Sleep(r.Scaled(2 * time.Millisecond)) // so that PollWait has read them
		seen := make(map[*ibverbs.CQ]int)
		for range cqs {
			ctx, cancel := context.WithTimeout(r.Context(), r.Scaled(anEvent))
			cq, err := bell.ch.Next(ctx)
			cancel()
			if err != nil {
				break
			}
			seen[cq]++
		}
		for n, cq := range cqs {
			r.Check(seen[cq] == 1, "each CQ has one event", "CQ %d has %d in round %d", n, seen[cq], k)
		}
	}
	r.Check(!p1.ChannelEvent(bell.ch, noEvent), "there is no other event")
	end(i1, p1)
	end(i2, p2)
}
