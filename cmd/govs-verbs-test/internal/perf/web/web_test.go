package web

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rawtcp"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/provider/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counting counts connections.
type counting struct {
	rawtcp.Network
	accepted int
}

func (n *counting) Listen(ctx context.Context, addr netip.AddrPort) (rawtcp.Listener, error) {
	l, err := n.Network.Listen(ctx, addr)
	return &listener{l, n}, err
}

type listener struct {
	rawtcp.Listener
	n *counting
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.accepted++
	}
	return c, err
}

// TestRequests makes requests over TCP and over streams. Connections are kept for
// a run.
func TestRequests(t *testing.T) {
	vctx := testkit.Must(ibverbs.Open(engine.New(nil), ""))(t)
	for name, network := range map[string]rawtcp.Network{
		"TCP": rawtcp.TCP(""), "streams": rawtcp.Streams(vctx, rsocket.Config{}),
	} {
		t.Run(name, func(t *testing.T) {
			n := &counting{Network: network}
			s := testkit.Must(Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"), n))(t)
			served := make(chan error, 1)
			go func() { served <- s.Serve(t.Context(), 0) }()
			c := Dial(s.Addr(), n)
			for _, conns := range []int{1, 4} {
				r := testkit.Must(c.Run(t.Context(), load.Spec{Op: Requests, Size: 1000, QPs: conns,
					Duration: 30 * time.Millisecond}))(t)
				if r.Ops == 0 || r.Octets != 1000*r.Ops || r.Elapsed < 30*time.Millisecond {
					t.Errorf("%d connections: %+v", conns, r)
				}
			}
			if _, err := c.Run(t.Context(), load.Spec{Op: Requests, Size: 1000}); err == nil {
				t.Error("a run without an end")
			}
			testkit.OK(t, c.Close())
			testkit.OK(t, s.Close())
			testkit.OK(t, <-served)
			if n.accepted != 1+4 {
				t.Errorf("%d connections, want 5", n.accepted)
			}
		})
	}
	var err error
	// What the server has closed may still be closing.
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(10 * time.Millisecond) {
		if err = vctx.Close(); err == nil {
			return
		}
	}
	t.Error(err)
}
