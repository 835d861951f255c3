package ci

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// unpacked unpacks the scripts into a cache of the test's own.
func unpacked(t *testing.T) string {
	t.Helper()
	t.Setenv("GOVS_CACHE", filepath.Join(t.TempDir(), "cache"))
	dir, err := Unpack()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestUnpackIsWhole: all files of ci/vm but Go code and documents are unpacked unchanged, so that a
// new script is not forgotten.
func TestUnpackIsWhole(t *testing.T) {
	dir := unpacked(t)
	want := map[string]bool{"deps": true, "lib.sh": true}
	entries, err := os.ReadDir("vm")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && ext != ".go" && ext != ".md" {
			want[filepath.Join("vm", e.Name())] = true
		}
	}
	for name := range want {
		tree, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Equal(have, tree) {
			t.Errorf("%s: %v, want what the tree has: add it to what is embedded", name, err)
		}
	}
	for name, says := range map[string]string{"deps": "usage: ci/deps", "vm/run": "usage: ci/vm/run",
		"vm/check": "usage: ci/vm/check", "vm/kernel": "usage: ci/vm/kernel"} {
		if out, err := exec.Command(filepath.Join(dir, name), "--help").CombinedOutput(); err != nil ||
			!strings.Contains(string(out), says) {
			t.Errorf("%s --help: %v, want %q:\n%s", name, err, says, out)
		}
	}
}

// TestUnpackMends: Unpack rewrites a script that was changed or can't be run, and leaves a right
// one alone.
func TestUnpackMends(t *testing.T) {
	dir := unpacked(t)
	run, deps := filepath.Join(dir, "vm", "run"), filepath.Join(dir, "deps")
	check := filepath.Join(dir, "vm", "check")
	before, err := os.Stat(check)
	err = errors.Join(err, os.WriteFile(run, []byte("#!/bin/sh\nexit 0\n"), 0o755),
		os.Chmod(deps, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Unpack(); err != nil || again != dir {
		t.Fatalf("unpacked to %s (%v), then to %s", dir, err, again)
	}
	for _, file := range []string{run, deps} {
		out, err := exec.Command(file, "--help").CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("usage: ")) {
			t.Errorf("%s --help: %v\n%s", file, err, out)
		}
	}
	if after, err := os.Stat(check); err != nil || !os.SameFile(before, after) {
		t.Errorf("%s was written again (%v)", check, err)
	}
	if parts, _ := filepath.Glob(filepath.Join(dir, "*", ".part-*")); len(parts) != 0 {
		t.Errorf("left behind: %q", parts)
	}
}

// TestUnpackAtOnce unpacks several times at once and runs the results.
func TestUnpackAtOnce(t *testing.T) {
	t.Setenv("GOVS_CACHE", filepath.Join(t.TempDir(), "cache"))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			dir, err := Unpack()
			if err != nil {
				t.Error(err)
				return
			}
			if out, err := exec.Command(filepath.Join(dir, "deps"), "--help").CombinedOutput(); err != nil {
				t.Errorf("deps --help: %v\n%s", err, out)
			}
		})
	}
	all.Wait()
}

// TestUnpackFails: the error names the folder and what to do.
func TestUnpackFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOVS_CACHE", file)
	_, err := Unpack()
	if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "GOVS_CACHE can") {
		t.Errorf("unpacked below a file: %v", err)
	}
}

// TestCacheFolder: the scripts are in the folder where vm/kernel keeps the kernels.
func TestCacheFolder(t *testing.T) {
	for _, c := range []struct{ govs, xdg, home, want string }{
		{"/a", "/b", "/c", "/a"},
		{"", "/b", "/c", "/b/govs"},
		{"", "", "/c", "/c/.cache/govs"},
		{"", "", "", "/root/.cache/govs"},
	} {
		t.Setenv("GOVS_CACHE", c.govs)
		t.Setenv("XDG_CACHE_HOME", c.xdg)
		t.Setenv("HOME", c.home)
		if got := cacheFolder(); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

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
