//go:build linux && !386 && !arm

// The region of this test is too long for 32-bit addresses.

package ibverbs_test

import (
	"math"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
)

// An SGE has 32 bits for its length, a region has 64.
func TestSGEOfMoreThan4GiB(t *testing.T) {
	o := newObjects(t)
	mr := testkit.Must(o.pd.AllocMR(1<<32+1, ibverbs.AccessRemoteRead))(t) // never touched, so it takes no memory
	defer mr.Close()
	_, err := mr.SGE(0, 1<<32)
	wantErrno(t, "SGE of 2^32 bytes", err, syscall.EINVAL, "one SGE")
	sge, err := mr.SGE(2, 1<<32-1)
	if err != nil || sge.Length != math.MaxUint32 {
		t.Errorf("SGE of 2^32-1 bytes: %+v, %v", sge, err)
	}
	r, err := mr.Remote(0, 1<<32+1)
	if err != nil || r.Len != 1<<32+1 {
		t.Errorf("Remote of 2^32+1 bytes: %+v, %v", r, err)
	}
}
