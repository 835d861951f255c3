package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance"
	"golang.org/x/sys/unix"
)

// oneVerbs and oneRaw are scenarios that take little time.
const (
	oneVerbs = "send/one-octet"
	oneRaw   = "mpa/request-revision-1"
)

// withoutSiw undoes REQUIRE_SIW=1 for a test of the engine alone.
func withoutSiw(t *testing.T) { t.Setenv("REQUIRE_SIW", "") }

func TestRun(t *testing.T) {
	withoutSiw(t)
	dir := t.TempDir()
	asJSON, asJUnit := filepath.Join(dir, "other.json"), filepath.Join(dir, "other.xml")
	cmd := start(t, "run", "--only", oneVerbs+","+oneRaw, "--seed", "4711", "--verbose", "--report",
		filepath.Join(dir, "report"), "--json", asJSON, "--junit", asJUnit)
	cmd.want(t, exitPassed, parts(
		"seed 4711, captures from the ", "pairings engine->engine\n",
		"[1/2] ok        "+oneVerbs+"  engine->engine  ", "[2/2] ok        "+oneRaw+"  raw->engine  ",
		"second decoder: ", "verbs scenarios  engine->engine", "2 PASS: the suite passed", "report: ",
	), nil)

	rep := readReport(t, filepath.Join(dir, "report", "report.json"))
	if rep.Seed != 4711 || !rep.Passed || len(rep.Results) != 2 || rep.Schema != conformance.ReportSchema {
		t.Errorf("report: seed %d, passed %v, %d results, schema %q", rep.Seed, rep.Passed, len(rep.Results), rep.Schema)
	}
	for _, r := range rep.Results {
		if r.Verdict != conformance.Pass || len(r.Ladder) == 0 {
			t.Errorf("%s: %s, %d lines of ladder", r.Scenario, r.Verdict, len(r.Ladder))
		}
		start(t, "decode", filepath.Join(dir, "report", r.Capture)).want(t, exitPassed, parts("MPA Request Frame"), nil)
	}
	if again := readReport(t, asJSON); len(again.Results) != 2 {
		t.Errorf("--json: %d results", len(again.Results))
	}
	for _, file := range []string{asJUnit, filepath.Join(dir, "report", "junit.xml")} {
		var suites struct {
			Cases []struct {
				Name string `xml:"name,attr"`
			} `xml:"testsuite>testcase"`
		}
		if err := xml.Unmarshal(readFile(t, file), &suites); err != nil || len(suites.Cases) != 2 {
			t.Errorf("%s: %d cases, %v", file, len(suites.Cases), err)
		}
	}
	if page := string(readFile(t,
		filepath.Join(dir, "report", "index.html"))); !strings.Contains(page, `href="#area/mpa"`) {
		t.Error("index.html doesn't have the scenario's area")
	}
}

// TestRunInALog: without a terminal each area has a line, not each run.
func TestRunInALog(t *testing.T) {
	withoutSiw(t)
	cmd := start(t, "run", "--only", "send/one-*,"+oneRaw, "--no-tshark")
	cmd.want(t, exitPassed, nil, nil)
	out := cmd.stdout.String()
	want := regexp.MustCompile(`(?m)^seed \d+, .*\n\[3/4\] send       3 ok, \d+\.\d s\n\[4/4\] mpa        1 ok, \d+\.\d s\n` +
		`second decoder: .*\n\narea  runs  PASS\nsend  3     3\nmpa   1     1\n\n4 PASS: the suite passed\n$`)
	if !want.MatchString(out) {
		t.Errorf("%s prints\n%s", cmd, out)
	}
}

// TestRunInATerminal: in a terminal each run has a line and each scenario a row.
func TestRunInATerminal(t *testing.T) {
	withoutSiw(t)
	master, terminal := openTerminal(t)
	var shown transcript
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&shown, master) // which fails when the other end is closed
	}()
	status := run(t.Context(), []string{"run", "--only", oneVerbs, "--no-tshark"}, terminal, io.Discard)
	testkit.OK(t, terminal.Close())
	<-read
	testkit.OK(t, master.Close())
	if status != exitPassed {
		t.Errorf("status %d", status)
	}
	wantText(t, "the terminal", shown.String(),
		parts("[1/1] ok        "+oneVerbs+"  engine->engine  ", "verbs scenarios  engine->engine"))
}

// openTerminal returns the two ends of a pseudoterminal.
func openTerminal(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	fd := testkit.Must(unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0))(t)
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	testkit.OK(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number := testkit.Must(unix.IoctlGetInt(fd, unix.TIOCGPTN))(t)
	terminal = testkit.Must(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	return master, terminal
}

// TestRunSeeds shows that a random seed is printed, and not always the same.
func TestRunSeeds(t *testing.T) {
	withoutSiw(t)
	seen := make(map[string]bool)
	for range 2 {
		cmd := start(t, "run", "--only", oneVerbs, "--no-tshark")
		cmd.want(t, exitPassed, parts("second decoder: not asked"), nil)
		m := regexp.MustCompile(`(?m)^seed (\d+), `).FindStringSubmatch(cmd.stdout.String())
		if m == nil || seen[m[1]] {
			t.Fatalf("seed %v, before %v in:\n%s", m, seen, &cmd.stdout)
		}
		seen[m[1]] = true
	}
}

func TestRunInterrupted(t *testing.T) {
	withoutSiw(t)
	cmd := start(t, "run", "--seed", "5", "--verbose")
	cmd.stdout.await(t, `\[ *3/`)
	cmd.stop()
	cmd.want(t, exitFailed, nil, parts("interrupted after ", "nothing was judged (seed 5)"))

	// It leaves no file that could be taken for a collection.
	dir := t.TempDir()
	cmd = start(t, "run", "--collect", dir, "-v")
	cmd.stdout.await(t, `\[ *3/`)
	cmd.stop()
	cmd.want(t, exitFailed, nil, parts("interrupted after "))
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left in %s: %v, %v", dir, left, err)
	}
}

// startCommand starts the command as a new process. The link in /proc leads to the test's binary,
// even for users who may not see its folder.
func startCommand(t *testing.T, attr *syscall.SysProcAttr, args ...string) *program {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "TMPDIR=/tmp")
	cmd.SysProcAttr = attr
	return startCmd(t, cmd)
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func readReport(t *testing.T, name string) conformance.Report {
	t.Helper()
	var rep conformance.Report
	if err := json.Unmarshal(readFile(t, name), &rep); err != nil {
		t.Fatal(fmt.Errorf("%s: %w", name, err))
	}
	return rep
}

func writeJSON(t *testing.T, name string, v any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
}
