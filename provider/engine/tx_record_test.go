package engine

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// segmentLog is a memnet filter that says which segments do not consist of whole
// FPDUs.
type segmentLog struct {
	mu       sync.Mutex
	segments int
	full     int // segments of mss bytes
	mss      int
	split    []string
}

func (l *segmentLog) filter(s *memnet.Segment) memnet.Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segments++
	if len(s.Data) == l.mss {
		l.full++
	}
	for rest := s.Data; len(rest) > 0; {
		_, n, ok := mpa.ParseHeader(rest)
		if !ok || n > len(rest) {
			l.split = append(l.split, fmt.Sprintf("segment of %d bytes at %d ends inside an FPDU of %d", len(s.Data), s.Offset, n))
			break
		}
		rest = rest[n:]
	}
	return memnet.Pass
}

// TestSegmentsAreWholeFPDUs sends messages of all kinds and lengths, many of them
// in a batch, and looks at what the network cuts. Only where segments are longer
// than on any wire are they filled with what there is: without CRC, which could be cut, or
// with an MSS that cuts none.
//
//rfc:5044 MPA-5.1-01 Start TCP segments at FPDU boundaries when possible
//rfc:5044 MPA-5.1-02 Several FPDUs per segment only if wholly contained
func TestSegmentsAreWholeFPDUs(t *testing.T) {
	for _, mss := range []int{536, 1447, 1448, 1460, 8948, 32564, 65483} {
		for _, crc := range []bool{false, true} {
			t.Run(fmt.Sprintf("mss %d, crc %v", mss, crc), func(t *testing.T) {
				l := &segmentLog{mss: mss}
				network := memnet.New(&memnet.Options{MSS: mss, Window: 64 << 20, Filter: l.filter})
				a, b := pair(t, network, memAddr, Options{}, sideOptions{}, params(crc))
				oddMessages(a, b, 300)
				l.mu.Lock()
				defer l.mu.Unlock()
				filled := !crc && mss > mpa.FPDULen(mpa.MaxULPDU) || mss > 16<<10 && mss%4 == 0
				if filled != (len(l.split) > 0) {
					t.Errorf("%d of %d segments, %q", len(l.split), l.segments, l.split)
				}
				if mss%4 == 0 && l.full < l.segments/4 {
					t.Errorf("%d of %d segments are full", l.full, l.segments)
				}
			})
		}
	}
}

// oddMessages makes a do n operations of all kinds with messages of odd lengths, as many at a time
// as the queues take.
func oddMessages(a, b *side, n int) {
	const size, depth = 200_000, 16
	rnd := rand.New(rand.NewPCG(7, uint64(n)))
	// Reading bytes while they may be written is a race, on the wire as in memory.
	src, sink := a.reg(size, provider.AccessLocalWrite), a.reg(size, provider.AccessLocalWrite)
	dst := b.reg(size, provider.AccessLocalWrite|provider.AccessRemoteWrite)
	received := b.reg(size, provider.AccessLocalWrite)
	source := b.reg(size, provider.AccessLocalWrite|provider.AccessRemoteRead)
	pattern(src.b, n)
	for n > 0 {
		k := min(n, depth)
		n -= k
		var wrs []provider.SendWR
		sends := 0
		for range k {
			length := rnd.IntN(1 << rnd.IntN(18))
			wr := provider.SendWR{Flags: provider.SendSignaled, RemoteAddr: dst.to(0), RKey: dst.m.STag(),
				SGList: []provider.SGE{src.sge(rnd.IntN(100), length)}}
			switch rnd.IntN(4) {
			case 0:
				wr.Opcode = provider.WRSend
				b.recv(provider.RecvWR{SGList: []provider.SGE{received.sge(0, size)}})
				sends++
			case 1:
				wr.Opcode, wr.RemoteAddr, wr.RKey = provider.WRRDMARead, source.to(0), source.m.STag()
				wr.SGList = []provider.SGE{sink.sge(0, length)}
			default:
				wr.Opcode = provider.WRRDMAWrite
			}
			wrs = append(wrs, wr)
		}
		a.send(wrs...)
		for range k {
			if wc := a.poll(); wc.Status != provider.WCSuccess {
				a.t.Fatalf("completion %+v, cause %v", wc, a.qp.Cause())
			}
		}
		for range sends {
			if wc := b.poll(); wc.Status != provider.WCSuccess {
				b.t.Fatalf("completion %+v, cause %v", wc, b.qp.Cause())
			}
		}
	}
}
