package engine

import (
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/frames"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestSendTimeoutAtLeastRate: a peer that takes a little more than it has to, all the time, is not
// cut, whether our socket reports early or late that it has room.
func TestSendTimeoutAtLeastRate(t *testing.T) {
	const limit, size, window, steps = 10 * time.Second, 8 << 20, 1 << 20, 40
	for _, room := range []int{0, window / 3} {
		net, opts := memnet.Options{Window: window, WriteRoom: room}, Options{SendTimeout: limit}
		storyOn(t, net, opts, params(true), sideOptions{}, func(s *side, r *raw) {
			src := s.reg(size, everything)
			r.ask(src, size, 1)
			for range 10 * steps {
				time.Sleep(limit / steps)
				r.take(policy.Chunk * 105 / 100 / steps)
				s.wantGoesOn("a peer that takes a little more than it has to")
			}
		})
	}
}

// TestSendTimeoutBetweenTurns: SendTimeout also runs for a socket that has room, but too little
// for the poller to begin the next turn.
func TestSendTimeoutBetweenTurns(t *testing.T) {
	const limit, window = 10 * time.Second, policy.BudgetMost + 4096
	for _, what := range []string{"in a message", "between two"} {
		so := sideOptions{cap: provider.QPCap{MaxSendWR: 2048, MaxSendSGE: 1}}
		net := memnet.Options{Window: window, WriteRoom: window / 2}
		opts := Options{SendTimeout: limit}
		storyOn(t, net, opts, params(true), so, func(s *side, r *raw) {
			src := s.reg(8<<20, everything)
			began := time.Now()
			if what == "in a message" {
				r.ask(src, 8<<20, 1)
			} else {
				wrs := make([]provider.SendWR, 2048)
				for i := range wrs {
					wrs[i] = provider.SendWR{Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{src.sge(0, 1000)}}
				}
				testkit.Must(s.qp.PostSend(wrs))(t)
			}
			synctest.Wait()
			st := s.qp.stream.Load()
			st.tx.mu.Lock()
			put := st.full() && st.tx.b == nil && (st.tx.task == taskNone) == (what == "between two")
			st.tx.mu.Unlock()
			if !put {
				t.Fatalf("%s: the turn has not ended with room left, which is what the test is "+
					"about", what)
			}
			s.wantTimeout(what, began, limit)
		})
	}
}

// TestPartsBehindObjects: parts of FPDUs that wait for objects of ours do not count against
// policy.PartsMost, so that no other peer, which has stopped in an FPDU, loses its connection
// because of them.
func TestPartsBehindObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, peers, behind = 1 << 20, 60, 100 << 10
		network := memnet.New(&memnet.Options{MSS: 1 << 17})
		s := newSide(t, Options{Network: network}, sideOptions{})
		q, good := s.besides(network)
		defer s.crowd(most)()
		o := &sleeper{store: store{b: make([]byte, 100)}, takes: time.Minute}
		m := s.object(o, 100, writable)
		mem := s.reg(60_000, everything)
		for range peers {
			_, r := s.besides(network)
			own := s.reg(1300, everything)
			b := r.fpdu(rdmap.WriteHeader(m.STag(), m.Addr(), true), make([]byte, 100))
			for len(b) < behind {
				b = append(b, r.fpdu(rdmap.WriteHeader(own.m.STag(), own.to(0), true), make([]byte, 1300))...)
			}
			r.write(b)
		}
		fpdu := good.fpdu(rdmap.WriteHeader(mem.m.STag(), mem.to(0), true), make([]byte, 60_000))
		good.write(fpdu[:40_000])
		time.Sleep(4 * policy.StallPeriod)
		if err := q.Cause(); err != nil {
			t.Errorf("a peer that has stopped for four seconds, beside others that wait for an "+
				"object, is cut: %v", err)
		} else {
			good.write(fpdu[40_000:])
		}
		time.Sleep(2 * time.Minute)
		testkit.Equal(t, "bytes that are counted, when there are no parts",
			s.dev.prog.partOctets.Load(), 0)
	})
}

// TestFirstTimeASocketIsFull: a stream whose socket is full for the first time has a batch and
// what was copied for it, for two checks at most; then the rest of one FPDU.
func TestFirstTimeASocketIsFull(t *testing.T) {
	const batch = 96 << 10 // itself
	testkit.Within(t, "the bytes of a batch", unsafe.Sizeof(frames.Batch{}), 0, batch)
	for _, mss := range []int{1448, 9000, 1 << 17} {
		storyOn(t, memnet.Options{Window: 2000, MSS: mss}, Options{}, params(true), sideOptions{},
			func(s *side, r *raw) {
				src := s.reg(1<<20, everything)
				r.ask(src, 1<<20, 1)
				synctest.Wait()
				st := s.qp.stream.Load()
				if batches, octets := st.pins(); batches != 1 || octets == 0 ||
					octets > policy.BatchOctets+policy.Chunk {
					t.Errorf("MSS %d: %d batches and %d bytes are pinned at first, "+
						"want one and %d", mss, batches, octets, policy.BatchOctets+policy.Chunk)
				}
				time.Sleep(2*policy.StallPeriod + time.Millisecond)
				if batches, octets := st.pins(); batches != 0 || octets > min(mss, policy.Chunk) {
					t.Errorf("MSS %d: %d batches and %d bytes are pinned after two checks", mss,
						batches, octets)
				}
			})
	}
}

// TestChunksOfABatch: of FPDUs that leave half of a chunk empty, a full socket leaves no more
// chunks than of others.
func TestChunksOfABatch(t *testing.T) {
	const size, most = policy.Chunk/2 + 1, policy.BatchOctets + policy.Chunk
	const count = most/size + 1
	so := sideOptions{cap: provider.QPCap{MaxSendWR: count, MaxSendSGE: 1}}
	net := memnet.Options{Window: 2000, MSS: 1 << 17}
	storyOn(t, net, Options{}, params(true), so, func(s *side, _ *raw) {
		src := s.reg(size, 0)
		var wrs []provider.SendWR
		for range count {
			wrs = append(wrs, src.writeAll(size))
		}
		testkit.Must(s.qp.PostSend(wrs))(t)
		synctest.Wait()
		_, octets := s.qp.stream.Load().pins()
		testkit.Within(t, "bytes that are pinned", octets, 1, most)
	})
}

// TestEndOfMessageNobodyTakes: if a peer has taken everything for a while and then stops, the rest
// of at most one batch is kept: 1 MiB, and 256 KiB with CRC.
func TestEndOfMessageNobodyTakes(t *testing.T) {
	const window, fpdu = 100_000, 65_000
	for _, crc := range []bool{false, true} {
		most := 1 << 20
		if crc {
			most = 256 << 10
		}
		for _, size := range []int{most, policy.BudgetMost - 80<<10} { // one batch, and nearly a turn
			for _, asks := range []bool{false, true} {
				net := memnet.Options{Window: window, MSS: fpdu}
				storyOn(t, net, Options{}, params(crc), sideOptions{},
					func(s *side, r *raw) {
						src := s.reg(size, everything)
						for range policy.WholeBatches {
							r.ask(src, 100, 1)
							r.next("a short Read")
						}
						if asks {
							r.ask(src, size, 1)
						} else {
							own := s.reg(size, provider.AccessLocalWrite)
							s.send(provider.SendWR{Opcode: provider.WRRDMAWrite,
								SGList: []provider.SGE{own.sge(0, size)}})
						}
						synctest.Wait()
						st := s.qp.stream.Load()
						_, first := st.pins()
						time.Sleep(3 * policy.StallPeriod)
						batches, octets := st.pins()
						if !asks && size == most && octets < most/2 {
							t.Errorf("CRC %v: %d bytes are pinned, want the rest of %d",
								crc, octets, most)
						}
						if first > most+2*policy.Chunk || batches != 0 || octets > most+fpdu {
							t.Errorf("%d bytes, CRC %v, Read by the peer %v: %d bytes are "+
								"pinned at first, then %d and %d batches; want %d or so and none",
								size, crc, asks, first, octets, batches, most)
						}
					})
			}
		}
	}
}

// TestHeldBehindAnObject: what waits for an object of ours is a payload in a chunk, and what one
// read took after it. The rest stays in the socket.
func TestHeldBehindAnObject(t *testing.T) {
	for _, others := range []int64{0, policy.ContextsKept} { // that keep a context
		heldBehindAnObject(t, others)
	}
}

func heldBehindAnObject(t *testing.T, others int64) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(&memnet.Options{MSS: 1 << 17, Window: 4 << 20})
		s := newSide(t, Options{Network: network}, sideOptions{})
		q, r := s.besides(network)
		s.dev.prog.kept.Add(others)
		defer s.dev.prog.kept.Add(-others)
		o := &sleeper{store: store{b: make([]byte, 60_000)}, takes: time.Minute}
		m := s.object(o, 60_000, writable)
		mem := s.reg(1300, everything)
		b := r.fpdu(rdmap.WriteHeader(m.STag(), m.Addr(), true), make([]byte, 60_000))
		for len(b) < 2<<20 {
			b = append(b, r.fpdu(rdmap.WriteHeader(mem.m.STag(), mem.to(0), true),
				make([]byte, 1300))...)
		}
		r.write(b)
		time.Sleep(3 * policy.StallPeriod)
		st := q.stream.Load()
		k := st.keeps()
		chunks := s.dev.chunks.Lent()
		if !k.storing || k.context != (others == 0) || k.context == (k.part > 0) ||
			k.part > contextOctets || chunks != 1 {
			t.Errorf("beside %d that keep contexts: storing %v, keeps a context %v, %d bytes in "+
				"a part, %d chunks; want one of both with at most %d bytes, and one chunk",
				others, k.storing, k.context, k.part, chunks, contextOctets)
		}
		time.Sleep(2 * time.Minute)
		testkit.OK(t, q.Cause())
	})
}

// TestCheckLeavesBusyStreams: a check of a stream that has been put off, and that moves from one
// check to the next, sends nothing for it: what many such streams have to send would be far more
// than a turn. Once it has not moved, the check fills its socket.
func TestCheckLeavesBusyStreams(t *testing.T) {
	net := memnet.Options{Window: 1 << 30, MSS: 9000}
	byHand(t, net, Options{}, func(s *side, network *memnet.Network) {
		q, r := s.besides(network)
		src := s.reg(16<<20, 0)
		testkit.Must(q.PostSend([]provider.SendWR{src.writeAll(16 << 20)}))(s.t)
		st := q.stream.Load()
		watched := stall{s: st}
		sent := func(do func()) uint64 {
			before := st.sent()
			do()
			r.drop()
			return st.sent() - before
		}
		for range 3 {
			testkit.Equal(s.t, "what a check has sent of a stream that moves",
				sent(func() { watched.check(time.Now()) }), 0)
			if n := sent(func() { s.dev.poller.Poll() }); n == 0 {
				s.t.Fatal("the poller has sent nothing; the stream is not put off")
			}
		}
		watched.check(time.Now())
		if n := sent(func() { watched.check(time.Now()) }); n == 0 {
			s.t.Error("a check has sent nothing of a stream that has not moved, and has room")
		}
	})
}

// TestHeldBatchIsNotUndone: a full socket has left over short answers before a long one, and the
// peer has stopped for so long that they are held without the batch. When it goes on slowly, all of
// them come, although another stream has used the batch since.
func TestHeldBatchIsNotUndone(t *testing.T) {
	const short, count, long = 900, 3, 1 << 20
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(&memnet.Options{Window: 500, MSS: 1448})
		s := newSide(t, Options{Network: network}, sideOptions{})
		src := s.reg(long, everything)
		pattern(src.b, 5)
		q, r := s.besides(network)
		var requests []byte
		for _, size := range []uint32{short, short, short, long} {
			request := rdmap.ReadRequest{SourceSTag: src.m.STag(), SourceTO: src.to(0), Size: size}
			requests = append(requests, r.fpdu(rdmap.ReadRequestHeader(r.readMSN), request.AppendTo(nil))...)
			r.readMSN++
		}
		r.write(requests)
		time.Sleep(3 * policy.StallPeriod)
		st := q.stream.Load()
		st.tx.mu.Lock()
		held := st.tx.held != nil
		st.tx.mu.Unlock()
		if !held {
			t.Fatal("no batch is held, which is what the test is about")
		}
		_, other := s.besides(network)
		other.ask(src, long, 1)
		other.wantMessage("the answer to another peer", src.b)
		for range count {
			r.wantMessage("a short answer", src.b[:short])
		}
		r.wantMessage("the long answer", src.b)
	})
}

// TestBuiltForWhatIsTaken: if a socket is full again and again, little more of a long message
// is built each time than the socket takes. Otherwise a peer that takes little at a time would
// cause much work for nothing.
func TestBuiltForWhatIsTaken(t *testing.T) {
	const size, window, each = 8 << 20, 64 << 10, 16 << 10
	byHand(t, memnet.Options{Window: window, MSS: 1448}, Options{}, func(s *side, network *memnet.Network) {
		src := s.reg(size, everything)
		q, r := s.besides(network)
		r.ask(src, size, 1)
		s.dev.poller.Poll()
		st := q.stream.Load()
		buf := make([]byte, each)
		most := 0
		for i := range 100 {
			for left := each; left > 0; {
				n := testkit.Must(r.c.Readv([][]byte{buf[:left]}))(t)
				left -= n
			}
			s.dev.poller.Poll()
			if b := st.tx.b; b != nil && i > 0 {
				_, copied := b.Copied()
				most = max(most, copied)
			}
		}
		if most == 0 {
			t.Error("no FPDU was left over; the test is about those that are")
		}
		if most > 3*each {
			t.Errorf("%d bytes are built for each %d that the peer takes", most, each)
		}
	})
}
