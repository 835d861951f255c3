package engine

import (
	"slices"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// postman brings a side Sends that only its own polls find.
type postman struct {
	t    *testing.T
	from *side
	to   *side
	out  *nowhere // what from has sent
	in   *nowhere // what to has not read
	src  *region
	next uint64 // WRID of the receive for the next Send
}

var postmanCap = provider.QPCap{MaxSendWR: 512, MaxRecvWR: 512, MaxSendSGE: 1, MaxRecvSGE: 1}

func newPostman(t *testing.T, so sideOptions) *postman {
	t.Helper()
	so.cap = postmanCap
	return between(tcpPair(t, Options{}, true, so))
}

// between returns the postman of two sides that are connected.
func between(from, to *side) *postman {
	p := &postman{t: from.t.(*testing.T), from: from, to: to, out: from.replaceConn(), in: to.replaceConn()}
	p.out.keep = true
	p.src = from.reg(8, 0)
	return p
}

// beside is a postman for another QP whose queues complete on the CQ of p's, with r if that is not
// nil.
func (p *postman) beside(r *srq) *postman {
	p.t.Helper()
	so := sideOptions{cap: postmanCap}
	from := newSide(p.t, Options{}, so)
	to := &side{t: p.t, dev: p.to.dev, pd: p.to.pd, cq: p.to.cq, ch: p.to.ch, down: make(chan error, 8)}
	if r != nil {
		to.qp = to.with(r)
	} else {
		to.qp = to.newQP(so)
	}
	p.t.Cleanup(func() { testkit.OK(p.t, to.qp.Close()) })
	from.join(to, testkit.Must(tcpNetwork(Options{}))(p.t), tcpAddr, params(true))
	return between(from, to)
}

// bring has n Sends arrive, every other one of which has no octets. The WRIDs of the receives are
// in order.
func (p *postman) bring(n int) {
	p.t.Helper()
	dst := p.to.reg(8, provider.AccessLocalWrite)
	for range n {
		recv := provider.RecvWR{WRID: p.next, SGList: []provider.SGE{dst.sge(0, 8)}}
		if r := p.to.qp.srq(); r != nil {
			testkit.Must(r.PostRecv([]provider.RecvWR{recv}))(p.t)
		} else {
			p.to.recv(recv)
		}
		p.from.send(provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{p.src.sge(0, int(p.next%2*8))}})
		p.next++
	}
	p.deliver()
}

// deliver has arrive what was sent.
func (p *postman) deliver() {
	p.from.qp.ring()
	p.in.in = append(p.in.in, p.out.out...)
	p.out.out = nil
}

// wantPolled polls c with room for so many completions, and wants those of the receives from first
// to last, successes, and so many more in the ring afterwards.
func (p *postman) wantPolled(c *cq, room int, first, last uint64, left int64) {
	p.t.Helper()
	wc := make([]provider.WC, room)
	n := testkit.Must(c.Poll(wc))(p.t)
	var got, want []uint64
	for i := range wc[:n] {
		got = append(got, wc[i].WRID)
		if octets := uint32(wc[i].WRID % 2 * 8); wc[i].Status != provider.WCSuccess ||
			wc[i].Opcode != provider.WCRecv || wc[i].QPN != p.to.qp.qpn || wc[i].ByteLen != octets {
			p.t.Errorf("completion %+v, want a receive of %d octets", wc[i], octets)
		}
	}
	for id := first; id <= last; id++ {
		want = append(want, id)
	}
	if !slices.Equal(got, want) || c.seen.waiting() != left {
		p.t.Errorf("polled %v, and the ring has %d; want %v and %d", got, c.seen.waiting(), want, left)
	}
}

// TestPollHandsOver: a poll hands its program what completes meanwhile, as far as there is room,
// and the rest is in the ring. All of it is counted, in order, and shows that the program polls.
func TestPollHandsOver(t *testing.T) {
	p := newPostman(t, sideOptions{})
	c := p.to.cq
	p.bring(5)
	p.wantPolled(c, 2, 0, 1, 3)
	p.wantPolled(c, 8, 2, 4, 0)
	p.bring(2)
	taken := c.taken()
	p.wantPolled(c, 8, 5, 6, 0)
	if c.taken() == taken {
		t.Error("a poll that has completions is not seen as one")
	}
	st := testkit.Must(c.Stats())(t)
	if st.Completions != 7 || st.MostWaiting != 3 || st.Waiting != 0 {
		t.Errorf("counted %+v, want 7 completions, of which 3 have waited", st)
	}
	const many = 300
	p.bring(many)
	p.wantPolled(c, many, 7, 7+many-1, 0)
	if st = testkit.Must(c.Stats())(t); st.Completions != 7+many || st.MostWaiting != many-handedMost {
		t.Errorf("counted %+v, want %d completions, of which %d have waited", st, 7+many, many-handedMost)
	}
}

// TestArmedCQGetsCompletions: what completes on a CQ that is armed fires the channel, although a
// poll takes it.
func TestArmedCQGetsCompletions(t *testing.T) {
	p := newPostman(t, sideOptions{events: true})
	c := p.to.cq
	for round := range uint64(2) {
		testkit.OK(t, c.ReqNotify(false))
		p.bring(2)
		p.wantPolled(c, 4, 4*round, 4*round+1, 0)
		if fired, _ := p.to.ch.pop(); fired != c {
			t.Error("a completion of a CQ that was armed has not fired its channel")
		}
		p.bring(2)
		p.wantPolled(c, 4, 4*round+2, 4*round+3, 0)
		if fired, _ := p.to.ch.pop(); fired != nil {
			t.Error("a completion of a CQ that was not armed has fired its channel")
		}
	}
}

// TestOtherCQGetsCompletions: a poll of the send CQ reads the stream, but the receives complete on
// the other one.
func TestOtherCQGetsCompletions(t *testing.T) {
	p := newPostman(t, sideOptions{apart: true})
	p.bring(2)
	p.wantPolled(p.to.cq, 4, 1, 0, 0)
	p.wantPolled(p.to.recvCQ, 4, 0, 1, 0)
	p.bring(2)
	p.wantPolled(p.to.recvCQ, 4, 2, 3, 0)
}

// TestHandoverOfParts: a Send that comes in two parts completes once, with the second.
func TestHandoverOfParts(t *testing.T) {
	p := newPostman(t, sideOptions{})
	p.bring(3)
	all := p.in.in
	p.in.in = all[:len(all)-5]
	p.wantPolled(p.to.cq, 4, 0, 1, 0)
	p.in.in = all[len(all)-5:]
	p.wantPolled(p.to.cq, 4, 2, 2, 0)
	p.bring(1)
	p.wantPolled(p.to.cq, 4, 3, 3, 0)
}

// TestHandoverLeavesLongParts: a poll has the rest of an FPDU read to the memory of its beginning,
// which does not go through a context.
func TestHandoverLeavesLongParts(t *testing.T) {
	p := newPostman(t, sideOptions{})
	c := p.to.cq
	c.dev.prog.kept.Store(rxKept) // other streams keep as many contexts as may be kept
	defer c.dev.prog.kept.Store(0)
	in := &sizedReads{nowhere: p.in}
	st := p.to.qp.stream.Load()
	st.rxMu.Lock()
	st.conn = in
	st.rxMu.Unlock()
	src, dst := p.from.reg(8000, 0), p.to.reg(8000, provider.AccessLocalWrite)
	p.to.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{dst.sge(0, 8000)}})
	p.from.send(provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{src.sge(0, 8000)}})
	wc := make([]provider.WC, 4)
	for polls, all := 1, p.out.out; len(all) > 0; polls++ {
		in.in, in.most = all[:min(2500, len(all))], 0
		all = all[len(in.in):]
		n := testkit.Must(c.Poll(wc))(t)
		if polls > 1 && len(all) > 0 && in.most > 8000 {
			t.Errorf("poll %d has read up to %d octets, and the rest of the FPDU is shorter", polls, in.most)
		}
		if done := len(all) == 0; done != (n == 1) {
			t.Errorf("poll %d: %d completions; the Send has come: %t", polls, n, done)
		}
	}
}

// TestSolicitedCompletionsFire: a CQ that is armed for solicited completions fires when a poll
// finds one, and not before.
func TestSolicitedCompletionsFire(t *testing.T) {
	p := newPostman(t, sideOptions{events: true})
	c := p.to.cq
	testkit.OK(t, c.ReqNotify(true))
	p.bring(1)
	p.wantPolled(c, 4, 0, 0, 0)
	if fired, _ := p.to.ch.pop(); fired != nil {
		t.Error("a Send without the solicited event has fired the channel")
	}
	p.to.recv(provider.RecvWR{WRID: 2})
	p.from.send(provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendSolicited})
	p.deliver()
	p.wantPolled(c, 4, 2, 2, 0)
	if fired, _ := p.to.ch.pop(); fired != c {
		t.Error("a Send with the solicited event has not fired the channel")
	}
}

// TestHandoverOfManyQPs: one poll hands over the receives of all QPs of its CQ, those of a QP in
// order, whether it has a receive queue or an SRQ.
func TestHandoverOfManyQPs(t *testing.T) {
	p := newPostman(t, sideOptions{})
	c := p.to.cq
	shared := testSRQ(t, p.to.pd, 64, 1)
	all := []*postman{p, p.beside(nil), p.beside(shared)}
	next := map[uint32]uint64{} // WRID, by QP
	for round := range 20 {
		for _, q := range all {
			q.bring(3)
		}
		wc := make([]provider.WC, 16)
		n := testkit.Must(c.Poll(wc[:7]))(t)
		if w := c.seen.waiting(); n != 7 || w != 2 {
			t.Fatalf("round %d: %d completions, and %d in the ring; want 7 and 2", round, n, w)
		}
		n += testkit.Must(c.Poll(wc[n:]))(t)
		for _, w := range wc[:n] {
			if w.WRID != next[w.QPN] || w.Opcode != provider.WCRecv || w.Status != provider.WCSuccess {
				t.Errorf("round %d: completion %+v, want WRID %d", round, w, next[w.QPN])
			}
			next[w.QPN]++
		}
		if n != 9 {
			t.Fatalf("round %d: %d completions, want 9", round, n)
		}
	}
	for _, q := range all {
		if got := next[q.to.qp.qpn]; got != q.next {
			t.Errorf("%d completions of QP %d, want %d", got, q.to.qp.qpn, q.next)
		}
	}
}

// TestFlushesFollow: what a poll hands over comes before the flushes of the receives that follow,
// if the stream ends in the same turn.
func TestFlushesFollow(t *testing.T) {
	for _, room := range []int{1, 2, 3, 8} {
		p := newPostman(t, sideOptions{})
		p.bring(2)
		for id := range uint64(3) {
			p.to.recv(provider.RecvWR{WRID: 2 + id})
		}
		p.in.in = append(p.in.in, make([]byte, 64)...) // no FPDU
		var got []provider.WC
		for range 5 {
			wc := make([]provider.WC, room)
			got = append(got, wc[:testkit.Must(p.to.cq.Poll(wc))(t)]...)
		}
		for i, w := range got {
			if w.WRID != uint64(i) || (w.Status == provider.WCSuccess) != (i < 2) {
				t.Errorf("room for %d: completion %d is %+v", room, i, w)
			}
		}
		if len(got) != 5 {
			t.Errorf("room for %d: %d completions, want 5", room, len(got))
		}
	}
}
