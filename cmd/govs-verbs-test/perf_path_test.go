//go:build !race

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestPerfPathInterrupted: no process is left, and so no network namespace of one, when perf all is
// interrupted while it measures the path, or fails.
func TestPerfPathInterrupted(t *testing.T) {
	testkit.NeedRoot(t, "network namespaces need root")
	mark := fmt.Sprintf("GOVS_TEST_MARK=%d-%d", os.Getpid(), time.Now().UnixNano())
	t.Setenv("GOVS_TEST_MARK", mark[len("GOVS_TEST_MARK="):])
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

// marked are the processes, but for this one, that have a variable in their environment.
func marked(t *testing.T, variable string) (pids []string) {
	t.Helper()
	for _, file := range testkit.Must(filepath.Glob("/proc/[0-9]*/environ"))(t) {
		text, _ := os.ReadFile(file) // it may be gone
		if pid := filepath.Base(filepath.Dir(file)); bytes.Contains(text, []byte(variable)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// wantNone waits until no process has the variable.
func wantNone(t *testing.T, variable string) {
	t.Helper()
	var left []string
	for start := time.Now(); time.Since(start) < patience; time.Sleep(10 * time.Millisecond) {
		if left = marked(t, variable); left == nil {
			return
		}
	}
	t.Errorf("processes %v are left", left)
}
