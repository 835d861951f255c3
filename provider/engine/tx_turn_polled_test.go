package engine

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// TestTurnOfPolled: a program that polls the CQ of one QP sends 1 MiB of its posts in one turn.
// Answers to Reads, and QPs that share a CQ, have the ordinary turns.
func TestTurnOfPolled(t *testing.T) {
	const size, writes = 8 << 20, 4
	for _, tc := range []struct {
		what         string
		shared, asks bool
		most         int
	}{
		{what: "Writes", most: policy.BudgetSole},
		{what: "Writes of one QP of two", shared: true, most: policy.BudgetLong},
		{what: "Reads of the peer", asks: true, most: policy.BudgetLong},
	} {
		t.Run(tc.what, func(t *testing.T) {
			net := memnet.Options{Window: 1 << 30, MSS: 9000}
			byHand(t, net, Options{}, func(s *side, network *memnet.Network) {
				if tc.shared {
					s.besides(network)
				}
				r := s.connectRaw(network)
				src := s.reg(size, provider.AccessLocalWrite|provider.AccessRemoteRead)
				if tc.asks {
					r.ask(src, size, writes)
				} else {
					wr := src.writeAll(size)
					testkit.Must(s.qp.PostSend([]provider.SendWR{wr, wr, wr, wr}))(s.t)
				}
				st := s.qp.stream.Load()
				for range 4 { // until the poller knows that the stream has much to do
					s.dev.progress(s.cq)
					r.drop()
				}
				for turn := range 8 {
					before := st.sent()
					s.dev.progress(s.cq)
					moved := int(st.sent() - before)
					if moved < tc.most*3/4 || moved > tc.most*5/4 {
						s.t.Errorf("turn %d has sent %d, want about %d", turn, moved, tc.most)
					}
					r.drop()
				}
			})
		})
	}
}

// TestTurnOfPolledIsThePollers: the long turn of a program that polls for one stream is for the
// Poll that it has made. If the socket has no room then, the stream has a turn as long as all
// others when it has, which may be long after the program has stopped to poll.
func TestTurnOfPolledIsThePollers(t *testing.T) {
	const size, window = 4 << 20, 3 << 20
	net := memnet.Options{Window: window, MSS: 9000}
	byHand(t, net, Options{}, func(s *side, network *memnet.Network) {
		r := s.connectRaw(network)
		src := s.reg(size, provider.AccessLocalWrite)
		wr := src.writeAll(size)
		testkit.Must(s.qp.PostSend([]provider.SendWR{wr, wr, wr}))(t)
		for range 20 { // the last of them find a socket that is full
			s.dev.progress(s.cq)
		}
		st := s.qp.stream.Load()
		if !st.full() || r.drop() < window {
			t.Fatal("the socket has room, or nothing to send")
		}
		for turn := range 2 {
			before := st.sent()
			s.dev.poller.Poll()
			if moved := int(st.sent() - before); moved == 0 || moved > policy.BudgetLong*5/4 {
				t.Errorf("turn %d has sent %d bytes, want about %d", turn, moved, policy.BudgetLong)
			}
			r.drop()
		}
	})
}

// writeAll is a Write of the first n bytes of r to nowhere.
func (r *region) writeAll(n int) provider.SendWR {
	return provider.SendWR{Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{r.sge(0, n)}}
}
