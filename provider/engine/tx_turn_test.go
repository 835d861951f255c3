package engine

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// byHand plays a script with a device that makes progress only when the script calls its
// poller, so that turns can be counted. One goroutine does all.
func byHand(t *testing.T, net memnet.Options, opts Options, script func(s *side, network *memnet.Network)) {
	t.Helper()
	if testkit.Race {
		t.Skip("one goroutine does all; ci/test runs this without the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(&net)
		opts.Network = network
		s := newSide(t, opts, sideOptions{cqe: 1 << 14})
		s.dev.prog.cancel()
		<-s.dev.prog.ended
		script(s, network)
	})
}

// drop makes a peer read all that has arrived, and returns how much that was.
func (r *raw) drop() int {
	buf := r.buffer()
	for n := 0; ; {
		k, err := r.c.Readv([][]byte{buf})
		if n += k; err != nil {
			if !errors.Is(err, transport.ErrWouldBlock) {
				r.t.Fatalf("the peer's read: %v", err)
			}
			return n
		}
	}
}

// ask makes a peer read n bytes of m, count times.
func (r *raw) ask(m *region, n, count int) {
	for range count {
		r.readReq(rdmap.ReadRequest{SourceSTag: m.m.STag(), SourceTO: m.to(0), Size: uint32(n)})
	}
}

// TestTurnOfTransmitting: whatever a stream sends, and however fast its peer takes it, one call
// sends no more than a post may (BudgetMost), and less if FPDUs are short. The poller sends the
// rest without another post, and nothing is watched in the end.
func TestTurnOfTransmitting(t *testing.T) {
	const reads, size = 4, 4 << 20
	for _, mss := range []int{88, 1448, 65_000} {
		for _, what := range []string{"Reads of the peer", "Writes of ours"} {
			t.Run(fmt.Sprintf("%s, MSS %d", what, mss), func(t *testing.T) {
				byHand(t, memnet.Options{Window: 1 << 30, MSS: mss}, Options{}, func(s *side, network *memnet.Network) {
					q, r := s.besides(network)
					st := q.stream.Load()
					src := s.reg(size, provider.AccessLocalWrite|provider.AccessRemoteRead)
					pattern(src.b, 1)
					if what == "Reads of the peer" {
						r.ask(src, size, reads)
						s.dev.poller.Poll()
					} else {
						wrs := make([]provider.SendWR, reads)
						for i := range wrs {
							wrs[i] = provider.SendWR{
								Opcode: provider.WRRDMAWrite, Flags: signaled,
								SGList: []provider.SGE{src.sge(0, size)},
							}
						}
						testkit.Must(q.PostSend(wrs))(t)
					}
					mulpdu := mpa.MULPDU(mss, false)
					each := uint64(policy.FPDUCost)
					if mpa.PadLen(mulpdu) > 0 { // then each FPDU is a record of its own
						each += policy.RecordCost
					}
					total, most := uint64(0), uint64(0)
					for moved := st.sent(); moved > 0; moved = st.sent() - total {
						total += moved
						most = max(most, moved+moved/uint64(mpa.FPDULen(mulpdu))*each)
						r.drop()
						s.dev.poller.Poll()
					}
					if total < uint64(size)*reads {
						t.Fatalf("a turn moves nothing after %d bytes; there are %d and headers",
							total, size*reads)
					}
					if limit := uint64(policy.BudgetMost + policy.BudgetMost/4); most > limit {
						t.Errorf("one turn has moved what counts as %d bytes, want at most %d",
							most, limit)
					}
					ready, lent := s.dev.poller.Poll(), s.dev.prog.batches.Lent()
					if ready != 0 || st.full() || lent != 0 {
						t.Errorf("everything is sent, but %d streams are ready, blocked %v, %d "+
							"batches are lent",
							ready, st.full(), lent)
					}
				})
			})
		}
	}
}

// TestTurnOfReceiving: one Poll takes no more than BudgetMost, and less if FPDUs are short. The
// rest stays in the socket.
//
//rfc:5042 SEC-6.4.4-01 Non-optimal paths (errors, OOO, tiny frames) bounded in cost
func TestTurnOfReceiving(t *testing.T) {
	for _, n := range []int{0, 60, 1000, 60_000} {
		t.Run(fmt.Sprintf("%d bytes", n), func(t *testing.T) {
			byHand(t, memnet.Options{Window: 1 << 30, MSS: 1 << 20}, Options{}, func(s *side, network *memnet.Network) {
				q, r := s.besides(network)
				st := q.stream.Load()
				dst := s.reg(1<<16, provider.AccessLocalWrite|provider.AccessRemoteWrite)
				fpdu := r.fpdu(rdmap.WriteHeader(dst.m.STag(), dst.to(0), true), make([]byte, n))
				count := (8 << 20) / len(fpdu)
				r.write(bytes.Repeat(fpdu, count))
				before, most, idle := 0, 0, 0
				for turn := 0; before < count; turn++ {
					s.dev.poller.Poll()
					taken := st.receivedFPDUs() - before
					if idle++; taken > 0 {
						idle = 0
					}
					if before += taken; idle > 1 { // one may end within a long FPDU
						t.Fatalf("turn %d takes nothing, after %d FPDUs of %d", turn, before, count)
					}
					most = max(most, taken*(len(fpdu)+policy.FPDUCost))
				}
				// The first read can't know how long FPDUs will be.
				if limit := policy.BudgetMost + policy.ReadMost/len(fpdu)*policy.FPDUCost; most > limit+policy.ReadMost {
					t.Errorf("one turn has taken what counts as %d bytes, want at most %d", most,
						limit+policy.ReadMost)
				}
			})
		})
	}
}

// TestTurnsOfMany: a stream to which a message comes has its turn in one of the next
// Polls. Before that, 64 others together don't move much more than one alone would, in
// whichever direction.
func TestTurnsOfMany(t *testing.T) {
	const peers, size = 64, 1 << 20
	for _, what := range []string{"fast readers", "long Writes", "short FPDUs", "both"} {
		t.Run(what, func(t *testing.T) {
			byHand(t, memnet.Options{Window: 1 << 30, MSS: 9000}, Options{}, func(s *side, network *memnet.Network) {
				mem := s.reg(size, everything)
				var others []*stream
				var raws []*raw
				for range peers {
					q, r := s.besides(network)
					others, raws = append(others, q.stream.Load()), append(raws, r)
				}
				q, victim := s.besides(network)
				testkit.Must(q.PostRecv(make([]provider.RecvWR, 64)))(t)
				s.dev.poller.Poll()
				s.dev.poller.Poll()
				for _, r := range raws {
					if what == "fast readers" || what == "both" {
						r.ask(mem, size, 4)
					}
					if what == "long Writes" || what == "both" {
						fpdu := r.fpdu(rdmap.WriteHeader(mem.m.STag(), mem.to(0), true),
							make([]byte, 8900))
						r.write(bytes.Repeat(fpdu, 200))
					}
					if what == "short FPDUs" {
						r.write(bytes.Repeat(r.fpdu(rdmap.WriteHeader(0xdead, 0, true), nil), 40_000))
					}
				}
				cost := func() (tx, rx int) {
					for _, st := range others {
						tx += int(st.sent())
						rx += st.receivedFPDUs() * policy.FPDUCost
						rx += int(st.receivedBytes())
					}
					return tx, rx
				}
				for round := range 10 {
					tx0, rx0 := cost()
					taken := q.stream.Load().receivedFPDUs()
					victim.sendMsg(nil)
					polls := 0
					for ; q.stream.Load().receivedFPDUs() == taken; polls++ {
						if polls == 8 {
							t.Fatalf("round %d: the victim has had no turn in %d Polls", round, polls)
						}
						s.dev.poller.Poll()
					}
					tx, rx := cost()
					if moved := max(tx-tx0, rx-rx0); moved > 4*policy.BudgetAllShort+2*policy.BudgetLong {
						t.Errorf("round %d: before the victim had its turn, others have sent what "+
							"counts as %d KiB and received %d KiB",
							round, (tx-tx0)>>10, (rx-rx0)>>10)
					}
					for _, r := range raws {
						r.drop()
					}
				}
			})
		})
	}
}

// TestUndo: FPDUs that are built again after the socket was full are the same as before, and
// until the end of a message is built, only the rest of one FPDU is kept.
func TestUndo(t *testing.T) {
	for _, crc := range []bool{true, false} {
		for _, what := range []string{"Read", "Write", "Send"} {
			t.Run(fmt.Sprintf("%s, CRC %v", what, crc), func(t *testing.T) {
				for seed := range uint64(4) {
					size := 1 << 20
					if seed > 0 {
						size = 1 << 18 // in short pieces the socket is full as often
					}
					net := memnet.Options{Seed: seed, Window: 10_000 + 7919*int(seed), MSS: 1448,
						Cut: seed > 0}
					storyOn(t, net, Options{}, params(crc), sideOptions{}, func(s *side, r *raw) {
						src := s.reg(size, provider.AccessLocalWrite|provider.AccessRemoteRead)
						pattern(src.b, int(seed))
						wr := provider.SendWR{Flags: provider.SendSignaled, SGList: []provider.SGE{src.sge(0, size)}}
						switch what {
						case "Read":
							r.ask(src, size, 1)
						case "Write":
							wr.Opcode = provider.WRRDMAWrite
							s.send(wr)
						case "Send":
							wr.Opcode = provider.WRSend
							s.send(wr)
						}
						st := s.qp.stream.Load()
						for got := 0; got < size; {
							_, p := r.next("a segment")
							if !bytes.Equal(p, src.b[got:got+len(p)]) {
								t.Fatalf("bytes at %d differ", got)
							}
							got += len(p)
							if got%7 != 0 {
								continue
							}
							st.tx.mu.Lock()
							if b := st.tx.b; b != nil && st.tx.task != taskNone && b.Left() > 1448 {
								t.Errorf("%d bytes are kept for a socket that is full", b.Left())
							}
							st.tx.mu.Unlock()
						}
						if what != "Read" {
							s.poll()
						}
					})
				}
			})
		}
	}
}

// allocated returns how much memory f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestDribble: one byte more of an FPDU of which half has come allocates next to nothing, even if
// so many peers have sent half an FPDU that this one keeps no context.
func TestDribble(t *testing.T) {
	byHand(t, memnet.Options{}, Options{}, func(s *side, network *memnet.Network) {
		var fpdu []byte
		var q *qp
		var r *raw
		for range policy.ContextsKept + 1 {
			q, r = s.besides(network)
			fpdu = r.fpdu(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true), make([]byte, 51<<10))
			r.write(fpdu[:20<<10])
			for s.dev.poller.Poll() > 0 {
			}
		}
		st := q.stream.Load()
		if k := st.keeps(); k.part == 0 || k.context {
			t.Fatal("the stream keeps a context; the test is about streams that don't")
		}
		const octets = 2000
		got := allocated(func() {
			for i := range octets {
				r.write(fpdu[20<<10+i:][:1])
				s.dev.poller.Poll()
			}
		})
		testkit.Within(t, "bytes that are allocated for each that comes", got/octets, 0, 1024)
		testkit.Within(t, "bytes that are kept for an FPDU", st.keeps().part, 0, len(fpdu))
		testkit.Must(q.PostRecv([]provider.RecvWR{{WRID: 1}}))(t)
		r.write(fpdu[20<<10+octets:])
		for s.dev.poller.Poll() > 0 {
		}
		testkit.Equal(t, "the part that is kept when the whole FPDU has come", st.keeps().part, 0)
	})
}

// TestUsed: what ReadyTurn says that it has used is what was moved, which is not much more
// than the turn. If both directions are ready each has half of it, and a stream has more to
// do until it has done all.
func TestUsed(t *testing.T) {
	const budget, size = policy.BudgetLong, 4 << 20
	const most = 8 << 20 // in memory a read ends with a segment
	for _, tc := range []struct {
		what            string
		mss             int
		sends, receives bool
	}{
		{"sends", 600, true, false}, {"sends", 1448, true, false}, {"sends", 8199, true, false},
		{"sends", most, true, false}, {"receives", most, false, true}, {"both", most, true, true},
	} {
		t.Run(fmt.Sprintf("%s, MSS %d", tc.what, tc.mss), func(t *testing.T) {
			net := memnet.Options{Window: 1 << 30, MSS: tc.mss}
			byHand(t, net, Options{}, func(s *side, network *memnet.Network) {
				mulpdu := mpa.MULPDU(tc.mss, false)
				each := policy.FPDUCost
				if mpa.FPDULen(mulpdu) != tc.mss { // then each FPDU is a record of its own
					each += policy.RecordCost
				}
				q, r := s.besides(network)
				st := q.stream.Load()
				mem := s.reg(size, everything)
				all := uint64(0)
				if tc.sends {
					r.ask(mem, size, 1)
					st.ReadyTurn(true, false, budget) // takes the request, and begins
					all = st.receivedBytes()
				}
				if tc.receives {
					fpdu := r.fpdu(rdmap.WriteHeader(mem.m.STag(), mem.to(0), true), make([]byte, 8900))
					r.write(bytes.Repeat(fpdu, size/len(fpdu)))
					all += uint64(size / len(fpdu) * len(fpdu))
				}
				for more, n := true, 0; more && !t.Failed(); n++ {
					if n == 200 {
						t.Error("there is always more to do")
					}
					sent0, taken0, got0 := st.sent(), st.receivedFPDUs(), st.receivedBytes()
					var used int
					used, more = st.ReadyTurn(tc.receives, tc.sends, budget)
					sent, taken := int(st.sent()-sent0), st.receivedFPDUs()-taken0
					got := int(st.receivedBytes() - got0)
					cost := sent + sent/mpa.FPDULen(mulpdu)*each + got + taken*policy.FPDUCost
					if d := used - cost; d < -32<<10 || d > 32<<10 {
						t.Errorf("turn %d: used %d, want about %d", n, used, cost)
					}
					if limit := budget + min(mpa.FPDULen(mulpdu), 64<<10) + each + 16<<10; used > limit {
						t.Errorf("turn %d: used %d, want at most %d", n, used, limit)
					}
					if left := st.tx.unbuilt() || st.receivedBytes() < all; left && !more {
						t.Errorf("turn %d: there is more to do, and it says that there is not", n)
					}
					if half := budget / 2; tc.what == "both" && n == 0 &&
						(sent < half/2 || sent > half*5/4 || got < half/2 || got > half*5/4) {
						t.Errorf("sent %d and received %d in one turn of %d", sent, got, budget)
					}
					r.drop()
				}
				if ready, used := s.dev.poller.Poll(), st.full(); ready != 0 || used {
					t.Errorf("everything is done, but %d streams are ready, blocked %v", ready, used)
				}
				r.write(make([]byte, 64)) // no FPDU
				if used, _ := st.ReadyTurn(true, false, budget); used < policy.EndCost {
					t.Errorf("the end of a stream counts as %d, want at least %d", used, policy.EndCost)
				}
			})
		})
	}
}

// TestSendingHasWhatReceivingLeaves: a stream that can be read and written, and has nothing to
// receive, sends for all of its turn.
func TestSendingHasWhatReceivingLeaves(t *testing.T) {
	const budget, size = policy.BudgetLong, 4 << 20
	byHand(t, memnet.Options{Window: 1 << 30, MSS: 1 << 20}, Options{}, func(s *side, network *memnet.Network) {
		q, r := s.besides(network)
		st := q.stream.Load()
		r.ask(s.reg(size, everything), size, 1)
		st.ReadyTurn(true, false, budget) // takes the request, and begins
		before := st.sent()
		st.ReadyTurn(true, true, budget)
		if sent := st.sent() - before; sent < budget*3/4 {
			t.Errorf("sent %d bytes in a turn of %d", sent, budget)
		}
	})
}

// TestUsedByAnswers: what a stream answers in the turn in which it was asked counts, and is sent in
// the rest of that turn. A stream whose socket is full has no more to do.
func TestUsedByAnswers(t *testing.T) {
	const budget, size = policy.BudgetLong, 4 << 20
	for _, window := range []int{1 << 30, 20_000} {
		byHand(t, memnet.Options{Window: window, MSS: 8 << 20}, Options{}, func(s *side, network *memnet.Network) {
			q, r := s.besides(network)
			st := q.stream.Load()
			mem := s.reg(size, everything)
			h := rdmap.WriteHeader(mem.m.STag(), mem.to(0), true)
			full := window < budget
			octets := r.fpdu(h, make([]byte, 60_000))
			if !full {
				octets = bytes.Repeat(octets, 3)
			} else {
				octets = nil
			}
			read := rdmap.ReadRequest{SourceSTag: mem.m.STag(), SourceTO: mem.to(0), Size: size}
			request := rdmap.ReadRequestHeader(r.readMSN)
			r.write(append(octets, r.fpdu(request, read.AppendTo(nil))...))
			used, more := st.ReadyTurn(true, false, budget)
			sent := int(st.sent())
			if least, most := len(octets)+sent, budget+90<<10; sent == 0 || used < least || used > most {
				t.Errorf("window %d: sent %d, used %d, want from %d to %d", window, sent, used, least, most)
			}
			if full { // what it is likely to take is known from now on
				r.drop()
				used, more = st.ReadyTurn(false, true, budget)
			}
			if more == full || full && used > budget/2 {
				t.Errorf("window %d: used %d, and there is more to do: %v", window, used, more)
			}
		})
	}
}

// TestTurnOfDropping: bytes dropped from a peer that sends single bytes after the end count as the
// reads that they take.
func TestTurnOfDropping(t *testing.T) {
	byHand(t, memnet.Options{}, Options{}, func(s *side, network *memnet.Network) {
		const octets = 3000
		t := s.t // of the bubble
		q, r := s.besides(network)
		st := q.stream.Load()
		st.fail(&ending{cause: errors.New("the test ends it")})
		st.settle()
		mine, theirs := connectTransport(t, network, memAddr)
		s.dev.closeAfter(mine, []byte("the end"))
		for range octets {
			r.write([]byte{0})
			testkit.Must(theirs.Writev([][]byte{{0}}))(t)
		}
		polls := 0
		for s.dev.poller.Poll() > 0 {
			polls++
		}
		if least := 2 * octets * policy.ReadLeast / (policy.BudgetAllShort + policy.BudgetLong); polls < least {
			t.Errorf("%d bytes, of a read each, are dropped in %d Polls, want at least %d", 2*octets, polls, least)
		}
		testkit.OK(t, theirs.Close())
	})
}

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
					testkit.Within(s.t, fmt.Sprint("sent by turn ", turn), moved, tc.most*3/4, tc.most*5/4)
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
			testkit.Within(t, fmt.Sprint("sent by turn ", turn), int(st.sent()-before), 1, policy.BudgetLong*5/4)
			r.drop()
		}
	})
}

// writeAll is a Write of the first n bytes of r to nowhere.
func (r *region) writeAll(n int) provider.SendWR {
	return provider.SendWR{Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{r.sge(0, n)}}
}
