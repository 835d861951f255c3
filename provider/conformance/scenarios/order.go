package scenarios

import (
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance"
)

// order is about the order of operations (RFC 5040 section 5.5).
func order() []*conformance.Scenario {
	return []*conformance.Scenario{
		{
			Slug: "order/write-then-send", Level: conformance.Must,
			Title:        "when a Send is delivered, the Writes posted before it are in place",
			Requirements: []string{"DDP-4.1-08", "DDP-5.3-06", "DDP-5.4-02", "RDMAP-5.1-04"},
			Verbs:        writeThenSend, Wire: legal,
		},
		{
			Slug: "order/read-then-send", Level: conformance.Must,
			Title:        "completions come in the order of posting, also when a Send is done before the Read in front of it",
			Requirements: []string{"RDMAP-5.5-15-01"},
			Verbs:        readThenSend, Wire: legal,
		},
		{
			Slug: "order/fence", Level: conformance.Must,
			Title:        "a fenced Send leaves when the Reads before it have brought their data",
			Requirements: []string{"RDMAP-5.5-02"},
			Verbs:        fence, Wire: fenced,
		},
		{
			Slug: "order/many-sends", Level: conformance.Must, Title: "a hundred Sends in flight arrive in order",
			Requirements: []string{"RDMAP-5.3-04", "RDMAP-5.3-07", "RDMAP-5.5-10-01"},
			Verbs:        manySends, Wire: legal,
		},
		{
			Slug: "order/mixed-both-ways", Level: conformance.Must,
			Title:        "Sends, Writes and Reads of both sides at once all arrive whole",
			Requirements: []string{"DDP-6.1-01"},
			Verbs:        mixedBothWays, Wire: legal, Concurrent: true,
		},
	}
}

func writeThenSend(r *conformance.VerbsRun) {
	const rounds, size = 8, 150_000
	var note *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		note = s.Buffer("the receive buffer", 1, local)
		for k := range rounds {
			s.PostRecv(recv(uint64(k), note))
		}
	}})
	dst := p.Buffer("the sink", size, remoteWrite)
	for k := range rounds {
		src := i.Buffer("the source", size, local).Fill(r.Seed + uint64(k))
		one := i.Buffer("the note", 1, local)
		w := write(1, src, dst)
		w.Flags = 0
		i.PostSend(w, send(2, one))
		p.WantWC(p.RecvWCs(1), 0, uint64(k), ibverbs.WCSuccess, "the Send is delivered")
		dst.Holds(src.Data, fmt.Sprintf("round %d: the Write is in place when the Send is delivered", k+1))
		i.WantWC(i.SendWCs(1), 0, 2, ibverbs.WCSuccess, "and completes")
	}
	end(i, p)
}

func readThenSend(r *conformance.VerbsRun) {
	var note *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		note = s.Buffer("the receive buffer", 8, local)
		s.PostRecv(recv(7, note))
	}})
	src := p.Buffer("the source", 500_000, remoteRead).Fill(r.Seed)
	dst := i.Buffer("the sink", 500_000, remoteWrite)
	small := i.Buffer("the note", 8, local)
	i.PostSend(read(1, dst, src), send(2, small))
	got := i.SendWCs(2)
	i.WantWC(got, 0, 1, ibverbs.WCSuccess, "the Read completes first")
	i.WantWC(got, 1, 2, ibverbs.WCSuccess, "the Send second")
	dst.Holds(src.Data, "the Read brought its octets")
	p.WantWC(p.RecvWCs(1), 0, 7, ibverbs.WCSuccess, "the Send arrives")
	end(i, p)
}

func fence(r *conformance.VerbsRun) {
	const size = 300_000
	var echo *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		echo = s.Buffer("the receive buffer", size, local)
		s.PostRecv(recv(7, echo))
	}})
	src := p.Buffer("the source", size, remoteRead).Fill(r.Seed)
	dst := i.Buffer("the sink and source of the Send", size, remoteWrite)
	s := send(2, dst)
	s.Flags |= ibverbs.SendFence
	i.PostSend(read(1, dst, src), s)
	got := i.SendWCs(2)
	i.WantWC(got, 0, 1, ibverbs.WCSuccess, "the Read completes")
	i.WantWC(got, 1, 2, ibverbs.WCSuccess, "the fenced Send completes")
	p.WantWC(p.RecvWCs(1), 0, 7, ibverbs.WCSuccess, "it arrives")
	echo.Holds(src.Data, "it carries what the Read brought")
	end(i, p)
}

// fenced checks the order on the wire: the response is complete before the
// first segment of the Send leaves.
func fenced(w *conformance.WireRun) {
	conn := only(w)
	answered := false
	for k := range conn.Frames {
		f := &conn.Frames[k]
		switch {
		case isLast(f, "RDMA Read Response"):
			answered = true
		case isFPDU(f, "Send"):
			w.Check(answered, "the fenced Send is after the Read's response on the wire")
			legal(w)
			return
		}
	}
	w.Check(false, "the fenced Send is on the wire")
}

func manySends(r *conformance.VerbsRun) {
	const count, size = 100, 1000
	cfg := rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: count, MaxRecvWR: count, MaxSendSGE: 1, MaxRecvSGE: 1}}
	var dst *conformance.Buffer
	i, p := r.Connect(&conformance.SideConfig{ConnConfig: cfg}, &conformance.SideConfig{ConnConfig: cfg, Before: func(s *conformance.Side) {
		dst = s.Buffer("the receive buffers", count*size, local)
		for k := range count {
			s.PostRecv(ibverbs.RecvWR{WRID: uint64(k), SGList: []ibverbs.SGE{dst.SGE(k*size, size)}})
		}
	}})
	src := i.Buffer("the source", count*size, local).Fill(r.Seed)
	wrs := make([]ibverbs.SendWR, count)
	for k := range wrs {
		wrs[k] = send(uint64(k), src)
		wrs[k].SGList = []ibverbs.SGE{src.SGE(k*size, size)}
	}
	i.PostSend(wrs...)
	sent, got := i.SendWCs(count), p.RecvWCs(count)
	for k := range min(len(sent), len(got)) {
		if sent[k].WRID != uint64(k) || got[k].WRID != uint64(k) {
			r.Check(false, "completions come in order", "number %d is of WR %d, and %d at the responder", k, sent[k].WRID, got[k].WRID)
			break
		}
		if sent[k].Status != ibverbs.WCSuccess || got[k].Status != ibverbs.WCSuccess {
			r.Check(false, "all of them succeed", "number %d has %s, and %s at the responder", k, sent[k].Status, got[k].Status)
			break
		}
	}
	dst.Holds(src.Data, "every Send is in the receive of its turn")
	end(i, p)
}

func mixedBothWays(r *conformance.VerbsRun) {
	const size = 100_000
	var in [2]*conformance.Buffer
	before := func(k int) func(s *conformance.Side) {
		return func(s *conformance.Side) {
			in[k] = s.Buffer("the receive buffer", size, local)
			s.PostRecv(recv(9, in[k]))
		}
	}
	i, p := r.Connect(&conformance.SideConfig{Before: before(0)}, &conformance.SideConfig{Before: before(1)})
	sides := [2]*conformance.Side{i, p}
	var src, sink, back [2]*conformance.Buffer
	var done [2]int
	for k, s := range sides {
		src[k] = s.Buffer("the source", size, remoteRead).Fill(r.Seed + uint64(k))
		sink[k] = s.Buffer("the sink of the peer's Write", size, remoteWrite)
		back[k] = s.Buffer("the sink of the Read", size, remoteWrite)
	}
	for k, s := range sides {
		s.PostSend(write(1, src[k], sink[1-k]), read(2, back[k], src[1-k]), send(3, src[k]))
	}
	for k, s := range sides {
		for _, wc := range s.Quietly(s.Conn.SendCQ(), 3) { // order/read-then-send is about their order
			s.Check(wc.Status == ibverbs.WCSuccess, "all three work requests complete", "WR %d with %s", wc.WRID, wc.Status)
			done[k]++
		}
		conformance.Equal(r.T, done[k], 3, "three work requests complete on each side")
		s.WantWC(s.RecvWCs(1), 0, 9, ibverbs.WCSuccess, "the peer's Send arrives")
		sink[k].Holds(src[1-k].Data, "the peer's Write is in place")
		back[k].Holds(src[1-k].Data, "the Read brought its octets")
		in[k].Holds(src[1-k].Data, "the Send brought its octets")
	}
	end(i, p)
}
