package transport_test

import (
	"net/netip"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// TestZeroTCP: the zero TCP is one with the defaults, also within a host.
func TestZeroTCP(t *testing.T) {
	network := new(transport.TCP)
	testkit.OK(t, network.Check())
	l := testkit.Must(network.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 1))(t)
	near := testkit.Must(network.Dial(t.Context(), netip.AddrPort{}, l.Addr()))(t)
	far := testkit.Must(l.Accept(t.Context()))(t)
	for _, c := range []interface{ Close() error }{near, far, l} {
		testkit.OK(t, c.Close())
	}
}
