package engine

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestLongFPDU: FPDUs of the greatest length, in segments of random length, go to
// their place in each framing and nowhere else.
//
//rfc:5044 MPA-4.1-08 Any ULPDU_Length from the minimum header up is accepted
func TestLongFPDU(t *testing.T) {
	for _, fr := range framings {
		for seed := range uint64(5) {
			t.Run(fmt.Sprintf("%s/seed %d", fr.name, seed), func(t *testing.T) {
				storyOn(t, memnet.Options{Seed: seed, MSS: 9000, Cut: seed > 0}, fr.opts, framingParams(fr.crc, fr.markers), sideOptions{}, func(s *side, r *raw) {
					const size = 3 * 50_001
					data := make([]byte, size)
					pattern(data, int(seed))
					dst := s.reg(size, everything)
					recv := s.reg(size+100, provider.AccessLocalWrite)
					sink := s.reg(size, provider.AccessLocalWrite)
					s.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{recv.sge(0, 10), recv.sge(60, 49_000), recv.sge(49_100, size-49_010)}})
					s.send(provider.SendWR{WRID: 2, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, SGList: []provider.SGE{sink.sge(0, size)}})
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
							r.send(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO+uint64(off), j == 2), data[off:off+50_001])
						}
					}
					s.wantWC("the Send", provider.WC{WRID: 1, Opcode: provider.WCRecv, ByteLen: size})
					s.wantWC("the Read", provider.WC{WRID: 2, Opcode: provider.WCRDMARead, ByteLen: size})
					got := append(append(bytes.Clone(recv.b[:10]), recv.b[60:49_060]...), recv.b[49_100:49_100+size-49_010]...)
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
				t.Errorf("%s: %d batches and %d contexts are lent, want %d and %d", what, b, c, wantBatches, wantContexts)
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
	testkit.Equal(t, "goroutines", runtime.NumGoroutine(), goroutines)
	for _, q := range qps {
		q.stream.Store(nil)
		testkit.OK(t, q.Close())
	}
}
