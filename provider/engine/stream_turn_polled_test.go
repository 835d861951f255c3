package engine

import (
	"slices"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/turns"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// TestTurnOfPolled: a program that polls the CQ of one QP sends 1 MiB in one turn of what it
// has posted, and of what the peer's Reads ask for if the device has no other QP. Answers to Reads
// on a device with more, QPs that share a CQ, and streams without CRC whose octets may wait at the
// peer without bounds have turns as long as those of all others.
func TestTurnOfPolled(t *testing.T) {
	const size, writes = 8 << 20, 4
	for _, tc := range []struct {
		what                                string
		crc, bounded, shared, asks, another bool
		most                                int
	}{
		{what: "Writes", crc: true, most: turnPolled},
		{what: "Writes without CRC", bounded: true, most: turnPolled},
		{what: "Writes without CRC and bounds", most: turns.Long},
		{what: "Writes of one QP of two", crc: true, shared: true, most: turnPolled / 2},
		{what: "Reads of the peer", crc: true, asks: true, most: turnPolled},
		{what: "Reads of the peer without CRC", bounded: true, asks: true, most: turnPolled},
		{what: "Reads of the peer on a device with two QPs", crc: true, asks: true, another: true,
			most: turns.Long},
		{what: "Writes on a device with two QPs", crc: true, another: true, most: turnPolled},
	} {
		t.Run(tc.what, func(t *testing.T) {
			net := memnet.Options{Window: 1 << 30, MSS: 9000, Bounded: tc.bounded}
			byHand(t, net, Options{}, func(s *side, network *memnet.Network) {
				if tc.shared {
					s.besides(network)
				}
				if tc.another {
					s.otherQP()
				}
				r := s.connected(network, tc.crc)
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
					before := st.moved.Load()
					s.dev.progress(s.cq)
					moved := int(st.moved.Load() - before)
					if moved < tc.most*3/4 || moved > tc.most*5/4 {
						s.t.Errorf("turn %d has sent %d, want about %d", turn, moved, tc.most)
					}
					r.drop()
				}
			})
		})
	}
}

// TestTurnsOfFewPolled: up to four QPs that share a CQ, all with more to send than a Poll does,
// send 1 MiB together in each of the program's Polls, and each of them as much as the others. Those
// of a CQ or a device with many send 256 KiB together, as do those whose peers have asked for it,
// or may leave it in their sockets.
func TestTurnsOfFewPolled(t *testing.T) {
	for _, tc := range []struct {
		what                 string
		n, others            int
		asks, crc, unbounded bool
		most                 int
	}{
		{what: "two", n: 2, crc: true, most: turnPolled},
		{what: "three", n: 3, crc: true, most: turnPolled},
		{what: "four", n: 4, crc: true, most: turnPolled},
		{what: "five", n: 5, crc: true, most: turns.Long},
		{what: "two on a device with eight", n: 2, others: fewQPs - 2, crc: true, most: turnPolled},
		{what: "two on a device with nine", n: 2, others: fewQPs - 1, crc: true, most: turns.Long},
		{what: "two whose peers read", n: 2, asks: true, crc: true, most: turns.Long},
		{what: "two without CRC", n: 2, most: turnPolled},
		{what: "two without CRC and bounds", n: 2, unbounded: true, most: turns.Long},
	} {
		t.Run(tc.what, func(t *testing.T) {
			net := memnet.Options{Window: 1 << 30, MSS: 9000, Bounded: !tc.unbounded}
			byHand(t, net, Options{}, func(s *side, network *memnet.Network) {
				peers, qps := []*raw{s.connected(network, tc.crc)}, []*qp{s.qp}
				for len(qps) < tc.n {
					q, r := s.besidesWith(network, tc.crc)
					peers, qps = append(peers, r), append(qps, q)
				}
				for range tc.others {
					s.otherQP()
				}
				sendMuch(s, peers, qps, tc.asks)
				for range 2 * tc.n { // until the poller knows that the streams have much to do
					s.pollMoved(peers, qps)
				}
				all := make([]int, tc.n)
				for turn := range 2 * tc.n {
					sum := 0
					for i, moved := range s.pollMoved(peers, qps) {
						sum += moved
						all[i] += moved
					}
					if sum < tc.most*3/4 || sum > tc.most*5/4 {
						s.t.Errorf("Poll %d has sent %d, want about %d", turn, sum, tc.most)
					}
				}
				if least, longest := slices.Min(all), slices.Max(all); least < longest*9/10 {
					s.t.Errorf("the QPs have sent %v: they should have as much", all)
				}
			})
		})
	}
}

// TestSharesOfTurnPolled: only a turn that is one of several is counted as a part of a long one.
func TestSharesOfTurnPolled(t *testing.T) {
	byHand(t, memnet.Options{}, Options{}, func(s *side, network *memnet.Network) {
		s.connected(network, true)
		st := s.qp.stream.Load()
		for n, want := range []int{turns.Long, turnPolled, turnPolled / 2, turnPolled / 3, turnPolled / 4} {
			st.polled.Store(uint32(n))
			if got, shared := st.sendTurn(turns.Long); got != want || shared != (n > 1) || st.polled.Load() != 0 {
				t.Errorf("one of %d: %d octets, shared %t; want %d", n, got, shared, want)
			}
		}
	})
}

// sendMuch has each of the QPs send more than some Polls do, or has their peers ask for it.
func sendMuch(s *side, peers []*raw, qps []*qp, asks bool) {
	const size = 8 << 20
	src := s.reg(size, provider.AccessLocalWrite|provider.AccessRemoteRead)
	wr := src.writeAll(size)
	for i, q := range qps {
		if asks {
			peers[i].ask(src, size, 2)
		} else {
			testkit.Must(q.PostSend([]provider.SendWR{wr, wr}))(s.t)
		}
	}
}

// pollMoved polls the CQ of s, and returns how much each of the QPs has sent meanwhile.
func (s *side) pollMoved(peers []*raw, qps []*qp) (moved []int) {
	for _, q := range qps {
		moved = append(moved, -int(q.stream.Load().moved.Load()))
	}
	s.dev.progress(s.cq)
	for i, q := range qps {
		moved[i] += int(q.stream.Load().moved.Load())
		peers[i].drop()
	}
	return moved
}

// otherQP makes a QP with a CQ of its own.
func (s *side) otherQP() {
	cq := testkit.Must(s.dev.CreateCQ(provider.CQInitAttr{CQE: 1}))(s.t)
	s.t.Cleanup(func() { testkit.OK(s.t, cq.Close()) })
	q := testkit.Must(newQP(s.pd, provider.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: s.qp.initAttr().Cap}))(s.t)
	s.t.Cleanup(func() { testkit.OK(s.t, q.Close()) })
}

// TestTurnOfPolledIsThePollers: the long turn of a program that polls for one stream is for the
// Poll that it has made. If the socket has no room then, the stream has a turn as long as all
// others when it has, which may be long after the program has stopped to poll.
func TestTurnOfPolledIsThePollers(t *testing.T) {
	const size, window = 4 << 20, 3 << 20
	net := memnet.Options{Window: window, MSS: 9000}
	byHand(t, net, Options{}, func(s *side, network *memnet.Network) {
		r := s.connected(network, true)
		src := s.reg(size, provider.AccessLocalWrite)
		wr := src.writeAll(size)
		testkit.Must(s.qp.PostSend([]provider.SendWR{wr, wr, wr}))(t)
		for range 20 { // the last of them find a socket that is full
			s.dev.progress(s.cq)
		}
		st := s.qp.stream.Load()
		if !st.blocked.Load() || r.drop() < window {
			t.Fatal("the socket has room, or nothing to send")
		}
		for turn := range 2 {
			before := st.moved.Load()
			s.dev.poller.Poll()
			if moved := int(st.moved.Load() - before); moved == 0 || moved > turns.Long*5/4 {
				t.Errorf("turn %d has sent %d octets, want about %d", turn, moved, turns.Long)
			}
			r.drop()
		}
	})
}

// connected connects the QP of s to a peer.
func (s *side) connected(network *memnet.Network, crc bool) *raw {
	mine, theirs := connectTransport(s.t, network, memAddr)
	s.t.Cleanup(func() { theirs.Close() })
	s.start(mine, params(crc), nil)
	framer, d := newFraming(crc)
	return &raw{t: s.t, c: theirs, framer: framer, d: d, sendMSN: 1, readMSN: 1}
}

// writeAll is a Write of the first n octets of r to nowhere.
func (r *region) writeAll(n int) provider.SendWR {
	return provider.SendWR{Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{r.sge(0, n)}}
}

// TestLooksOnceWhileSending: a goroutine that polls looks eight times for arrivals on a stream, but
// once while that has something to send.
func TestLooksOnceWhileSending(t *testing.T) {
	byHand(t, memnet.Options{}, Options{}, func(s *side, network *memnet.Network) {
		s.connected(network, true)
		st := s.qp.stream.Load()
		var looks countedLooks
		st.looker, st.rx.looks = &looks, muteAfter
		st.receive()
		st.blocked.Store(true)
		st.receive()
		st.blocked.Store(false)
		if len(looks) != 2 || looks[0] != looksPerPoll || looks[1] != 1 {
			s.t.Errorf("looks %v, want %d, and 1 while there is something to send",
				looks, looksPerPoll)
		}
	})
}

// countedLooks is a Looker on which nothing arrives.
type countedLooks []int

func (c *countedLooks) ReadLooks(_ [][]byte, looks int) (int, error) {
	*c = append(*c, looks)
	return 0, transport.ErrWouldBlock
}

// TestCopiesShortenBatches: a batch in which payload is copied before it is sent is no longer
// than what a cache keeps, whatever it was permitted.
func TestCopiesShortenBatches(t *testing.T) {
	for _, limit := range []uint64{batchLong, batchSlow} {
		b := &txBatch{pool: &bufPool{octets: chunkOctets}, limit: limit}
		b.addCopy(make([]byte, 2*copyOctets), &txState{crc: true})
		if want := min(limit, batchOctets); b.limit != want {
			t.Errorf("a batch of at most %d octets may have %d after a copy, want %d",
				limit, b.limit, want)
		}
	}
}
