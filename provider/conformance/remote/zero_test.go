package remote_test

import (
	"net"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance/remote"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestNilAndZeroValues: calls on a session, device or agent that is nil, zero or closed return
// errors that say so; none panics or waits.
func TestNilAndZeroValues(t *testing.T) {
	empty := &testkit.Empty{Patience: patience}
	empty.Zeros(t, &remote.Session{}, &remote.Device{}, &remote.Agent{}, &remote.GoneError{})

	s := dial(t, agent(t, &remote.Agent{}))
	vctx, dev := open(t, s)
	testkit.OK(t, vctx.Close())
	testkit.OK(t, s.Close())
	empty.Closed(t, dev)
	empty.Fine = []string{"Close"}
	empty.Closed(t, s, s.Provider("engine", nil))

	empty = &testkit.Empty{Patience: patience}
	for _, zero := range []*remote.Session{nil, {}} {
		empty.Closed(t, zero.Provider("engine", nil))
		<-zero.Done() // closed, as for an ended session
		if zero.Beside(nil) != nil {
			t.Error("there is a provider beside nil")
		}
		near := testkit.Must(zero.Beside(engine.New(nil)).Open(""))(t)
		testkit.OK(t, near.Close())
	}
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	empty.Func(t, "Serve of an agent without Open", func() error {
		return (&remote.Agent{}).Serve(t.Context(), l)
	})
	if _, err := l.Accept(); err == nil {
		t.Error("Serve has not closed the listener")
	}
}
