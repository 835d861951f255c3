// Package pintest gives tests CPUs.
package pintest

import (
	"os"
	"testing"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/pin"
)

// Two are two CPUs that the test's processes may run on, one for each end. Where there is
// one only, the test is skipped, or with REQUIRE_SIW=1 fails: then no test may be left
// out.
func Two(t testing.TB) (client, server int) {
	t.Helper()
	cpus, err := pin.CPUs()
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case len(cpus) >= 2:
		return cpus[0], cpus[1]
	case os.Getenv("REQUIRE_SIW") == "1":
		t.Fatalf("REQUIRE_SIW=1, but perf all needs two CPUs, one for each end, and this process may only run on %v", cpus)
	default:
		t.Skipf("perf all needs two CPUs, one for each end, and this process may only run on %v", cpus)
	}
	return 0, 0
}
