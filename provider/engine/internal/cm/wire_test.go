package cm

import (
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testHost is a Host that has a poller only. It counts the calls of Woke.
type testHost struct {
	Host
	woke atomic.Int32
}

func (h *testHost) Poller() transport.Poller { return acceptingPoller{} }
func (h *testHost) Woke()                    { h.woke.Add(1) }

// TestReadyWakes: the Host hears of each goroutine that a poller wakes. A program outside of Go
// lends it a P then.
func TestReadyWakes(t *testing.T) {
	h := new(testHost)
	w := testkit.Must(newWire(h, nil))(t)
	for n := int32(1); n <= 3; n++ {
		w.Ready(true, false)
		select {
		case <-w.readable:
		default:
			t.Fatal("its goroutine was not woken")
		}
		testkit.Equal(t, "wake-ups of which the host has heard", h.woke.Load(), n)
	}
	w.release()
	w.Ready(true, true)
	testkit.Equal(t, "wake-ups, with one without a connection", h.woke.Load(), 3)
}

// acceptingPoller watches for whatever it is told to.
type acceptingPoller struct{ transport.Poller }

func (acceptingPoller) Add(transport.Conn, transport.Handler) error { return nil }
func (acceptingPoller) Remove(transport.Conn)                       {}
func (acceptingPoller) WantRead(transport.Conn, bool) error         { return nil }
