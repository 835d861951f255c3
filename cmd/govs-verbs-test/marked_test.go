package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// markProcesses gives the processes that this test starts a variable, and returns it with its
// value.
func markProcesses(t *testing.T) string {
	value := fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	t.Setenv("GOVS_TEST_MARK", value)
	return "GOVS_TEST_MARK=" + value
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
