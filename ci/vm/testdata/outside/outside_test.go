package outside

import (
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
