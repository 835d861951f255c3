package remote

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// session returns a session with an agent, which ends with the test.
func session(t *testing.T, a *Agent) *Session {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		testkit.OK(t, <-served)
	})
	c := testkit.Must(Dial(t.Context(), l.Addr().String(), Options{}))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestPushWaits: when push returns, the agent has changes that another call had collected but not
// sent yet. Otherwise an RDMA Read that is posted here would find old bytes there.
func TestPushWaits(t *testing.T) {
	c := session(t, engines(0))
	d := testkit.Must(c.Provider("engine", nil).Open(""))(t).(*Device)
	pd := testkit.Must(d.AllocPD())(t)
	buf := make([]byte, 64)
	mr := testkit.Must(pd.RegMR(buf, provider.AccessLocalWrite))(t)

	c.sending.Lock() // as a sending call does
	copy(buf, "changed")
	c.mu.Lock()
	number := c.lastNumber + 1
	c.mu.Unlock()
	body, _ := c.changes(d.mem, number, position{})
	pushed := make(chan error, 1)
	go func() { pushed <- c.push() }()
	select {
	case err := <-pushed:
		t.Errorf("push returned before the changes were sent: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	testkit.OK(t, c.conn.write(&message{kind: kindBeat, body: body}))
	c.sending.Unlock()
	if !t.Failed() {
		testkit.OK(t, <-pushed)
	}
	testkit.OK(t, mr.Close())
	testkit.OK(t, pd.Close())
	testkit.OK(t, d.Close())
}
