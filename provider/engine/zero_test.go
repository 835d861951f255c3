package engine

import (
	"net/netip"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// TestNilAndZeroNetworks: an engine over a network that is nil, or was not made by New, says so.
func TestNilAndZeroNetworks(t *testing.T) {
	empty := &testkit.Empty{Patience: patience}
	for what, network := range map[string]transport.Network{
		"a nil TCP": (*transport.TCP)(nil), "a nil memnet": (*memnet.Network)(nil),
		"a zero memnet": new(memnet.Network),
	} {
		empty.Func(t, "Listen over "+what, func() error {
			vctx, err := ibverbs.Open(New(&Options{Network: network}), "")
			if err != nil {
				return err
			}
			defer func() { testkit.OK(t, vctx.Close()) }()
			_, err = rdmacm.Listen(t.Context(), vctx, netip.MustParseAddrPort("0.0.0.0:0"), nil)
			return err
		})
	}
}
