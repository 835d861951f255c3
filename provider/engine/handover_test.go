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

func newPostman(t *testing.T, so sideOptions) *postman {
	t.Helper()
	so.cap = provider.QPCap{MaxSendWR: 512, MaxRecvWR: 512, MaxSendSGE: 1, MaxRecvSGE: 1}
	from, to := tcpPair(t, Options{}, true, so)
	p := &postman{t: t, from: from, to: to, out: from.replaceConn(), in: to.replaceConn()}
	p.out.keep = true
	p.src = from.reg(8, 0)
	return p
}

// bring has n Sends arrive, every other one of which has no octets. The receives' WRIDs are in order.
func (p *postman) bring(n int) {
	p.t.Helper()
	dst := p.to.reg(8, provider.AccessLocalWrite)
	for range n {
		p.to.recv(provider.RecvWR{WRID: p.next, SGList: []provider.SGE{dst.sge(0, 8)}})
		p.from.send(provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{p.src.sge(0, int(p.next%2*8))}})
		p.next++
	}
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

// TestPollHandsOver: a poll hands its program what completes meanwhile, as far as there is room, and
// the rest is in the ring. All of it is counted, in order, and shows that the program polls.
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

// TestHandoverEndsWithPanic: after a poll that a panic has ended, completions do not go to its
// program's memory any more.
func TestHandoverEndsWithPanic(t *testing.T) {
	p := newPostman(t, sideOptions{})
	st := p.to.qp.stream.Load()
	st.rxMu.Lock()
	st.conn = &panicking{p.in, st}
	st.rxMu.Unlock()
	p.bring(1)
	wc := []provider.WC{{WRID: 99}}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the poll has not panicked")
			}
		}()
		_, _ = p.to.cq.Poll(wc)
	}()
	st.pollRx(turnMost)
	if wc[0].WRID != 99 || p.to.cq.seen.waiting() != 1 {
		t.Errorf("%d completions in the ring, and %+v where the poll was to put them", p.to.cq.seen.waiting(), wc[0])
	}
}
