package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// TestBlamed: what ci/lib.sh prints of a log with a failure has the panic that ended a test, which
// go test prints after the test's name without a file and a line.
func TestBlamed(t *testing.T) {
	for name, tc := range map[string]struct{ log, want string }{
		"a test that panics": {
			"--- FAIL: TestA (0.00s)\npanic: boom [recovered]\n\tpanic: boom\ngoroutine 7 [running]:\n",
			"--- FAIL: TestA (0.00s)\n  panic: boom [recovered]\n",
		},
		"a test that fails": {
			"ok  \ta\n--- FAIL: TestA (0.00s)\n    a_test.go:1: wrong\n",
			"--- FAIL: TestA (0.00s)\n  a_test.go:1: wrong\n",
		},
		"a panic outside of tests": {"ok  \ta\npanic: boom\n", "panic: boom\n"},
	} {
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(log, []byte(tc.log), 0o666); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("bash", "-c", `. ci/lib.sh; blamed "$1" 3`, "bash", log)
			cmd.Dir = vmtest.Root(t)
			out, err := cmd.Output()
			if err != nil || string(out) != tc.want {
				t.Errorf("%v, got\n%swant\n%s", err, out, tc.want)
			}
		})
	}
}
