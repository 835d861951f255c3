//go:build !race

package main

import (
	"bytes"
	"compress/gzip"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

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
