//go:build !cgo || !linux || nokernel

package kernel

import (
	"errors"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider"
)

// A program without the kernel provider builds, and errors name what is missing.
func TestWhatIsMissingIsNamed(t *testing.T) {
	if Available {
		t.Error("Available")
	}
	_, errOpen := New().Open("siw0")
	_, errDevices := New().Devices()
	for _, err := range []error{errOpen, errDevices} {
		var unsupported *provider.UnsupportedError
		if !errors.As(err, &unsupported) || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "nokernel") {
			t.Errorf("%v", err)
		}
	}
	if New().Name() != "kernel" {
		t.Errorf("Name: %s", New().Name())
	}
}
