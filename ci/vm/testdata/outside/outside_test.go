package outside

import (
	"os"
	"slices"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

func TestDevices(t *testing.T) {
	if !vmtest.Inside() {
		vmtest.Self(t, vmtest.Options{})
		return
	}
	// From here on in the guest, as root.
	devices, err := Devices()
	if err != nil || !slices.Contains(devices, "siw0") {
		t.Errorf("devices %q (%v), want siw0", devices, err)
	}
}

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
