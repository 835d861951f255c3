//go:build !race

package main

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestPerfPathInterrupted: no process is left, and so no network namespace of one, when perf all is
// interrupted while it measures the path, or fails.
func TestPerfPathInterrupted(t *testing.T) {
	testkit.NeedRoot(t, "network namespaces need root")
	mark := markProcesses(t)
	names := len(testkit.Must(filepath.Glob("/run/netns/*"))(t))

	p := perfAll(t, "--rounds", "100000", "--only", "path-1500-rtt-spin")
	p.stderr.await(t, "round 1 of 100000")
	if n := len(marked(t, mark)); n < 4 { // two of perf all, and two ends
		t.Errorf("%d processes", n)
	}
	testkit.OK(t, p.cmd.Process.Signal(syscall.SIGINT))
	p.want(t, exitFailed)
	wantNone(t, mark)

	p = perfAll(t, "--rounds", "2", "--only", "path-1500-rtt-spin", "--json", "/dev/full")
	p.want(t, exitFailed, "path-1500-rtt-spin ")
	wantNone(t, mark)
	if now := len(testkit.Must(filepath.Glob("/run/netns/*"))(t)); now > names {
		t.Errorf("%d named network namespaces, and %d before", now, names)
	}
}
