package remote_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/remote"
)

// failing is a listener whose first connection can be written to once: the hello.
type failing struct {
	net.Listener
	accepted atomic.Int32
}

func (l *failing) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil && l.accepted.Add(1) == 1 {
		c = &onceWritten{Conn: c}
	}
	return c, err
}

type onceWritten struct {
	net.Conn
	writes atomic.Int32
}

func (c *onceWritten) Write(b []byte) (int, error) {
	if c.writes.Add(1) > 1 {
		return 0, errors.New("the client has gone")
	}
	return c.Conn.Write(b)
}

// TestClientLostAtStart: a client that goes away while it is welcomed is no run, so that another
// can begin.
func TestClientLostAtStart(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	a := &remote.Agent{Open: func(string, []string) (provider.Provider, error) {
		return engine.New(nil), nil
	}}
	go func() { served <- a.Serve(ctx, &failing{Listener: l}) }()
	addr := l.Addr().String()
	if s, err := remote.Dial(t.Context(), addr, remote.Options{}); err == nil {
		t.Errorf("the first client is served: %v", s.Close())
	}
	s, err := remote.Dial(t.Context(), addr, remote.Options{})
	if err != nil {
		t.Errorf("the second client: %v", err)
	} else {
		testkit.OK(t, s.Close())
	}
	cancel()
	testkit.OK(t, <-served)
}
