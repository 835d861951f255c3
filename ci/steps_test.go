package ci

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestStepsTable: ARCHITECTURE.md has the table that ci/test --steps prints. Each step belongs to a
// lane that ci/test runs, and is a function of ci/test.
func TestStepsTable(t *testing.T) {
	table, err := exec.Command("./test", "--steps").Output()
	if err != nil {
		t.Fatal(err)
	}
	architecture, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(architecture), "\n\n"+string(table)+"\n") {
		t.Errorf("ARCHITECTURE.md lacks the table of ci/test --steps:\n%s", table)
	}

	var functions string
	for _, name := range []string{"test", "lib.sh"} {
		script, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		functions += "\n" + string(script)
	}
	_, names, _ := strings.Cut(functions, "\nfor name in ")
	names, _, _ = strings.Cut(names, "; do\n\tlane ")
	lanes := append(strings.Fields(names), "any")
	if len(lanes) != 4 {
		t.Fatalf("ci/test runs the lanes %q, want three", lanes)
	}
	steps, err := os.ReadFile("steps")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(steps)) {
		if strings.HasPrefix(line, "#") || line == "\n" {
			continue
		}
		columns := strings.Split(line, "|")
		if len(columns) != 5 {
			t.Fatalf("%q has %d columns instead of 5", line, len(columns))
		}
		lane, function := strings.TrimSpace(columns[0]), strings.TrimSpace(columns[1])
		if !slices.Contains(lanes, lane) {
			t.Errorf("%s: ci/test has no lane %q", function, lane)
		}
		if !strings.Contains(functions, "\n"+function+"() {") {
			t.Errorf("ci/test has no function %q", function)
		}
		if seen[function] {
			t.Errorf("%s would be done once only: a lane takes a function that no other has begun", function)
		}
		seen[function] = true
	}
}
