package vmtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRecordTooLate: what is recorded when the shared guest runs already would be left out.
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
