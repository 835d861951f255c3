package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider/kernel"
)

// tests must pass over siw. They test what an example does, as far as the device takes part in it.
// Faults in arguments, calls and files, and many clients at once, are the same over the engine.
var tests = map[string][]string{
	"9p":          {"TestRDMA", "TestServerStops"},
	"echo":        {"TestEchoShort"},
	"echo-all":    {"TestEcho"},
	"kv":          {"TestKV"},
	"pull":        {"TestPull"},
	"rdma_client": {"TestClientAndServer", "TestNoServer", "TestCProgram"},
	"rpc":         {"TestRPC", "TestRPCReconnects"},
}

// TestOnSiw runs tests of all examples over siw, in one guest. It builds what they need here,
// because a compiler takes long in the guest.
func TestOnSiw(t *testing.T) {
	vmtest.NeedKernelProvider(t, kernel.Available)
	vmtest.Need(t)
	dir := vmtest.Dir(t)
	build := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	build("build", "-o", dir, "./rdma_server", "./echo-all")
	args := []string{"test", "-c", "-o", dir + "/"}
	names, err := filepath.Glob("*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		folder := filepath.Dir(name)
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			continue // a module of its own, whose tests run elsewhere (ci/examples)
		}
		if folder == "hello" || folder == "write" {
			continue // they have the engine only
		}
		if tests[folder] == nil {
			t.Errorf("%s: no test is named that has to pass over siw", folder)
		}
		if args[len(args)-1] != "./"+folder { // it has another test file
			args = append(args, "./"+folder)
		}
	}
	build(args...)
	script := filepath.Join(dir, "script")
	err = os.WriteFile(script, []byte(`
		cd "$GOVS_EXAMPLES" && status=0
		for test in *.test; do ./"$test" -test.v -test.timeout 4m -test.run "$GOVS_TESTS" || status=1; done
		exit $status`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	var passes []string
	for _, names := range tests {
		passes = append(passes, names...)
	}
	vmtest.Tests(t, vmtest.Options{
		Timeout: 15 * time.Minute,
		Env: []string{"GOVS_PROVIDER=kernel", "GOVS_ADDR=192.0.2.1", "GOVS_EXAMPLES=" + dir,
			"GOVS_TESTS=^(" + strings.Join(passes, "|") + ")$"},
	}, passes, "bash", script)
}
