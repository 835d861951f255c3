//go:build linux && !purego

package cpuvendor

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestVendor compares what CPUID says of the vendor with what the kernel says.
func TestVendor(t *testing.T) {
	info := string(testkit.Must(os.ReadFile("/proc/cpuinfo"))(t))
	for name, is := range map[string]bool{"AuthenticAMD": AMD, "GenuineIntel": Intel} {
		want := runtime.GOARCH == "amd64" && strings.Contains(info, name)
		if is != want {
			t.Errorf("%s is %t, want %t", name, is, want)
		}
	}
}
