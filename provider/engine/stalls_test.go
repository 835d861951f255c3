package engine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// wantTimeout waits for an end that a limit causes, and checks that it came when the
// limit was reached and not much later.
func (s *side) wantTimeout(what string, began time.Time, limit time.Duration) {
	s.t.Helper()
	var err error
	select {
	case err = <-s.down:
	case <-time.After(2 * limit):
		s.t.Fatalf("%s: the connection lives %v later", what, 2*limit)
	}
	testkit.WantErr(s.t, what, err, os.ErrDeadlineExceeded)
	testkit.Within(s.t, what+": how long it took", time.Since(began), limit, limit+limit/2)
}

// wantGoesOn checks that the connection has not ended.
func (s *side) wantGoesOn(what string) {
	s.t.Helper()
	if err := s.qp.Cause(); err != nil {
		s.t.Fatalf("%s: the connection has ended: %v", what, err)
	}
}

// take reads n bytes, or as many as there are.
func (r *raw) take(n int) {
	for n > 0 {
		k, err := r.c.Readv([][]byte{make([]byte, n)})
		if n -= k; err != nil {
			return
		}
	}
}

// wantNoWatch checks that no stream is watched for stalls, and that no timer runs.
func (s *side) wantNoWatch(what string) {
	s.t.Helper()
	time.Sleep(3 * policy.StallPeriod)
	w := &s.dev.stalls
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.armed || len(w.known)+len(w.fresh) > 0 {
		s.t.Errorf("%s: %d streams are watched, a timer runs: %v", what, len(w.known)+len(w.fresh), w.armed)
	}
}

// TestFPDUTimeout: a peer that stops inside an FPDU, or sends a byte of it occasionally, is
// sent a Terminate after FPDUTimeout, and its connection ends. A peer that finishes each FPDU
// in time may be as slow as it likes.
//
//rfc:5044 MPA-7.1.2-10-02 ULP timeout for FPDUs/messages
//rfc:5042 SEC-6.4.2-01 Idle ULPs cannot hold resources forever
func TestFPDUTimeout(t *testing.T) {
	const limit = 10 * time.Second
	for _, n := range []int{0, 1000, 60_000} {
		for _, first := range []int{1, 2, 25} {
			story(t, Options{FPDUTimeout: limit}, params(true), func(s *side, r *raw) {
				dst := s.reg(60_000, everything)
				fpdu := r.fpdu(rdmap.WriteHeader(dst.m.STag(), dst.to(0), true), make([]byte, n))
				began := time.Now()
				r.write(fpdu[:min(first, len(fpdu)-1)])
				s.wantTimeout("a peer that stops", began, limit)
				r.wantTerminate("a peer that stops", fault{0, 0, 0xff}, nil, 0, nil)
				s.wantNoWatch("a peer that stops")
			})
		}
		story(t, Options{FPDUTimeout: limit}, params(true), func(s *side, r *raw) {
			dst := s.reg(60_000, everything)
			fpdu := r.fpdu(rdmap.WriteHeader(dst.m.STag(), dst.to(0), true), make([]byte, n))
			for range 20 { // with pauses inside
				r.write(fpdu[:len(fpdu)/2])
				time.Sleep(limit / 3)
				r.write(fpdu[len(fpdu)/2 : len(fpdu)-1])
				time.Sleep(limit / 3)
				r.write(fpdu[len(fpdu)-1:])
			}
			for i := range 20 { // with pauses such that there is always part of one
				r.write(fpdu[min(i, 1)*len(fpdu)/2:])
				r.write(fpdu[:len(fpdu)/2])
				time.Sleep(limit * 2 / 3)
			}
			r.write(fpdu[len(fpdu)/2:])
			time.Sleep(2 * limit)
			s.wantGoesOn("a slow peer that keeps to the limit")
			s.wantNoWatch("an idle stream")
			began := time.Now()
			for range 2000 {
				if _, err := r.c.Writev([][]byte{fpdu[:1]}); err != nil {
					break
				}
				fpdu = append(fpdu[1:], make([]byte, 1)...)
				fpdu[0], fpdu[1] = 0xff, 0xff // so that the FPDU is long
				time.Sleep(limit / 50)
				if s.qp.stream.Load() == nil {
					break
				}
			}
			s.wantTimeout("a peer that dribbles", began, limit)
		})
	}
	story(t, Options{FPDUTimeout: -1}, params(true), func(s *side, r *raw) {
		r.write([]byte{0})
		time.Sleep(time.Hour)
		s.wantGoesOn("without a limit")
	})
}

// TestSendTimeout: the connection of a peer that takes nothing, or a byte occasionally, of
// what it has asked for or what we send ends after SendTimeout. A slow peer that takes in that
// time what was left over is not cut.
func TestSendTimeout(t *testing.T) {
	const limit, size = 10 * time.Second, 8 << 20
	for _, what := range []string{"a Read", "a Write", "short Reads"} {
		start := func(s *side, r *raw) {
			src := s.reg(size, everything)
			switch what {
			case "a Read":
				r.ask(src, size, 1)
			case "short Reads":
				r.ask(src, 900, 4)
				r.ask(src, size, 1)
			default:
				s.send(provider.SendWR{Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{src.sge(0, size)}})
			}
			synctest.Wait()
		}
		for _, take := range []int{0, 1, 100} { // bytes in each hundredth of the limit
			net, opts := memnet.Options{Window: 2000}, Options{SendTimeout: limit}
			so := sideOptions{cap: provider.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}
			storyOn(t, net, opts, params(true), so, func(s *side, r *raw) {
				start(s, r)
				began := time.Now()
				stop := make(chan struct{})
				defer close(stop)
				go func() {
					for take > 0 {
						select {
						case <-stop:
							return
						case <-time.After(limit / 100):
							_, _ = r.c.Readv([][]byte{make([]byte, take)})
						}
					}
				}()
				s.wantTimeout(what, began, limit)
			})
		}
		net, opts := memnet.Options{Window: 2000}, Options{SendTimeout: limit}
		storyOn(t, net, opts, params(true), sideOptions{}, func(s *side, r *raw) {
			start(s, r)
			for range 1000 {
				time.Sleep(limit / 100)
				r.take(1000)
			}
			s.wantGoesOn(what + ", taken slowly, within the limit")
		})
	}
	storyOn(t, memnet.Options{Window: 2000}, Options{SendTimeout: -1}, params(true), sideOptions{}, func(s *side, r *raw) {
		src := s.reg(size, everything)
		r.ask(src, size, 1)
		time.Sleep(time.Hour)
		s.wantGoesOn("without a limit")
	})
}

// TestSendTimeoutAfterObject: a peer that takes nothing is cut even if the device checked the
// stream while it waited for an object, because that check does not count and stops watching.
func TestSendTimeoutAfterObject(t *testing.T) {
	const limit, size = 10 * time.Second, 1 << 20
	net, opts := memnet.Options{Window: 2000}, Options{SendTimeout: limit}
	storyOn(t, net, opts, params(true), sideOptions{}, func(s *side, r *raw) {
		o := &asked{b: make([]byte, size)}
		m := s.object(o, size, provider.AccessRemoteRead)
		r.readReq(rdmap.ReadRequest{SourceSTag: m.STag(), SourceTO: m.Addr(), Size: size})
		calls := o.take()
		calls[0].answer <- nil // fills the socket
		time.Sleep(3 * policy.StallPeriod)
		for _, c := range append(calls[1:], o.take()...) {
			c.answer <- nil
		}
		s.wantTimeout("a peer that takes nothing", time.Now(), limit)
	})
}

// TestReadsThatNobodyTakes: a peer that asks and doesn't read pins, after it has stopped for a
// while, the rest of one FPDU, or no more than the bytes of many short answers. If it goes on
// to read, the bytes are right.
func TestReadsThatNobodyTakes(t *testing.T) {
	for _, c := range []struct {
		name        string
		size, count int
		most        int
	}{
		{"a long Read", 1 << 20, 1, 3000},
		{"Reads of 20,000 bytes", 20_000, 4, 82_000},
		{"Reads of 900 bytes", 900, 4, 4000},
	} {
		storyOn(t, memnet.Options{Window: 2000, MSS: 1448}, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
			src := s.reg(c.size, everything)
			pattern(src.b, 5)
			r.ask(src, c.size, c.count)
			time.Sleep(3 * policy.StallPeriod)
			if batch, octets := s.qp.stream.Load().pins(); batch != 0 || octets > c.most {
				t.Errorf("%s: %d batches and %d bytes are pinned, want no batch and at most %d "+
					"octets",
					c.name, batch, octets, c.most)
			}
			for range c.count {
				r.wantMessage(c.name, src.b)
			}
			s.wantServed(c.name, r)
			s.wantNoWatch(c.name)
		})
	}
}

// TestSmallPartsKeepNoContext: peers that have each sent one byte of an FPDU hold no context, so
// that a stream of whose FPDU much has come can have one.
func TestSmallPartsKeepNoContext(t *testing.T) {
	byHand(t, memnet.Options{}, Options{}, func(s *side, network *memnet.Network) {
		for range policy.ContextsKept {
			_, r := s.besides(network)
			r.write([]byte{1})
		}
		for s.dev.poller.Poll() > 0 {
		}
		if n := s.dev.prog.contexts.Lent(); n != 0 || s.dev.prog.kept.Load() != 0 {
			t.Errorf("%d contexts are lent, %d streams keep one", n, s.dev.prog.kept.Load())
		}
		q, r := s.besides(network)
		fpdu := r.fpdu(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true), make([]byte, 50_000))
		r.write(fpdu[:40_000])
		for s.dev.poller.Poll() > 0 {
		}
		testkit.Equal(t, "one of whose FPDU much has come keeps one", q.stream.Load().rx.kept, true)
	})
}

// TestLateCheck: the time for which this process stood still does not count against the peer.
func TestLateCheck(t *testing.T) {
	const limit = 10 * time.Second
	story(t, Options{FPDUTimeout: limit}, params(true), func(s *side, r *raw) {
		began := time.Now()
		r.write([]byte{0})
		time.Sleep(limit/2 + policy.StallPeriod/3) // between two checks
		w := &s.dev.stalls
		w.mu.Lock()
		w.timer.Stop()
		w.mu.Unlock()
		const stood = time.Hour
		time.Sleep(stood)
		w.check(s.dev)
		s.wantGoesOn("this side stood still")
		s.wantTimeout("afterwards the time goes on", began.Add(stood), limit)
	})
}

// crowd permits the parts of the device most bytes, and has others keep all contexts until
// the function that it returns is called.
func (s *side) crowd(most int64) func() {
	s.dev.prog.partsMost = most
	s.dev.prog.kept.Add(policy.ContextsKept)
	return func() { s.dev.prog.kept.Add(-policy.ContextsKept) }
}

// TestPartsOfAll: FPDUs that the peers of a device have begun and don't finish take no more
// memory than policy.PartsMost, and a peer that finishes its FPDUs does not lose its connection.
func TestPartsOfAll(t *testing.T) {
	hostile(t, func(s *side, good *raw, network *memnet.Network) {
		const most, peers, part = 1 << 20, 60, 40_000
		defer s.crowd(most)()
		var qps []*qp
		for range peers {
			q, r := s.besides(network)
			r.write(r.fpdu(rdmap.WriteHeader(1, 0, true), make([]byte, 60_000))[:part])
			qps = append(qps, q)
			time.Sleep(time.Millisecond)
		}
		dst := s.reg(60_000, everything)
		fpdu := good.fpdu(rdmap.WriteHeader(dst.m.STag(), dst.to(0), true), make([]byte, 60_000))
		for range 10 {
			good.write(fpdu[:part])
			time.Sleep(policy.StallPeriod / 2)
			good.write(fpdu[part:])
		}
		testkit.Within(t, "bytes of parts of FPDUs", s.dev.prog.partOctets.Load(), 0, most)
		ended := 0
		for i, q := range qps {
			if q.getState() != provider.QPErr {
				continue
			}
			if ended++; !errors.Is(q.Cause(), errFPDUMemory) {
				t.Errorf("connection %d: %v", i, q.Cause())
			}
		}
		testkit.Within(t, "connections that have ended", ended, peers-most/part, peers-most/60_016+1)
		s.wantServed("a peer that finishes its FPDUs", good)
		for _, q := range qps {
			testkit.OK(t, q.Close())
		}
		testkit.Equal(t, "bytes that are counted, when there are no parts",
			s.dev.prog.partOctets.Load(), 0)
	})
}

// TestPartsAreFair: the peer that has most bytes of parts loses connections when all parts take
// more than policy.PartsMost. Another that stands still in an FPDU has FPDUTimeout for it, though
// it has stood there for longer.
func TestPartsAreFair(t *testing.T) {
	hostile(t, func(s *side, good *raw, network *memnet.Network) {
		const most, peers, part = 1 << 20, 60, 40_000
		defer s.crowd(most)()
		dst := s.reg(60_000, everything)
		begin := func(addr string) (*qp, func()) {
			q, r := s.besidesAt(network, addr)
			fpdu := r.fpdu(rdmap.WriteHeader(dst.m.STag(), dst.to(0), true), make([]byte, 60_000))
			r.write(fpdu[:part])
			return q, func() { r.write(fpdu[part:]) }
		}
		slow, finish := begin("192.0.2.2:0")
		var qps []*qp
		for range peers {
			q, _ := begin(memAddr)
			qps = append(qps, q)
		}
		time.Sleep(10 * policy.StallPeriod)
		testkit.Within(t, "bytes of parts of FPDUs", s.dev.prog.partOctets.Load(), 0, most)
		ended := 0
		for _, q := range qps {
			if q.Cause() != nil {
				ended++
			}
		}
		least := peers - most/part
		testkit.Within(t, "connections that have ended", ended, least, least+most/60_000)
		testkit.OK(t, slow.Cause()) // it has one part, and began first
		finish()
		synctest.Wait()
		if n := s.dev.prog.partOctets.Load(); slow.Cause() != nil || n > most {
			t.Errorf("after its FPDU has come: %v, %d bytes are held for parts", slow.Cause(), n)
		}
	})
}

// TestExcess: the sum above the level is as much as there is too much, and, beside rounding, not a
// byte more.
func TestExcess(t *testing.T) {
	for _, tc := range []struct {
		counts     []int64
		over, want int64
	}{
		{nil, 1, 0},
		{[]int64{5}, 1, 4},
		{[]int64{5}, 5, 0},
		{[]int64{5}, 9, 0},
		{[]int64{1, 9, 5}, 3, 6},
		{[]int64{1, 9, 5}, 4, 5},
		{[]int64{1, 9, 5}, 5, 4},
		{[]int64{1, 9, 5}, 12, 1},
		{[]int64{1, 9, 5}, 14, 0},
		{[]int64{4, 4, 4, 4}, 2, 3},
	} {
		testkit.Equal(t, fmt.Sprintf("the level of %v, %d too many", tc.counts, tc.over),
			excess(slices.Clone(tc.counts), tc.over), tc.want)
	}
}

// TestStallsAreForgotten: the memory for watched streams is in proportion to the present ones, not
// to the most that there ever were.
func TestStallsAreForgotten(t *testing.T) {
	story(t, Options{}, params(true), func(s *side, r *raw) {
		w := &s.dev.stalls
		var all []*stream
		for range 10_000 {
			st := (&stream{dev: s.dev}).link()
			st.rx.part = new(rxPart) // of an FPDU
			all = append(all, st)
			st.watch()
		}
		time.Sleep(3 * policy.StallPeriod)
		w.mu.Lock()
		n := len(w.known)
		w.mu.Unlock()
		testkit.Equal(t, "streams that are watched", n, len(all))
		for _, st := range all {
			st.phase.Store(uint32(phaseFinished))
		}
		time.Sleep(3 * policy.StallPeriod)
		s.wantNoWatch("all have ended")
		w.mu.Lock()
		n = max(cap(w.known), cap(w.fresh))
		w.mu.Unlock()
		testkit.Within(t, "streams for which there is room, with none", n, 0, 4*stallsLeast)
	})
}
