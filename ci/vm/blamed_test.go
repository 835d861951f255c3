package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// TestBlamed: ci/lib.sh prints the panic that ended a test, although go test prints it after the
// test's name without a file and a line.
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
		"a test with a data race": {
			"==================\nWARNING: DATA RACE\nRead at 0x00c000120018 by goroutine 8:\n  a.read()\n      a.go:7 +0x44\n\n" +
				"Previous write at 0x00c000120018 by goroutine 7:\n  a.write()\n      a.go:5 +0x3a\n\n" +
				"Goroutine 8 (running) created at:\n  a.TestA()\n==================\n" +
				"--- FAIL: TestA (0.00s)\n    testing.go:1617: race detected during execution of test\n",
			"--- FAIL: TestA (0.00s)\n  testing.go:1617: race detected during execution of test\n" +
				"  WARNING: DATA RACE\n    Read: a.read()\n    Previous write: a.write()\n",
		},
		"a test that takes too long": {
			"panic: test timed out after 20m0s\n\trunning tests:\n\t\tTestA (19m3s)\n\t\tTestA/b (1m)\n\n" +
				"goroutine 7 [running]:\nFAIL\ta\t1201.1s\n",
			"  panic: test timed out after 20m0s\n    TestA (19m3s)\n    TestA/b (1m)\n",
		},
		"a scenario that fails": {
			"seed 1\nFAIL        send/zero  kernel->kernel\n            one completion: there are 2\n628 PASS, 1 FAIL\n",
			"FAIL        send/zero  kernel->kernel\none completion: there are 2\n",
		},
		"a test that runs scenarios": {
			"=== RUN   TestA\n    a_test.go:1: run: status 1, want 0\n        stdout:\n" +
				"        FAIL        send/zero  kernel->kernel\n                    there are 2\n        1 FAIL\n" +
				"--- FAIL: TestA (0.00s)\n",
			"--- FAIL: TestA (0.00s)\n  a_test.go:1: run: status 1, want 0\n" +
				"    FAIL        send/zero  kernel->kernel\n    there are 2\n",
		},
		"tests that run scenarios": {
			"=== RUN   TestA\n        FAIL        a/one  x\n        FAIL        a/two  x\n            why two\n" +
				"            more of it\n        FAIL        a/three  x\n        FAIL        a/four  x\n" +
				"--- PASS: TestA (0.00s)\n" +
				"=== RUN   TestB\n    b_test.go:1: no\n        FAIL        b/one  x\n            why one\n" +
				"--- FAIL: TestB (0.00s)\n" +
				"--- FAIL: TestC (0.00s)\n    c_test.go:1: no\n        FAIL        c/one  x\n        FAIL        c/two  x\n" +
				"            why two\n",
			"--- FAIL: TestB (0.00s)\n  b_test.go:1: no\n    FAIL        b/one  x\n    why one\n" +
				"--- FAIL: TestC (0.00s)\n  c_test.go:1: no\n    FAIL        c/one  x\n    FAIL        c/two  x\n    why two\n",
		},
		"a test that runs scenarios, without -v": {
			"--- FAIL: TestA (0.00s)\n    a_test.go:1: run: status 1, want 0\n        stdout:\n" +
				"        FAIL        send/zero  kernel->kernel\n                    there are 2\n        1 FAIL\n",
			"--- FAIL: TestA (0.00s)\n  a_test.go:1: run: status 1, want 0\n" +
				"    FAIL        send/zero  kernel->kernel\n    there are 2\n",
		},
		"a kernel that complains": {
			"guest: provider-kernel.TestSiw in the guest: 62 s\n" +
				"  | [   59.1] refcount_t: underflow; use-after-free.\n" +
				"  | [   59.1] WARNING: CPU: 0 PID: 9 at lib/refcount.c:28\n  | [   59.1] Call Trace:\n",
			"  kernel: [   59.1] refcount_t: underflow; use-after-free.\n" +
				"  kernel: [   59.1] WARNING: CPU: 0 PID: 9 at lib/refcount.c:28\n",
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
