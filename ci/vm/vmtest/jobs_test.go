package vmtest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestRecordTooLate: a test that is recorded while the shared guest already runs would be left out.
func TestRecordTooLate(t *testing.T) {
	jobs := t.TempDir()
	if err := record(t, jobs, Options{}, nil, []string{"true"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(jobs, "begun"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	err := record(t, jobs, Options{}, nil, []string{"true"})
	if err == nil || !strings.Contains(err.Error(), "ci/guest has begun") {
		t.Errorf("recorded for a guest that has begun: %v", err)
	}
}

// TestRecordedBefore: after ci/guest --record a test that is recorded is skipped, before it does
// anything, and a test that was not recorded fails.
func TestRecordedBefore(t *testing.T) {
	jobs := t.TempDir()
	t.Setenv(jobsVar, jobs)
	t.Setenv("NO_GUEST", "")
	if err := record(t, jobs, Options{}, nil, []string{"true"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(jobs, "recorded"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(t testing.TB){
		"Need":  func(t testing.TB) { Need(t) },
		"Tests": func(t testing.TB) { skipRecorded(t) },
	} {
		x := &skipper{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			call(x)
		}()
		<-done
		if !strings.HasPrefix(x.why, "recorded before in "+jobs) {
			t.Errorf("%s of a test that is recorded: %q", name, x.why)
		}
	}
	t.Run("other", func(t *testing.T) {
		err := record(t, jobs, Options{}, nil, []string{"true"})
		if err == nil || !strings.Contains(err.Error(), "has not found this test") {
			t.Errorf("a test that was not found: %v", err)
		}
	})
}

// skipper is a test that records why it is skipped.
type skipper struct {
	testing.TB
	why string
}

func (t *skipper) Skip(args ...any) {
	t.why = fmt.Sprint(args...)
	runtime.Goexit()
}
