package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestSendTimeoutIsOfWhatThePeerTakes: a peer that takes what it has to is not cut because
// its system says late that there is room, as TCP does where a buffer is large.
func TestSendTimeoutIsOfWhatThePeerTakes(t *testing.T) {
	const limit, size, window = 10 * time.Second, 8 << 20, 1 << 20
	storyOn(t, memnet.Options{Window: window, WriteRoom: window / 3}, Options{SendTimeout: limit}, params(true), sideOptions{}, func(s *side, r *raw) {
		src := s.reg(size, everything)
		r.ask(src, size, 1)
		for range 100 {
			time.Sleep(limit / 10)
			for left := chunkOctets / 5; left > 0; {
				n, err := r.c.Readv([][]byte{make([]byte, left)})
				if left -= n; err != nil {
					break
				}
			}
		}
		if err := s.qp.Cause(); err != nil {
			t.Errorf("a peer that takes twice of what it has to is cut: %v", err)
		}
	})
}

// TestSendTimeoutBetweenTurns: SendTimeout counts for a socket that has room, but too
// little of it for a turn to begin.
func TestSendTimeoutBetweenTurns(t *testing.T) {
	const limit, window = 10 * time.Second, turnMost + 4096
	for _, what := range []string{"in a message", "between two"} {
		so := sideOptions{cap: provider.QPCap{MaxSendWR: 2048, MaxSendSGE: 1}}
		storyOn(t, memnet.Options{Window: window, WriteRoom: window / 2}, Options{SendTimeout: limit}, params(true), so, func(s *side, r *raw) {
			src := s.reg(8<<20, everything)
			began := time.Now()
			if what == "in a message" {
				r.ask(src, 8<<20, 1)
			} else {
				wrs := make([]provider.SendWR, 2048)
				for i := range wrs {
					wrs[i] = provider.SendWR{Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{src.sge(0, 1000)}}
				}
				must(s.qp.PostSend(wrs))(t)
			}
			synctest.Wait()
			st := s.qp.stream.Load()
			st.txMu.Lock()
			put := st.blocked.Load() && st.tx.b == nil && (st.tx.msg == msgNone) == (what == "between two")
			st.txMu.Unlock()
			if !put {
				t.Fatalf("%s: the turn has not ended with room left; the test is about that", what)
			}
			s.wantTimeout(what, began, limit)
		})
	}
}

// TestPartsBehindObjects: what waits for objects of ours is not held because peers stop in
// the middle, and costs none of those his connection.
func TestPartsBehindObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, peers, behind = 1 << 20, 60, 100 << 10
		network := memnet.New(&memnet.Options{MSS: 1 << 17})
		s := newSide(t, Options{Network: network}, sideOptions{})
		q, good := s.besides(network)
		s.dev.prog.partsMost = most
		s.dev.prog.kept.Add(rxKept) // others have the contexts
		defer s.dev.prog.kept.Add(-rxKept)
		o := &sleeper{store: store{b: make([]byte, 100)}, takes: time.Minute}
		m := must(s.pd.RegObject(o, 100, provider.AccessLocalWrite|provider.AccessRemoteWrite))(t).(*mr)
		defer m.Close()
		mem := s.reg(60_000, everything)
		for range peers {
			_, r := s.besides(network)
			own := s.reg(1300, everything)
			b := r.fpdu(rdmap.WriteHeader(m.stag, m.base, true), make([]byte, 100))
			for len(b) < behind {
				b = append(b, r.fpdu(rdmap.WriteHeader(own.m.stag, own.to(0), true), make([]byte, 1300))...)
			}
			r.write(b)
		}
		fpdu := good.fpdu(rdmap.WriteHeader(mem.m.stag, mem.to(0), true), make([]byte, 60_000))
		good.write(fpdu[:40_000])
		time.Sleep(4 * stallLook)
		if err := q.Cause(); err != nil {
			t.Errorf("who stands still for four seconds beside peers that wait for an object: %v", err)
		} else {
			good.write(fpdu[40_000:])
		}
		time.Sleep(2 * time.Minute)
		if n := s.dev.prog.partOctets.Load(); n != 0 {
			t.Errorf("%d octets are counted for parts of nobody", n)
		}
	})
}
