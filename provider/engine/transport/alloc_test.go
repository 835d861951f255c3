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

// BenchmarkRoundTrip is one octet there and back: with both ends polled by one
// goroutine that spins, and by one that sleeps.
func BenchmarkRoundTrip(b *testing.B) {
	for _, wait := range []bool{false, true} {
		name := map[bool]string{false: "spin", true: "sleep"}[wait]
		b.Run(name, func(b *testing.B) {
			p := transporttest.NewPair(b, harness("127.0.0.1", nil))
			octet := [][]byte{make([]byte, 1)}
			ends := [2]*transporttest.End{p.Dialed, p.Accepted}
			b.ReportAllocs()
			for b.Loop() {
				for i, from := range ends {
					if _, err := from.Writev(octet); err != nil {
						b.Fatal(err)
					}
					if wait {
						if err := p.Poller.Wait(context.Background()); err != nil {
							b.Fatal(err)
						}
					}
					for p.Poller.Poll() == 0 {
					}
					if _, err := ends[1-i].Readv(octet); err != nil {
						b.Fatal(err)
					}
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
