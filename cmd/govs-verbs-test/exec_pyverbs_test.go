//go:build !race

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// TestPyverbsMisjudged: a verdict that differs from siw's must be in the list, and each entry of
// the list must occur.
func TestPyverbsMisjudged(t *testing.T) {
	ok, skip := verdict{"ok", ""}, verdict{"skip", "not supported"}
	pages := verdict{"skip", "There are no huge pages"}
	siw := map[string]verdict{"a": ok, "b": skip, "c": pages}
	for name, x := range map[string]struct {
		known map[string]difference
		got   map[string]verdict
		wrong string // names
	}{
		"as on siw":    {nil, map[string]verdict{"a": ok, "b": skip, "c": skip}, ""},
		"other":        {nil, map[string]verdict{"a": skip, "b": skip, "c": ok}, "a c"},
		"other reason": {nil, map[string]verdict{"a": ok, "b": pages, "c": pages}, "b"},
		"missing":      {nil, map[string]verdict{"b": skip, "c": pages}, "a"},
		"too many":     {nil, map[string]verdict{"a": ok, "b": skip, "c": pages, "d": ok}, "d"},
		"listed": {map[string]difference{"a": {skip, "why"}},
			map[string]verdict{"a": skip, "b": skip, "c": pages}, ""},
		"listed otherwise": {map[string]difference{"a": {pages, "why"}},
			map[string]verdict{"a": ok, "b": skip, "c": pages}, "a"},
		"listed, and does not occur": {map[string]difference{"a": {skip, "why"}},
			map[string]verdict{"a": ok, "b": skip, "c": pages}, "a"},
		"listed, and is none": {map[string]difference{"a": {ok, "why"}},
			map[string]verdict{"a": ok, "b": skip, "c": pages}, "a"},
		"listed without a reason": {map[string]difference{"a": {skip, ""}},
			map[string]verdict{"a": skip, "b": skip, "c": pages}, "a"},
		"listed, and no test": {map[string]difference{"x": {skip, "why"}},
			map[string]verdict{"a": ok, "b": skip, "c": pages}, "x"},
	} {
		wrong := misjudged(siw, x.known, x.got)
		if got := strings.Join(slices.Sorted(maps.Keys(wrong)), " "); got != x.wrong {
			t.Errorf("%s: wrong are %q, want %q: %v", name, got, x.wrong, wrong)
		}
	}
}

// scriptTests replace rdma-core's tests, with one for each possible verdict.
var scriptTests = map[string]string{
	"__init__.py": "",
	"args_parser.py": `
class Parser:
    def parse_args(self):
        import sys
        assert sys.argv[1:] == ['--dev', 'dev7', '--port', '1', '--gid', '0'], sys.argv
parser = Parser()
`,
	"base.py": `
class RDMATestCase:
    pass
`,
	"test_mlx5_cq.py": "import no_such_module",
	"test_all.py.gz": `
import os, signal, subprocess, time, unittest
from tests.base import RDMATestCase
class Case(unittest.TestCase):
    def test_ok(self):
        pass
    def test_skip(self):
        self.skipTest('why\tnot')
    def test_fail(self):
        self.fail('at once')
    def test_error(self):
        raise OSError('broken')
    def test_subtest(self):
        with self.subTest():
            self.fail('in a part')
    def test_status(self):
        os._exit(3)
    def test_signal(self):
        os.kill(os.getpid(), signal.SIGKILL)
    def test_players(self):
        print('Player passive got: Player active got: this\n')
        raise Exception('both')
    def test_hangs(self):
        with open(os.environ['LEFT_FILE'], 'w') as f:
            f.write(str(subprocess.Popen(['sleep', '1000']).pid))
        time.sleep(1000)
    def test_address(self):
        class Self:
            args = []
        RDMATestCase._get_ip_mac(Self, 'dev7', 1, 0)
        self.assertEqual(Self.args[0][:4], ['dev7', 1, 0, '192.0.2.9'])
`,
}

// TestPyverbsScript: the script has a verdict on each test, whatever it does, and leaves nothing.
func TestPyverbsScript(t *testing.T) {
	vmtest.NeedPackages(t, "witnesses")
	dir := t.TempDir()
	for name, text := range scriptTests {
		content := []byte(text)
		if strings.HasSuffix(name, ".gz") {
			var packed bytes.Buffer
			w := gzip.NewWriter(&packed)
			testkit.Must(w.Write(content))(t)
			testkit.OK(t, w.Close())
			content = packed.Bytes()
		}
		testkit.OK(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
	}
	left := filepath.Join(t.TempDir(), "left")
	cmd := exec.Command(pyverbsScript, "--verbose", "--source", dir, "--device", "dev7",
		"--address", "192.0.2.9", "--limit", "3")
	cmd.Env = append(os.Environ(), "LEFT_FILE="+left)
	lines, printed := runPyverbs(t, cmd)
	const want = `test_all.Case.test_address	ok
test_all.Case.test_error	error	OSError: broken
test_all.Case.test_fail	fail	AssertionError: at once
test_all.Case.test_hangs	timeout	after 3 s
test_all.Case.test_ok	ok
test_all.Case.test_players	error	Exception: both (active: this)
test_all.Case.test_signal	crash	SIGKILL
test_all.Case.test_skip	skip	why not
test_all.Case.test_status	error	exit status 3, without a verdict
test_all.Case.test_subtest	fail	AssertionError: in a part
`
	if lines != want {
		t.Errorf("the verdicts:\n%s\nwant:\n%s", lines, want)
	}
	if got := printed["test_all.Case.test_error"]; !strings.Contains(got, "Traceback") {
		t.Errorf("test_error has printed %q", got)
	}
	// Tests that are known to be skipped, two of which are not.
	known := filepath.Join(t.TempDir(), "verdicts")
	testkit.OK(t, os.WriteFile(known, []byte("test_all.Case.test_error\tskip\tas\n"+
		"test_all.Case.test_ok\tskip\ttwo\ntest_all.Case.test_skip\tskip\twere\n"), 0o644))
	again, _ := runPyverbs(t, exec.Command(pyverbsScript, "--source", dir, "--device", "dev7", "--address",
		"192.0.2.9", "--skipped", known, "test_error", "test_ok", "test_skip", "test_fail"))
	for line := range strings.Lines(again) {
		if !strings.Contains(want, line) {
			t.Errorf("with --skipped: %s", line)
		}
	}
	if n := strings.Count(again, "\n"); n != 4 {
		t.Errorf("with --skipped %d tests have a verdict, want 4:\n%s", n, again)
	}
	pid := testkit.Must(strconv.Atoi(string(testkit.Must(os.ReadFile(left))(t))))(t)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		status, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		// Nobody may reap it if the first process of a container does not.
		if syscall.Kill(pid, 0) != nil || strings.Contains(string(status), ") Z ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d, which a test has left, still runs", pid)
		}
	}
}
