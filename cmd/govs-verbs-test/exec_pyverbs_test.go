//go:build !race

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// Files about rdma-core's tests in Python.
const (
	pyverbsScript = "testdata/pyverbs/run.py"
	pyverbsOnSiw  = "testdata/pyverbs/siw.tsv"         // the verdicts on siw
	pyverbsDiffer = "testdata/pyverbs/differences.tsv" // where the engine's differ, and why
)

// pyverbsUpdate, set in the environment, makes the guest write the verdicts again.
const pyverbsUpdate = "GOVS_PYVERBS_UPDATE"

// A verdict is the result of a test, with the reason if it is not ok.
type verdict struct{ what, reason string }

func (v verdict) String() string {
	if v.reason == "" {
		return v.what
	}
	return v.what + ", " + v.reason
}

// ofMachine matches reasons that depend on the machine and not the device: on another machine the
// test may have another one.
var ofMachine = regexp.MustCompile(`no huge pages|/dev/dri/`)

// like reports whether two verdicts are the same.
func (v verdict) like(w verdict) bool {
	return v.what == w.what && (v.reason == w.reason || ofMachine.MatchString(v.reason))
}

// A difference is a line of pyverbsDiffer.
type difference struct {
	verdict
	why string
}

// tabbed returns the lines of a file, without comments, by their first column. Empty columns at the
// end may be missing.
func tabbed(t *testing.T, name, text string, columns int) map[string][]string {
	t.Helper()
	rows := make(map[string][]string)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(cells) < 2 || len(cells) > columns || rows[cells[0]] != nil {
			t.Fatalf("%s: %q has not 2 to %d columns, or there is another of that name", name, line,
				columns)
		}
		rows[cells[0]] = append(cells, make([]string, columns-len(cells))...)
	}
	return rows
}

// verdicts reads lines of name, verdict and reason.
func verdicts(t *testing.T, name, text string) map[string]verdict {
	t.Helper()
	all := make(map[string]verdict)
	for test, cells := range tabbed(t, name, text, 3) {
		all[test] = verdict{cells[1], cells[2]}
	}
	return all
}

// siwVerdicts returns the verdicts on siw.
func siwVerdicts(t *testing.T) map[string]verdict {
	t.Helper()
	return verdicts(t, pyverbsOnSiw, string(testkit.Must(os.ReadFile(pyverbsOnSiw))(t)))
}

// differences returns the lines of pyverbsDiffer.
func differences(t *testing.T) map[string]difference {
	t.Helper()
	all := make(map[string]difference)
	text := string(testkit.Must(os.ReadFile(pyverbsDiffer))(t))
	for test, cells := range tabbed(t, pyverbsDiffer, text, 4) {
		all[test] = difference{verdict{cells[1], cells[2]}, cells[3]}
	}
	return all
}

// misjudged returns what is wrong with verdicts, by the names of the tests: verdicts that neither
// the wanted ones nor the list explain, and unused lines of the list.
func misjudged(want map[string]verdict, known map[string]difference,
	got map[string]verdict) map[string]string {
	wrong := make(map[string]string)
	for test, w := range want {
		g, ran := got[test]
		d, listed := known[test]
		switch {
		case !ran:
			wrong[test] = "has no verdict"
		case listed && d.why == "":
			wrong[test] = "is in the list without a reason"
		case listed && d.like(w):
			wrong[test] = "is in the list, where the verdict is that on siw"
		case listed && !d.like(g):
			wrong[test] = fmt.Sprintf("%s; the list has %s", g, d.verdict)
		case !listed && !w.like(g):
			wrong[test] = fmt.Sprintf("%s; want %s", g, w)
		}
	}
	for test, g := range got {
		if _, ok := want[test]; !ok {
			wrong[test] = fmt.Sprintf("%s; no such test is known", g)
		}
	}
	for test := range known {
		if _, ok := want[test]; !ok {
			wrong[test] = "is in the list, and no such test is known"
		}
	}
	return wrong
}

// runPyverbs runs the command that runs rdma-core's tests. It returns the verdicts as lines, and
// the output of each test.
func runPyverbs(t *testing.T, cmd *exec.Cmd) (lines string, printed map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 7*time.Minute)
	defer cancel()
	limited := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	limited.Env = cmd.Env
	limited.Cancel = func() error { return limited.Process.Signal(syscall.SIGTERM) }
	limited.WaitDelay = 10 * time.Second
	var stdout, stderr transcript
	limited.Stdout, limited.Stderr = &stdout, &stderr
	if err := limited.Run(); err != nil {
		t.Fatalf("%s: %v\n%s\n%s", limited, err, clip(stdout.String()), clip(stderr.String()))
	}
	printed = make(map[string]string)
	for _, part := range strings.Split("\n"+stderr.String(), "\n--- ") {
		test, text, _ := strings.Cut(part, "\n")
		printed[test] = text
	}
	sorted := slices.Sorted(strings.Lines(stdout.String()))
	return strings.Join(sorted, ""), printed
}

// judge fails the test for each wrong verdict.
func judge(t *testing.T, known map[string]difference, lines string, printed map[string]string) {
	t.Helper()
	wrong := misjudged(siwVerdicts(t), known, verdicts(t, pyverbsScript, lines))
	for _, test := range slices.Sorted(maps.Keys(wrong)) {
		t.Errorf("%s: %s\n%s", test, wrong[test], clip(printed[test]))
	}
}

// placedLater is a test that checks its memory when the peer has a completion of its RDMA Write. On
// iWARP the completion means that the bytes are on their way, not that they are placed (RFC 5040
// section 5.5), so that on a busy machine the test finds the former bytes.
const placedLater = "test_rdmacm.CMTestCase.test_rdmacm_async_write"

// lookAgain makes run run that test again, a few times, if it looked too early.
func lookAgain(t *testing.T, lines string, run func(parts ...string) (lines string)) string {
	t.Helper()
	for range 5 {
		v := verdicts(t, pyverbsScript, lines)[placedLater]
		if v.what != "error" || !strings.Contains(v.reason, "Data validation failure") {
			break
		}
		t.Logf("%s looked too early, and runs again", placedLater)
		var rest []string
		for line := range strings.Lines(lines) {
			if !strings.HasPrefix(line, placedLater+"\t") {
				rest = append(rest, line)
			}
		}
		lines = strings.Join(rest, "") + run("test_rdmacm_async_write")
	}
	return lines
}

// TestExecPyverbs: rdma-core's tests have the same verdicts over the engine as on siw, except for
// the entries of the list.
func TestExecPyverbs(t *testing.T) {
	b := newBridged(t)
	run := func(parts ...string) (string, map[string]string) {
		return runPyverbs(t, b.command(nil, append([]string{pyverbsScript, "--verbose", "--limit",
			"90", "--skipped", pyverbsOnSiw, "--address", "127.0.0.1", "--address", "127.0.0.2"}, parts...)...))
	}
	lines, printed := run()
	lines = lookAgain(t, lines, func(parts ...string) string {
		again, _ := run(parts...)
		return again
	})
	judge(t, differences(t), lines, printed)
}

// TestPyverbsOnSiw: the verdicts on siw are the ones that TestExecPyverbs compares with. -update
// writes them again.
func TestPyverbsOnSiw(t *testing.T) {
	o := vmtest.Options{}
	if *update {
		o.Out, o.Env = t.TempDir(), []string{pyverbsUpdate + "=1"}
	}
	if !inGuest(t, o) {
		if *update {
			lines := testkit.Must(os.ReadFile(filepath.Join(o.Out, "siw.tsv")))(t)
			testkit.OK(t, os.WriteFile(pyverbsOnSiw, lines, 0o644))
		}
		return
	}
	const second = "192.0.2.3"
	ip(t, "addr add "+second+"/24 dev d0")
	t.Cleanup(func() { ip(t, "addr del "+second+"/24 dev d0") })
	run := func(parts ...string) (string, map[string]string) {
		args := []string{"--verbose", "--limit", "150", "--address", siwAddr, "--address", second}
		if os.Getenv(pyverbsUpdate) == "" {
			args = append(args, "--skipped", pyverbsOnSiw)
		}
		return runPyverbs(t, exec.Command(pyverbsScript, append(args, parts...)...))
	}
	lines, printed := run()
	lines = lookAgain(t, lines, func(parts ...string) string {
		again, _ := run(parts...)
		return again
	})
	if os.Getenv(pyverbsUpdate) == "1" {
		file := filepath.Join(os.Getenv("VM_OUT"), "siw.tsv")
		testkit.OK(t, os.WriteFile(file, []byte(lines), 0o644))
		return
	}
	judge(t, nil, lines, printed)
}

// TestPyverbsDocument: docs/exec.md has the counts of rdma-core's tests, for siw and the engine
// alike, because no verdict differs.
func TestPyverbsDocument(t *testing.T) {
	document := string(testkit.Must(os.ReadFile("../../docs/exec.md"))(t))
	siw := siwVerdicts(t)
	var ok, bad, skip int
	for _, v := range siw {
		switch v.what {
		case "ok":
			ok++
		case "skip":
			skip++
		default:
			bad++
		}
	}
	for _, want := range []string{
		fmt.Sprintf("the other %d has the same verdict", len(siw)),
		fmt.Sprintf("%d pass, %d fail and %d are skipped", ok, bad, skip),
	} {
		if !strings.Contains(strings.Join(strings.Fields(document), " "), want) {
			t.Errorf("docs/exec.md does not say: %s", want)
		}
	}
	if known := differences(t); len(known) > 0 {
		t.Errorf("docs/exec.md says that no verdict differs; the list has %d that do", len(known))
	}
}
