package rdmacm_test

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestConnReadDepths checks what ConnConfig says about ResponderResources and InitiatorDepth. The
// acceptor's IRD is raised to the peer's ORD; its ORD and the dialler's ORD are limits.
func TestConnReadDepths(t *testing.T) {
	type depths struct{ ird, ord int }
	for _, tc := range []struct {
		dial, accept              depths // configured
		wantDialler, wantAcceptor depths
	}{
		{depths{}, depths{}, depths{16, 16}, depths{16, 16}},
		{depths{}, depths{-1, -1}, depths{16, 16}, depths{16, 0}},
		{depths{}, depths{1, 1}, depths{16, 16}, depths{16, 1}},
		{depths{-1, -1}, depths{}, depths{0, 0}, depths{1, 0}},
		{depths{2, 2}, depths{-1, 8}, depths{2, 2}, depths{2, 2}},
	} {
		client, server := pair(t,
			&rdmacm.ConnConfig{ResponderResources: tc.dial.ird, InitiatorDepth: tc.dial.ord},
			&rdmacm.ConnConfig{ResponderResources: tc.accept.ird, InitiatorDepth: tc.accept.ord})
		for _, side := range []struct {
			name string
			c    *rdmacm.Conn
			want depths
		}{{"dialler", client, tc.wantDialler}, {"acceptor", server, tc.wantAcceptor}} {
			attr, _, err := side.c.QP().Query()
			testkit.OK(t, err)
			if got := (depths{attr.MaxDestRdAtomic, attr.MaxRdAtomic}); got != side.want {
				t.Errorf("dialled with %+v, accepted with %+v: the %s has %+v, want %+v",
					tc.dial, tc.accept, side.name, got, side.want)
			}
		}
	}
}
