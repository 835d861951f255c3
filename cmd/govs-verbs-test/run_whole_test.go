//go:build !race

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/provider/conformance"
)

// TestCollectAndCompare runs in one place and judges in another, as make run does with its guest.
func TestCollectAndCompare(t *testing.T) {
	withoutSiw(t)
	dir := t.TempDir()
	for range 2 { // the second replaces what the first collected
		start(t, "run", "--only", oneVerbs, "--collect", dir).want(t, exitPassed, parts("1 runs collected in "), nil)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) != 2 {
		t.Errorf("collected: %v, %v", names, err)
	}
	cmd := start(t, "compare", dir, "--report", filepath.Join(dir, "report"))
	cmd.want(t, exitPassed, parts("1 PASS: the suite passed"), nil)
	if rep := readReport(t, filepath.Join(dir, "report", "report.json")); len(rep.Results) != 1 ||
		len(rep.Results[0].Messages) < 5 {
		t.Errorf("%d results, %+v", len(rep.Results), rep.Results)
	}

	var col conformance.Collection
	file := filepath.Join(dir, collectionFile)
	if err := json.Unmarshal(readFile(t, file), &col); err != nil {
		t.Fatal(err)
	}
	t.Run("a check that did not hold", func(t *testing.T) {
		bad := col
		bad.Outcomes = slices.Clone(col.Outcomes)
		bad.Outcomes[0].Checks = append(slices.Clone(col.Outcomes[0].Checks),
			conformance.Check{What: "pigs fly", Got: "they don't"})
		writeJSON(t, file, bad)
		start(t, "compare", dir, "--no-tshark").want(t, exitFailed, parts(
			"FAIL        "+oneVerbs+"  engine->engine\n            not so: pigs fly: they don't\n            scenario: ",
			"            requirement: RDMAP-5.3-", "expected: pigs fly\n            actual:   they don't\n",
			"frames, the initiator on the left:\n", " --> MPA Request Frame ", fmt.Sprintf("seed: %d\n", col.Seed),
			fmt.Sprintf("again: govs-verbs-test run --only %s --seed %d --initiator engine --responder engine\n",
				oneVerbs, col.Seed),
			"1 FAIL: the suite did not pass"), nil)
	})
	t.Run("nothing was run", func(t *testing.T) {
		bad := col
		bad.Outcomes = nil
		writeJSON(t, file, bad)
		start(t, "compare", dir, "--no-tshark").want(t, exitFailed, parts("the suite did not pass"), nil)
	})
	t.Run("a scenario that is not known", func(t *testing.T) {
		bad := col
		bad.Outcomes = slices.Clone(col.Outcomes)
		bad.Outcomes[0].Scenario = "no/such"
		writeJSON(t, file, bad)
		start(t, "compare", dir, "--no-tshark").want(t, exitFailed, nil, parts("no/such"))
	})
}

// TestCompareFolders judges runs that were collected in two places as one suite.
func TestCompareFolders(t *testing.T) {
	withoutSiw(t)
	one, other := t.TempDir(), t.TempDir()
	start(t, "run", "--only", oneVerbs, "--seed", "5", "--collect", one).want(t, exitPassed, nil, nil)
	start(t, "run", "--only", oneRaw, "--seed", "5", "--collect", other).want(t, exitPassed, nil, nil)
	dir := filepath.Join(t.TempDir(), "report")
	start(t, "compare", one, other, "--report", dir).want(t, exitPassed, parts("2 PASS: the suite passed"), nil)
	for _, r := range readReport(t, filepath.Join(dir, "report.json")).Results {
		if _, err := os.Stat(filepath.Join(dir, r.Capture)); err != nil || len(r.Ladder) == 0 {
			t.Errorf("%s: capture %s, %d lines of ladder, %v", r.Scenario, r.Capture, len(r.Ladder), err)
		}
	}
	start(t, "compare", one, one).want(t, exitUsage, nil, parts("both "+one+" and "+one+" have the run "+oneVerbs))
	start(t, "compare", one, dir).want(t, exitUsage, nil, parts(dir+" is a report, which has been judged"))
	start(t, "run", "--only", oneRaw, "--seed", "6", "--collect", other).want(t, exitPassed, nil, nil)
	start(t, "compare", one, other).want(t, exitUsage, nil, parts(`can't be judged together: the seed is "5" and "6"`))
}

// TestReportsThatCannotBeWritten shows that a run fails at its beginning, not at its end.
func TestReportsThatCannotBeWritten(t *testing.T) {
	withoutSiw(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--report", file}, {"--report", filepath.Join(file, "below")}, {"--json", filepath.Join(file, "x.json")},
		{"--junit", filepath.Join(filepath.Dir(file), "none", "x.xml")}, {"--collect", file},
	} {
		cmd := start(t, append([]string{"run", "--only", oneVerbs}, args...)...)
		cmd.want(t, exitUsage, nil, parts(filepath.Dir(file)))
		if strings.Contains(cmd.stdout.String(), "/1]") {
			t.Errorf("%s: ran all the same", cmd)
		}
	}
}

// TestWithoutKernel requests an address that no device's interface has, so that it behaves the same
// on machines with and without a kernel device.
func TestWithoutKernel(t *testing.T) {
	only := []string{"run", "--only", oneVerbs, "--no-tshark", "--addr", "127.0.0.1"}
	with := func(more ...string) []string { return append(slices.Clone(only), more...) }
	const remedy = "make run boots a virtual machine that has siw"
	t.Run("siw is not required", func(t *testing.T) {
		withoutSiw(t)
		matrix := start(t, with("--matrix")...)
		matrix.want(t, exitPassed, parts("1 PASS: the suite passed", "pairings engine->engine\n"), nil)
		const left = "left out: engine->kernel kernel->engine kernel->kernel: "
		if out := matrix.stdout.String(); !strings.HasPrefix(out, left) || !strings.Contains(out, remedy) {
			t.Errorf("the first line does not say what is left out and what adds it:\n%s", out)
		}
		start(t, with("--initiator", "kernel")...).want(t, exitUsage, nil, parts(remedy))
		start(t, with("--responder", "kernel")...).want(t, exitUsage, nil, parts(remedy))
	})
	t.Run("siw is required", func(t *testing.T) {
		for _, require := range []func(t *testing.T, args ...string) *command{
			func(t *testing.T, args ...string) *command {
				withoutSiw(t)
				return start(t, append(args, "--require-siw")...)
			},
			func(t *testing.T, args ...string) *command {
				t.Setenv("REQUIRE_SIW", "1")
				return start(t, args...)
			},
		} {
			matrix := require(t, with("--matrix")...)
			matrix.want(t, exitFailed, parts("siw is required, and pairings with the kernel will fail: ",
				remedy, "1 PASS, 3 FAIL: the suite did not pass"), nil)
			require(t, with()...).want(t, exitUsage, nil, parts("siw is required; "+remedy+": "))
		}
	})
}

// TestProcess runs the command as a process: signals end it cleanly, and without the right to
// capture on the wire it captures at the sockets.
func TestProcess(t *testing.T) {
	withoutSiw(t)
	t.Run("SIGINT", func(t *testing.T) {
		p := startCommand(t, nil, "ping", "--listen", "127.0.0.1:0", "--provider", "engine")
		p.stderr.await(t, `listening on \S+\n`)
		if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		p.want(t, exitFailed)
		wantText(t, "stderr", p.stderr.String(), parts(name+": interrupted\n"))
	})
	// As with head: a run removes its temporary files if the reader of its output closes the pipe.
	t.Run("a reader that leaves", func(t *testing.T) {
		tmp := t.TempDir()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/proc/self/exe", "run", "--no-tshark")
		cmd.Env = append(os.Environ(), asCommand+"=1", "TMPDIR="+tmp)
		var stderr transcript
		cmd.Stdout, cmd.Stderr = w, &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 5)
		_, err = io.ReadFull(r, first)
		if err := errors.Join(err, w.Close(), r.Close()); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != exitFailed || string(first) != "seed " || stderr.String() != "" {
			t.Errorf("status %d, want %d; stdout began with %q; stderr: %s", got, exitFailed, first, &stderr)
		}
		if left, err := os.ReadDir(tmp); err != nil || len(left) != 0 {
			t.Errorf("left in %s: %v, %v", tmp, left, err)
		}
	})
	t.Run("no CAP_NET_RAW", func(t *testing.T) {
		dir := t.TempDir()
		attr := &syscall.SysProcAttr{}
		if os.Getuid() == 0 {
			const nobody = 65534
			attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
			if err := errors.Join(os.Chown(dir, nobody, nobody), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		report := filepath.Join(dir, "report")
		p := startCommand(t, attr, "run", "--only", oneVerbs+","+oneRaw, "--report", report)
		p.want(t, exitPassed, "captures are taken at the sockets: ", "captures from the tap", "2 PASS: the suite passed")
		for _, r := range readReport(t, filepath.Join(report, "report.json")).Results {
			if r.CaptureSource != "tap" || len(r.Ladder) == 0 {
				t.Errorf("%s: capture from the %q, %d lines of ladder", r.Scenario, r.CaptureSource, len(r.Ladder))
			}
		}
	})
}
