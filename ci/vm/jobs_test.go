package vm

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// guestJobs runs ci/guest over a directory of jobs, and returns its exit status and what it prints.
func guestJobs(t *testing.T, jobs string) (status int, out string) {
	t.Helper()
	text, err := exec.Command(filepath.Join(vmtest.Root(t), "ci", "guest"), jobs).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), string(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0, string(text)
}

// TestSharedGuest records jobs as tests of other packages do, and runs them in one guest. Each job
// is judged separately, by its exit status and by the tests that must pass. The connections that
// siw has let hang are listed. testdata/fake replaces qemu.
func TestSharedGuest(t *testing.T) {
	vmtest.Need(t)
	fake(t)
	jobs := t.TempDir()
	t.Setenv("GOVS_VM_JOBS", jobs)
	o := vmtest.Options{}
	record := func(name, script string) {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(vmtest.Dir(t), "words")
			if err := os.WriteFile(file, []byte("--- PASS: TestWanted (0.00s)\n"), 0o666); err != nil {
				t.Fatal(err)
			}
			o.Env = []string{"WORDS=" + file}
			vmtest.Tests(t, o, []string{"TestWanted"}, "bash", "-c", script)
			t.Error("Tests returned: it has run the job instead of recording it")
		})
	}
	o.Last = true
	record("changes", `cat "$WORDS"; touch "$VM_OUT/changed"`)
	o.Last = false
	record("good", `cat "$WORDS"; [ ! -e "$VM_OUT/changed" ]`)
	record("silent", `echo "no test was run"`)
	record("bad", `cat "$WORDS"; exit 3`)
	record("hangs", `cat "$WORDS"; echo TestHung >"$GOVS_SIW_HANGS/hang-1"`)
	record("longer name", `cat "$WORDS"; echo "--- PASS: TestWantedToo (0.00s)"`)
	record("prefix only", `echo "--- PASS: TestWantedToo (0.00s)"`)

	status, out := guestJobs(t, jobs)
	if status != 1 {
		t.Errorf("exit status %d, want 1", status)
	}
	for _, want := range []string{
		`TestSharedGuest-changes in the guest: \d+ s\n`,
		`TestSharedGuest-good in the guest: \d+ s\n`,
		`TestSharedGuest-silent in the guest: FAILED .* status 0, did not pass: TestWanted\n`,
		`TestSharedGuest-bad in the guest: FAILED .* status 3\n`,
		`TestSharedGuest-hangs in the guest: \d+ s\n`,
		`siw let a connection hang \(ci/vm/siwhang\): TestHung\n`,
		`TestSharedGuest-longer_name in the guest: \d+ s\n`,
		`TestSharedGuest-prefix_only in the guest: FAILED .* status 0, did not pass: TestWanted\n`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no line %q", want)
		}
	}
	if groups, err := filepath.Glob(filepath.Join(jobs, "*", "options")); err != nil || len(groups) != 1 {
		t.Errorf("jobs with equal options are in %q (%v), want one guest", groups, err)
	}
	if t.Failed() {
		t.Logf("ci/guest printed:\n%s", out)
	}
}

// TestLastOfAGuest needs no guest: one job that changes a guest runs last there, and another such
// job has a guest of its own.
func TestLastOfAGuest(t *testing.T) {
	jobs := t.TempDir()
	t.Setenv("GOVS_VM_JOBS", jobs)
	for _, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			vmtest.Tests(t, vmtest.Options{Rxe: true, Last: true}, nil, "true", name)
		})
	}
	scripts, err := filepath.Glob(filepath.Join(jobs, "*", "*.sh"))
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range scripts {
		scripts[i], _ = filepath.Rel(jobs, s)
	}
	want := []string{
		"alone-ci-vm.TestLastOfAGuest-second/ci-vm.TestLastOfAGuest-second.sh",
		"guest-rxe/ci-vm.TestLastOfAGuest-first.sh",
	}
	if !slices.Equal(scripts, want) {
		t.Errorf("jobs are %q, want %q", scripts, want)
	}
}

// TestIncompleteJobs needs no guest: jobs that were not recorded completely fail the run.
func TestIncompleteJobs(t *testing.T) {
	empty := t.TempDir()
	if status, out := guestJobs(t, empty); status != 1 || !strings.Contains(out, "no test was recorded") {
		t.Errorf("without jobs: exit status %d, want 1 and the reason:\n%s", status, out)
	}

	jobs := t.TempDir()
	group := filepath.Join(jobs, "guest-siwdefault")
	if err := os.Mkdir(group, 0o777); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"x.sh": "true\n", "x.passes": "\n", "x.package": ""} {
		if err := os.WriteFile(filepath.Join(group, file), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	status, out := guestJobs(t, jobs)
	if status != 1 || !strings.Contains(out, "guest-siwdefault has no file options") {
		t.Errorf("without options: exit status %d, want 1 and the reason:\n%s", status, out)
	}
}
