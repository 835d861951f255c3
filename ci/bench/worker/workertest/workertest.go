// Package workertest gives tests CPUs, and the command whose ends they start.
package workertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/govs-rdma/govs/ci/bench/worker"
)

// Two returns two CPUs that the test's processes may run on, one for each end. If there is only one
// CPU, the test is skipped, or fails with REQUIRE_SIW=1, because then no test may be left
// out.
func Two(t testing.TB) (client, server int) {
	t.Helper()
	cpus, err := worker.CPUs()
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case len(cpus) >= 2:
		return cpus[0], cpus[1]
	case os.Getenv("REQUIRE_SIW") == "1":
		t.Fatalf("REQUIRE_SIW=1, but two CPUs are needed, one for each end, and this process may run on %v", cpus)
	default:
		t.Skipf("two CPUs are needed, one for each end, and this process may run on %v", cpus)
	}
	return 0, 0
}

// Command builds govs-verbs-test, once, in the folder for built programs, and returns its path.
func Command(t testing.TB) string {
	t.Helper()
	path, err := command()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var command = sync.OnceValues(func() (string, error) {
	root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return "", fmt.Errorf("git rev-parse: %w", err)
	}
	at := strings.TrimSpace(string(root))
	tags, err := exec.Command(filepath.Join(at, "ci", "build"), "--tags").Output()
	if err != nil {
		return "", fmt.Errorf("ci/build --tags: %w", err)
	}
	path := filepath.Join(at, "out", "test", "govs-verbs-test")
	args := append([]string{"build", "-C", at, "-buildvcs=false"}, strings.Fields(string(tags))...)
	if out, err := exec.Command("go", append(args, "-o", path, "./cmd/govs-verbs-test")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})
