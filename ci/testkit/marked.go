package testkit

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Marked returns the ids of the processes that started with variable, NAME=VALUE, in their
// environment. This process is not among them if it has set the variable itself.
func Marked(t testing.TB, variable string) (pids []string) {
	t.Helper()
	for _, file := range Must(filepath.Glob("/proc/[0-9]*/environ"))(t) {
		text, _ := os.ReadFile(file) // it may be gone
		if bytes.Contains(text, []byte(variable)) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

// NoneMarked fails the test if there are still such processes after a minute.
func NoneMarked(t testing.TB, variable string) {
	t.Helper()
	left := Marked(t, variable)
	for end := time.Now().Add(time.Minute); left != nil && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		left = Marked(t, variable)
	}
	if left != nil {
		t.Errorf("processes %v are left", left)
	}
}
