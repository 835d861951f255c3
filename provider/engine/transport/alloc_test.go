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
				p.Poller.BeforeSleep()
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
