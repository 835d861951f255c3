// Package onsiw runs tests that run on the engine once more, on siw.
package onsiw

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// Run runs the tests and examples of the calling test's package that match
// pattern with GOVS_PROVIDER=kernel on the guest's siw device, in a guest unless
// the caller is in one already. It fails t if one of them fails, or if none of
// those called want ran.
func Run(t *testing.T, pattern string, want ...string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"GOVS_PROVIDER=kernel", "GOVS_DEVICE=siw0", "GOVS_ADDR=192.0.2.1"}
	args := []string{"-test.run=" + pattern, "-test.v", "-test.count=1", "-test.timeout=8m"}
	var out string
	if vmtest.Inside() {
		cmd := exec.CommandContext(t.Context(), exe, args...)
		cmd.Env = append(os.Environ(), env...)
		b, err := cmd.CombinedOutput()
		if out = string(b); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	} else {
		vmtest.Need(t)
		r := vmtest.Run(t, vmtest.Options{Env: env}, append([]string{exe}, args...)...)
		if out = r.Stdout; r.Status != 0 {
			t.Fatalf("status %d\n%s\n%s", r.Status, out, r.Stderr)
		}
	}
	for _, name := range want {
		if !strings.Contains(out, "--- PASS: "+name+" ") {
			t.Errorf("%s did not run on siw:\n%s", name, out)
		}
	}
}
