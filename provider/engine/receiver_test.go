package engine

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestReadLimit: a read takes what is left of the budget, with the rest of an FPDU that has come in
// part before the others; a budget that is nearly used up ends with that FPDU.
func TestReadLimit(t *testing.T) {
	const have = 1000
	for _, tc := range []struct {
		name         string
		need, budget int
		costShift    policy.CostShift
		want         int
	}{
		{"nothing is known to come", 0, policy.BudgetSole, 0, policy.ReadMost},
		{"the rest of a long FPDU, and more", have + 30000, policy.BudgetSole, 0, 30000 + policy.ReadMost},
		{"an eighth, as FPDUs are short", have + 1000, policy.BudgetLeast, 3, 1000 + policy.BudgetLeast/8},
		{"as much as a read takes", have + 10000, 400000, 0, 10000 + policy.ReadMost},
		{"three quarters of the budget", have + 30000, 200000, 0, 150000},
		{"a quarter, as FPDUs are short", have + 30000, 200000, 2, 80000},
		{"hardly more is left than the FPDU", have + 30000, 30100, 0, 30000 + policy.ReadAhead},
		{"the budget is used up, within an FPDU", have + 30000, -5000, 0, 30000 + policy.ReadAhead},
		{"the budget is used up", 0, 0, 0, policy.ReadLeast},
		{"very short FPDUs", 0, policy.BudgetLeast, 7, policy.ReadLeast},
	} {
		r := receiver{need: uint32(tc.need), r: 10, w: 10 + have, costShift: tc.costShift}
		testkit.Equal(t, tc.name, r.readLimit(tc.budget), tc.want)
	}
}

// sizedReads is a nowhere that keeps how many reads there are, and how long the longest is.
type sizedReads struct {
	*nowhere
	reads, most int
}

func (c *sizedReads) Readv(bufs [][]byte) (int, error) {
	n := 0
	for _, b := range bufs {
		n += len(b)
	}
	c.reads++
	c.most = max(c.most, n)
	return c.nowhere.Readv(bufs)
}

// newSizedReads returns a side whose stream reads from the second result, and a function that makes
// Writes to it of n bytes each, so many bytes in all.
func newSizedReads(t *testing.T, crc bool) (*side, *sizedReads, func(octets, n int) []byte) {
	_, y := tcpPair(t, Options{}, crc, sideOptions{})
	in := &sizedReads{nowhere: y.replaceConn()}
	dst := y.reg(60000, provider.AccessLocalWrite|provider.AccessRemoteWrite)
	framer := mpa.NewFramer(false, crc)
	s := y.qp.stream.Load()
	set := func(c transport.Conn) {
		s.rx.mu.Lock()
		defer s.rx.mu.Unlock()
		s.conn = c
	}
	set(in)
	t.Cleanup(func() { set(in.nowhere) })
	return y, in, func(octets, n int) (b []byte) {
		h := rdmap.WriteHeader(dst.m.STag(), dst.to(0), true)
		for len(b) < octets {
			b = testkit.Must(framer.AppendFPDU(b, h.AppendTo(nil), dst.b[:n]))(t)
		}
		return b
	}
}

// TestReadsOfATurn: however long FPDUs are, a turn takes about its budget, with few reads.
func TestReadsOfATurn(t *testing.T) {
	for _, n := range []int{1400, 9000, 32000, 60000} {
		for _, budget := range []int{policy.BudgetLeast, policy.BudgetOne} {
			y, in, writes := newSizedReads(t, true)
			s := y.qp.stream.Load()
			in.in = writes(24*budget, n)
			for range 8 { // until it is known how long FPDUs are
				s.rx.poll(budget)
			}
			before := len(in.in)
			in.reads, in.most = 0, 0
			for range 8 {
				s.rx.poll(budget)
			}
			taken := (before - len(in.in)) / 8
			if taken < budget/2 || taken > budget+max(budget/4, n+100) || in.reads > 8*(4+2*budget/policy.ReadMost) {
				t.Errorf("FPDUs of %d bytes: 8 budgets of %d have taken %d each, with %d reads",
					n, budget, taken, in.reads)
			}
			testkit.Within(t, fmt.Sprint("the longest read, of FPDUs of ", n), in.most, 0, policy.ReadMost+n+100)
			testkit.OK(t, y.qp.Cause())
		}
	}
}

// TestShortAfterLong: where very short FPDUs follow long ones, the first read may be full of them,
// and the next ones are short.
func TestShortAfterLong(t *testing.T) {
	for _, n := range []int{1400, 9000, 32000, 60000} {
		y, in, writes := newSizedReads(t, true)
		s := y.qp.stream.Load()
		for in.in = writes(policy.BudgetSole, n); len(in.in) > 0; {
			s.rx.poll(policy.BudgetSole)
		}
		in.in = writes(policy.BudgetSole/2, 0)
		before := len(in.in)
		s.rx.poll(policy.BudgetSole)
		testkit.Within(t, fmt.Sprint("what a turn takes of empty FPDUs, after some of ", n),
			before-len(in.in), 0, policy.ReadMost+policy.ReadMost/8)
		in.most = 0
		s.rx.poll(policy.BudgetSole)
		testkit.Within(t, "the longest read of the turn after them", in.most, 1, policy.BudgetSole/16)
		testkit.OK(t, y.qp.Cause())
	}
}

// TestCostlyReads: short FPDUs make the next reads shorter. The last short read of a turn, with the
// end of a long FPDU in it, does not.
func TestCostlyReads(t *testing.T) {
	for _, tc := range []struct {
		name      string
		n, fpdus  int
		before    policy.CostShift
		costShift policy.CostShift
	}{
		{"long FPDUs", 96 << 10, 3, 0, 0},
		{"the rest of an FPDU, and a short one", 1656, 2, 0, 0},
		{"the same, when FPDUs were short", 1656, 2, 5, 4},
		{"short ones", 1656, 3, 0, 1},
		{"one that is as short, in a longer read", 4 << 10, 9, 0, 1},
		{"very short ones", 2800, 100, 0, 5},
	} {
		r := receiver{costShift: tc.before}
		testkit.Equal(t, tc.name+": what a read costs", r.costShift.Spent(tc.n, tc.fpdus, true),
			tc.n+tc.fpdus*policy.FPDUCost)
		testkit.Equal(t, tc.name+": costShift", r.costShift, tc.costShift)
	}
}

// TestReadsGrow: reads become as long as the budget permits, however short it is, where all FPDUs
// are as long as an Ethernet permits.
func TestReadsGrow(t *testing.T) {
	y, in, writes := newSizedReads(t, true)
	s := y.qp.stream.Load()
	for _, budget := range []int{policy.BudgetLeast, policy.BudgetLeast / 2} {
		in.in = append(in.in, writes(30*budget, 1420)...)
		for range 10 {
			s.rx.poll(budget)
		}
		in.reads = 0
		for range 10 {
			s.rx.poll(budget)
		}
		if in.reads > 60 || len(in.in) == 0 {
			t.Errorf("%d reads with 10 budgets of %d, want at most 60; costShift is %d", in.reads, budget, s.rx.costShift)
		}
		s.rx.costShift = policy.CostShiftFirst
	}
	testkit.OK(t, y.qp.Cause())
}

// TestSinkThatIsClosed: the sink of a work request is closed while the peer answers it. Nothing is
// placed, and the cause of the end names the work request and the region.
func TestSinkThatIsClosed(t *testing.T) {
	for _, op := range []provider.WROpcode{provider.WRRDMARead, provider.WRAtomicFetchAdd} {
		story(t, extended(Options{}), params(true), func(s *side, r *raw) {
			sink := s.reg(8, provider.AccessLocalWrite)
			s.send(provider.SendWR{WRID: 0x21, Opcode: op, SGList: []provider.SGE{sink.sge(0, 8)}})
			lkey := sink.m.LKey()
			if op == provider.WRRDMARead {
				_, payload := r.next("the request")
				q := testkit.Must(rdmap.ParseReadRequest(payload))(t)
				testkit.OK(t, sink.m.Close())
				r.send(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO, true), make([]byte, 8))
			} else {
				q := r.wantAtomic("the request", 1)
				testkit.OK(t, sink.m.Close())
				r.old(1, rdmap.AtomicResponse{ID: q.ID})
			}
			r.wantTerminate("a local catastrophe", fault{iwarp.LayerDDP, 0, 0}, nil, 0, nil)
			s.wantWC("it has nowhere to go", provider.WC{WRID: 0x21, Status: provider.WCLocProtErr})
			sink.untouched(0, 0)
			want := fmt.Sprintf("work request 0x21 (%s), SGE 0: the region with lkey %#x is closed; ", op, lkey)
			if got := s.qp.Cause(); got == nil || !strings.Contains(got.Error(), want) {
				t.Errorf("cause %v, want %q in it", got, want)
			}
		})
	}
}

// TestTerminateAbout: what a peer's Terminate is about, where its code and headers say so.
func TestTerminateAbout(t *testing.T) {
	tagged := ddp.Header{Tagged: true, STag: 0x101, TO: 0x20}
	for _, c := range []struct {
		layer   iwarp.Layer
		etype   iwarp.EType
		code    iwarp.Code
		haveDDP bool
		h       ddp.Header
		want    string
	}{
		{1, 1, 0, true, tagged, ", about a Write to rkey 0x101, address 0x20; the key is wrong or closed, " +
			"or its region lacks AccessRemoteWrite"},
		{1, 1, 1, true, tagged, ", about a Write to rkey 0x101, address 0x20; stay within the peer's region"},
		{0, 1, 0, true, ddp.Header{QN: rdmap.QNReadRequest},
			", about a Read or an atomic operation; the key is wrong or closed"},
		{0, 1, 2, true, ddp.Header{QN: rdmap.QNReadRequest}, ", about a Read or an atomic operation; its region lacks"},
		{1, 1, 0, true, ddp.Header{Tagged: true}, ", about a Write to rkey 0, which names nothing"},
		{1, 0, 0, true, ddp.Header{}, ", about memory of the peer's own: "},
		{0, 0, 0, false, ddp.Header{}, ", about memory of the peer's own: "},
		{0, 2, 7, true, ddp.Header{QN: rdmap.QNReadRequest}, ", about a Read or an atomic operation"},
		{1, 2, 2, true, ddp.Header{}, ", about a Send for which there was no receive; the peer has to post receives"},
		{1, 2, 2, false, ddp.Header{}, ", about a Send for which there was no receive; the peer has to post receives"},
		{1, 2, 5, true, ddp.Header{}, ", about a Send that is longer than the receive for it; agree with the peer"},
		{2, 0, 0, false, ddp.Header{}, ""},
	} {
		got := terminateAbout(&rdmap.ReceivedTerminate{
			Terminate: rdmap.Terminate{Layer: c.layer, EType: c.etype, Code: c.code, DDP: c.h}, HaveDDP: c.haveDDP,
		})
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%d/%d/%#02x: %q, want %q", c.layer, c.etype, c.code, got, c.want)
		}
	}
}

// TestTerminateAboutAtBothEnds: both ends name what a Terminate is about, in the same words.
func TestTerminateAboutAtBothEnds(t *testing.T) {
	write := rdmap.WriteHeader(0x101, 0x20, true)
	answer := rdmap.ReadResponseHeader(0x102, 0x30, true)
	request := rdmap.ReadRequestHeader(1)
	read := rdmap.ReadRequest{Size: 8, SourceSTag: 0x103, SourceTO: 0x40}
	send := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
	invalidate := rdmap.SendHeader(rdmap.OpSendInvalidate, 0x104, 1, 0, true)
	atomic := rdmap.AtomicRequestHeader(1)
	for _, c := range []struct {
		err  error
		h    ddp.Header
		read *rdmap.ReadRequest
		want string
	}{
		{ddp.ErrSTagNotAssociated, write, nil, ", about a Write to rkey 0x101, address 0x20"},
		{ddp.ErrTaggedAccess, write, nil, ", about a Write to rkey 0x101, address 0x20"},
		{ddp.ErrTOWrap, write, nil, ", about a Write to rkey 0x101, address 0x20"},
		{rdmap.ErrResponseLong, answer, nil, ", about a Read Response to STag 0x102, address 0x30"},
		{rdmap.ErrReadNotAssociated, request, &read, ", about a Read of 8 bytes from rkey 0x103, address 0x40"},
		{ddp.ErrNoBuffer, request, nil, ", about a Read"},
		{ddp.ErrNoBuffer, send, nil, ", about a Send for which there was no receive"},
		{rdmap.ErrCannotInvalidate, invalidate, nil, ", about a Send that invalidates rkey 0x104"},
		{rdmap.ErrMayNotInvalidate, invalidate, nil, ", about a Send that invalidates rkey 0x104"},
		{rdmap.ErrAtomicAccess, atomic, nil, ", about an atomic operation"},
	} {
		e := endTerminate(c.err, &c.h, 40, c.read)
		want := c.want
		if c.err == ddp.ErrNoBuffer && c.h == send {
			want += "; post more receives, or post them earlier"
		}
		if got := e.cause.Error(); !strings.HasSuffix(got, want) {
			t.Errorf("%v, sent: %q does not end with %q", c.err, got, want)
		}
		received := testkit.Must(rdmap.ParseTerminate(e.terminate, rdmap.PhaseAfterFirstFPDU))(t)
		if got := terminateText(&received); !strings.Contains(got, c.want) {
			t.Errorf("%v, received: %q does not say %q", c.err, got, c.want)
		}
	}
}

// TestLongFPDU: FPDUs of the greatest length, in segments of random length, go to
// their place in each framing and nowhere else.
//
//rfc:5044 MPA-4.1-08 Any ULPDU_Length from the minimum header up is accepted
func TestLongFPDU(t *testing.T) {
	for _, fr := range framings {
		for seed := range uint64(5) {
			t.Run(fmt.Sprintf("%s/seed %d", fr.name, seed), func(t *testing.T) {
				storyOn(t, memnet.Options{Seed: seed, MSS: 9000, Cut: seed > 0}, fr.opts,
					framingParams(fr.crc, fr.markers), sideOptions{}, func(s *side, r *raw) {
						const size = 3 * 50_001
						data := make([]byte, size)
						pattern(data, int(seed))
						dst := s.reg(size, everything)
						recv := s.reg(size+100, provider.AccessLocalWrite)
						sink := s.reg(size, provider.AccessLocalWrite)
						s.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{recv.sge(0, 10),
							recv.sge(60, 49_000), recv.sge(49_100, size-49_010)}})
						s.send(provider.SendWR{WRID: 2, Opcode: provider.WRRDMARead,
							Flags: provider.SendSignaled, SGList: []provider.SGE{sink.sge(0, size)}})
						q := r.wantReadRequest("the Read", 1)
						for i := range 3 {
							off, last := i*50_001, i == 2
							part := data[off : off+50_001]
							r.send(rdmap.WriteHeader(dst.m.STag(), dst.to(off), last), part)
							r.send(sendSeg(1, uint32(off), last), part)
							if !last {
								continue
							}
							for j := range 3 {
								off := j * 50_001
								r.send(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO+uint64(off), j == 2),
									data[off:off+50_001])
							}
						}
						s.wantWC("the Send", provider.WC{WRID: 1, Opcode: provider.WCRecv, ByteLen: size})
						s.wantWC("the Read", provider.WC{WRID: 2, Opcode: provider.WCRDMARead, ByteLen: size})
						got := append(append(bytes.Clone(recv.b[:10]), recv.b[60:49_060]...),
							recv.b[49_100:49_100+size-49_010]...)
						if !bytes.Equal(dst.b, data) || !bytes.Equal(got, data) || !bytes.Equal(sink.b, data) {
							t.Error("bytes differ")
						}
						for _, m := range []*region{dst, recv, sink} {
							m.untouched(0, len(m.b))
						}
					})
			})
		}
	}
}

// TestRegionGoesMidFPDU: a region is deregistered while an FPDU for it arrives.
// No byte is written afterwards.
//
//rfc:5041 DDP-7.1-06 Each segment is validated, not only the first
//rfc:5041 DDP-8.3-1-01 TO range can be set and revoked
func TestRegionGoesMidFPDU(t *testing.T) {
	for _, fr := range framings {
		t.Run(fr.name, func(t *testing.T) {
			story(t, fr.opts, framingParams(fr.crc, fr.markers), func(s *side, r *raw) {
				dst := s.reg(60_000, everything)
				h := rdmap.WriteHeader(dst.m.STag(), dst.to(0), true)
				fpdu := r.fpdu(h, make([]byte, 60_000))
				r.write(fpdu[:20_000])
				time.Sleep(time.Millisecond)
				testkit.OK(t, dst.m.Close())
				for i := range dst.b {
					dst.b[i] = 0xa5
				}
				r.write(fpdu[20_000:])
				r.wantTerminate("a Terminate", fault{1, 1, 0}, &h, 60_000, nil)
				dst.untouched(0, 0)
			})
		})
	}
}

// lent counts what streams hold of a device's free lists.
func lent(d *device) (batches, contexts int) {
	return d.prog.batches.Lent(), d.prog.contexts.Lent()
}

// TestIdleHoldsNothing: a stream at rest has neither buffers nor goroutines. One
// that waits for the rest of an FPDU keeps no more than what has come of it.
func TestIdleHoldsNothing(t *testing.T) {
	story(t, Options{}, params(true), func(s *side, r *raw) {
		want := func(what string, wantBatches, wantContexts int) {
			t.Helper()
			time.Sleep(time.Millisecond)
			if b, c := lent(s.dev); b != wantBatches || c != wantContexts {
				t.Errorf("%s: %d batches and %d contexts are lent, want %d and %d", what, b, c,
					wantBatches, wantContexts)
			}
		}
		want("connected", 0, 0)
		s.recv(provider.RecvWR{}, provider.RecvWR{})
		s.send(provider.SendWR{Opcode: provider.WRSend})
		r.sendMsg(nil)
		s.poll()
		want("after a message each way", 0, 0)
		fpdu := r.fpdu(sendSeg(2, 0, true), nil)
		r.write(fpdu[:10])
		want("half an FPDU", 0, 0)
		r.write(fpdu[10:11])
		want("half an FPDU and one byte", 0, 0)
		r.write(fpdu[11:])
		s.poll()
		want("the other half", 0, 0)
		fpdu = r.fpdu(rdmap.WriteHeader(1, 0, true), make([]byte, 3*partSmall))
		r.write(fpdu[:2*partSmall])
		want("half a long FPDU", 0, 1)
		time.Sleep(3 * policy.StallPeriod)
		want("when it has stood still", 0, 0)
	})
	storyOn(t, memnet.Options{Window: 100}, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
		src := s.reg(1000, 0)
		s.send(provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{src.sge(0, 1000)}})
		time.Sleep(time.Millisecond)
		if b, _ := lent(s.dev); b != 1 {
			t.Errorf("%d batches are lent to a blocked stream", b)
		}
		testkit.OK(t, s.qp.Close())
		if b, c := lent(s.dev); b != 0 || c != 0 {
			t.Errorf("after Close %d and %d are lent", b, c)
		}
	})
}

// TestStalledPeers: many peers that stop inside an FPDU pin few contexts. Others are served.
func TestStalledPeers(t *testing.T) {
	story(t, Options{}, params(true), func(s *side, r *raw) {
		fpdu := r.fpdu(rdmap.WriteHeader(1, 0, true), make([]byte, 2*partSmall))
		for i := range 3 * policy.ContextsKept {
			q := s.newQP(sideOptions{cap: provider.QPCap{MaxSendWR: 1}})
			defer q.Close()
			mine, theirs := connectTransport(s.t, s.dev.opts.Network, fmt.Sprintf("192.0.2.2:%d", i+1))
			defer theirs.Close()
			testkit.OK(t, q.start(mine, params(true), func(error) {}))
			(&raw{t: s.t, c: theirs}).write(fpdu[:partSmall+1])
		}
		time.Sleep(time.Millisecond)
		if _, c := lent(s.dev); c != policy.ContextsKept {
			t.Errorf("%d contexts are lent, want %d", c, policy.ContextsKept)
		}
		s.wantServed("others", r)
		time.Sleep(3 * policy.StallPeriod)
		if _, c := lent(s.dev); c != 0 {
			t.Errorf("%d contexts are lent to peers that have stopped for long, want 0", c)
		}
	})
}

// TestIdleMemory: ten thousand idle connections cost megabytes.
func TestIdleMemory(t *testing.T) {
	const n = 5000 // so many that what earlier tests leave behind doesn't count
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // the first moves what pools keep to where the second frees it
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	s := newSide(t, Options{Network: memnet.New(nil)}, sideOptions{})
	qps := make([]*qp, n)
	before := heap()
	goroutines := runtime.NumGoroutine()
	for i := range qps {
		qps[i] = s.newQP(sideOptions{cap: provider.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
		st := (&stream{q: qps[i], dev: s.dev}).link()
		st.inbound.Init(1)
		st.outstanding.Init(1)
		st.rx.init(st)
		qps[i].stream.Store(st)
	}
	per := (heap() - before) / n
	if per > 1280 && !testkit.Race && !sched.Explored { // locks are larger where their order is checked
		t.Errorf("%d bytes per idle QP", per)
	}
	t.Logf("%d bytes per idle QP, its stream included, its socket not", per)
	if more := runtime.NumGoroutine() - goroutines; more > n/10 {
		t.Errorf("%d idle QPs have %d goroutines", n, more)
	}
	for _, q := range qps {
		q.stream.Store(nil)
		testkit.OK(t, q.Close())
	}
}
