//go:build linux && !race

package transport_test

import (
	"context"
	"errors"
	"testing"

	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/engine/transport/transporttest"
)

// sink reads what arrives into fixed buffers.
type sink struct {
	conn transport.Conn
	bufs [][]byte
	got  int
}

func (s *sink) Ready(bool, bool) {
	n, err := s.conn.Readv(s.bufs)
	if err != nil && !errors.Is(err, transport.ErrWouldBlock) {
		panic(err)
	}
	s.got += n
}

// TestNoAllocation is not run under the race detector, which allocates itself.
func TestNoAllocation(t *testing.T) {
	p := transporttest.NewPair(t, harness("127.0.0.1", nil))
	p.Poller.Remove(p.Accepted.Conn)
	many := make([][]byte, 100)
	for i := range many {
		many[i] = make([]byte, 3)
	}
	for _, tc := range []struct {
		name string
		bufs [][]byte
	}{
		{"one buffer", many[:1]},
		{"few buffers", many[:5]},
		{"more buffers than a stream keeps room for", many},
	} {
		s := &sink{conn: p.Accepted.Conn, bufs: tc.bufs}
		if err := p.Poller.Add(p.Accepted.Conn, s); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		sent := 0
		round := func() {
			n, err := p.Dialed.Writev(tc.bufs)
			if err != nil {
				t.Fatal(err)
			}
			sent += n
			for s.got < sent {
				if err := p.Poller.Wait(ctx); err != nil {
					t.Fatal(err)
				}
				p.Poller.Poll()
				if err := p.Poller.WantWrite(s.conn, s.got%2 == 0); err != nil {
					t.Fatal(err)
				}
				p.Poller.Attend()
			}
		}
		round()
		if allocs := testing.AllocsPerRun(200, round); allocs != 0 {
			t.Errorf("%s: %v allocations per Writev, Wait, Poll, Readv", tc.name, allocs)
		}
		cancel()
		p.Poller.Remove(p.Accepted.Conn)
	}
}

// BenchmarkRoundTrip is one octet there and back, with one goroutine that spins on
// both ends, and with one that parks for each octet.
func BenchmarkRoundTrip(b *testing.B) {
	for _, park := range []bool{false, true} {
		b.Run(map[bool]string{false: "spin", true: "park"}[park], func(b *testing.B) {
			p := transporttest.NewPair(b, harness("127.0.0.1", nil))
			octet := [][]byte{make([]byte, 1)}
			var ends [2]*sink
			for i, e := range []*transporttest.End{p.Dialed, p.Accepted} {
				ends[i] = &sink{conn: e.Conn, bufs: octet}
				p.Poller.Remove(e.Conn)
				if err := p.Poller.Add(e.Conn, ends[i]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				for i, from := range ends {
					if _, err := from.conn.Writev(octet); err != nil {
						b.Fatal(err)
					}
					for to := ends[1-i]; to.got == 0; p.Poller.Poll() {
						if park && p.Poller.Wait(b.Context()) != nil {
							b.Fatal("Wait failed")
						}
					}
					ends[1-i].got = 0
				}
			}
		})
	}
}

// BenchmarkEmptyPoll is what a spinning poller pays when nothing has arrived.
func BenchmarkEmptyPoll(b *testing.B) {
	p := transporttest.NewPair(b, harness("127.0.0.1", nil))
	octet := [][]byte{make([]byte, 1)}
	b.Run("poller", func(b *testing.B) {
		for b.Loop() {
			p.Poller.Poll()
		}
	})
	b.Run("stream", func(b *testing.B) {
		for b.Loop() {
			_, _ = p.Accepted.Readv(octet)
		}
	})
}
