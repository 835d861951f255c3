//go:build linux

package engine

import (
	"testing"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// spinMuted has the side look for something until its stream is muted.
func (s *side) spinMuted() {
	s.t.Helper()
	var wc [1]provider.WC
	for end := time.Now().Add(patience); !s.isMuted(); {
		for range policy.LooksInRow / 4 {
			if n, err := s.cq.Poll(wc[:]); n != 0 || err != nil {
				s.t.Fatalf("completion %+v, error %v", wc[0], err)
			}
		}
		if time.Now().After(end) {
			s.t.Fatal("a stream that is looked at all the time is still watched")
		}
	}
}

// TestMute follows a stream whose owner spins: nobody else watches it meanwhile,
// and all the same nothing that comes is left lying when the owner stops.
func TestMute(t *testing.T) {
	a, b := pair(t, transport.NewTCP(nil), tcpAddr, Options{}, sideOptions{}, params(true))
	send := func() { a.send(provider.SendWR{Opcode: provider.WRSend}) }
	for range 8 {
		b.recv(provider.RecvWR{})
	}
	send()
	b.spin(1)
	b.spinMuted()
	send()
	b.spin(1) // who spins sees it

	b.spinMuted()
	send()
	b.arrives(1) // who stops has it served, by the poller just before the stream counts as watched
	for end := time.Now().Add(patience); b.isMuted(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatal("nobody looks, and nobody watches")
		}
	}
	b.spin(1)

	b.spinMuted()
	b.dev.attend() // who is about to sleep has it watched at once
	if b.isMuted() {
		t.Error("a goroutine sleeps until something arrives, and the stream is not watched")
	}
	send()
	b.arrives(1)
	b.spin(1)

	// Who looks twice and sleeps, again and again, does not spin.
	var wc [1]provider.WC
	for range policy.LooksInRow {
		b.dev.attend()
		for range 2 {
			if n, err := b.cq.Poll(wc[:]); n != 0 || err != nil {
				t.Fatalf("completion %+v, error %v", wc[0], err)
			}
		}
	}
	if b.isMuted() {
		t.Error("a stream is muted whose owner sleeps between looks")
	}
}

// TestMuteAndEnd has the peer end a connection that is muted: the end is noticed,
// and what is left of the stream is served until it is gone.
func TestMuteAndEnd(t *testing.T) {
	for _, how := range []string{"the peer disconnects", "the peer resets", "we disconnect", "we close"} {
		t.Run(how, func(t *testing.T) {
			a, b := pair(t, transport.NewTCP(nil), tcpAddr, Options{}, sideOptions{}, params(true))
			b.recv(provider.RecvWR{})
			a.send(provider.SendWR{Opcode: provider.WRSend})
			b.spin(1)
			b.spinMuted()
			switch how {
			case "the peer disconnects":
				a.qp.disconnect()
			case "the peer resets":
				a.qp.abort(nil)
			case "we disconnect":
				b.qp.disconnect()
			case "we close":
				b.qp.abort(nil)
			}
			b.wantDown(how)
			a.wantDown(how)
			m := &b.dev.muting
			m.mu.Lock()
			defer m.mu.Unlock()
			if len(m.streams) != 0 {
				t.Errorf("%d streams are muted and none is left", len(m.streams))
			}
		})
	}
}
