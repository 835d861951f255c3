package ibverbs_test

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// TestSRQTypes: SRQs of types other than the basic one (ibv_create_srq_ex) need XRC or tag
// matching, and iWARP has neither. A device returns an error for them; PD.CreateSRQ makes basic
// ones. The test runs on the engine, and on siw through TestOnSiw.
func TestSRQTypes(t *testing.T) {
	vctx, _ := open()
	defer func() { testkit.OK(t, vctx.Close()) }()
	attr := testkit.Must(vctx.Query())(t)
	if attr.DeviceCapFlags&provider.DeviceXRC != 0 {
		t.Errorf("the device offers XRC: %s", attr.DeviceCapFlags)
	}
	if attr.MaxSRQ <= 0 || attr.MaxSRQWR <= 0 {
		t.Errorf("%d SRQs of %d receives", attr.MaxSRQ, attr.MaxSRQWR)
	}
}
