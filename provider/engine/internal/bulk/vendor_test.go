//go:build linux && !purego

package bulk

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestAMD compares what CPUID says of the vendor with what the kernel says.
func TestAMD(t *testing.T) {
	info := string(testkit.Must(os.ReadFile("/proc/cpuinfo"))(t))
	want := runtime.GOARCH == "amd64" && strings.Contains(info, "AuthenticAMD")
	if AMD != want {
		t.Errorf("AMD is %t, want %t", AMD, want)
	}
}
