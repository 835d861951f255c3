package outside

import (
	"os"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// TestBoots does not look at the kernel, because TestOutsideStarts has no guest.
func TestBoots(t *testing.T) {
	if !vmtest.Inside() {
		vmtest.Self(t, vmtest.Options{Siw: "p2p"})
		return
	}
	if siw := os.Getenv("VM_SIW"); siw != "p2p" {
		t.Errorf("siw is %q, want p2p", siw)
	}
}
