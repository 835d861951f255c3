package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestHeldBatchIsNotUndone: short answers that a full socket has left over, in front of a
// long one, all come when the peer goes on slowly after it has stood still, whoever has
// had the batch meanwhile.
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
			request := rdmap.ReadRequest{SourceSTag: src.m.stag, SourceTO: src.to(0), Size: size}
			requests = append(requests, r.fpdu(rdmap.ReadRequestHeader(r.readMSN), request.AppendTo(nil))...)
			r.readMSN++
		}
		r.write(requests)
		time.Sleep(3 * stallLook)
		if q.stream.Load().tx.held == nil {
			t.Fatal("no batch is held; the test is about those that are")
		}
		answer := func(r *raw, what string, size int) {
			for got := 0; got < size; {
				_, p := r.next(what)
				if string(p) != string(src.b[got:got+len(p)]) {
					t.Fatalf("%s: octets at %d differ", what, got)
				}
				got += len(p)
			}
		}
		_, other := s.besides(network)
		other.ask(src, long, 1)
		answer(other, "the answer to somebody else", long)
		for range count {
			if h, p := r.next("a short answer"); len(p) != short || !h.Last {
				t.Fatalf("a short answer: %d octets, header %+v", len(p), h)
			}
		}
		answer(r, "the long answer", long)
	})
}
