package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

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
		answer := func(r *raw, what string, size int) {
			for got := 0; got < size; {
				_, p := r.next(what)
				if string(p) != string(src.b[got:got+len(p)]) {
					t.Fatalf("%s: bytes at %d differ", what, got)
				}
				got += len(p)
			}
		}
		_, other := s.besides(network)
		other.ask(src, long, 1)
		answer(other, "the answer to another peer", long)
		for range count {
			if h, p := r.next("a short answer"); len(p) != short || !h.Last {
				t.Fatalf("a short answer: %d bytes, header %+v", len(p), h)
			}
		}
		answer(r, "the long answer", long)
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
