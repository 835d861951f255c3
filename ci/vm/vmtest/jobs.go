package vmtest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// jobsVar names the environment variable that makes tests record themselves for a shared guest.
const jobsVar = "GOVS_VM_JOBS"

// Tests runs a command that runs Go tests in a guest, as Run does, and fails t unless the
// command succeeds and each of the tests named by passes has passed. Call Need first.
//
// With GOVS_VM_JOBS=DIR, Tests records the command in DIR instead and skips t. ci/guest then runs
// the recorded commands, all with equal options in one guest, so that a guest does not boot for
// every test. If the command is the calling test binary, ci/guest builds it again.
// Tests fails t if ci/guest has begun with DIR already.
//
// ci/guest --record DIR makes all tests that need a guest record themselves, and writes
// DIR/recorded. Need and Tests then skip a test that is in DIR, and Tests fails any other test.
func Tests(t *testing.T, o Options, passes []string, command ...string) Result {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Minute
	}
	if jobs := os.Getenv(jobsVar); jobs != "" {
		skipRecorded(t)
		if err := record(t, jobs, o, passes, command); err != nil {
			t.Fatalf("cannot record the test for the shared guest: %v", err)
		}
		t.Skipf("recorded in %s: ci/guest runs it", jobs)
	}
	result := Run(t, o, command...)
	if result.Status != 0 {
		t.Fatalf("in the guest, exit status %d:\n%s%s", result.Status, result.Stdout, result.Stderr)
	}
	for _, name := range passes {
		if !strings.Contains(result.Stdout, "--- PASS: "+name+" ") {
			t.Fatalf("%s did not pass in the guest:\n%s%s", name, result.Stdout, result.Stderr)
		}
	}
	return result
}

// Dir returns a directory for files that a command of Tests needs. The directory exists when the
// command runs.
func Dir(t *testing.T) string {
	t.Helper()
	jobs := os.Getenv(jobsVar)
	if jobs == "" {
		return t.TempDir()
	}
	if err := os.MkdirAll(jobs, 0o777); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(jobs, "files-")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// record writes a job as three files into the directory of the guest with the options: NAME.sh is a
// bash script, NAME.passes lists the tests that must pass, and NAME.package names the package whose
// test binary is $GOVS_VM_TESTS/NAME.test for the script, if the script needs it.
func record(t *testing.T, jobs string, o Options, passes, command []string) error {
	if o.Out != "" || o.Stdout != nil {
		return errors.New("Options.Out and Options.Stdout do not work with GOVS_VM_JOBS")
	}
	if exists(filepath.Join(jobs, "recorded")) {
		return errors.New("ci/guest --record has not found this test, which needs a guest: see there how it looks " +
			"for them")
	}
	if exists(filepath.Join(jobs, "begun")) {
		return errors.New("ci/guest has begun with what is recorded in " + jobs + ", and would not run it")
	}
	pkg, err := packageOf(t)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	name := jobName(pkg, t.Name())

	group, err := groupFor(jobs, o, name)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(group, "options"),
		[]byte(strings.Join(o.args(), "\n")+"\n"), 0o666); err != nil {
		return err
	}
	if o.Dir == "" {
		o.Dir = Root(t)
	}
	// SIGQUIT makes a test that hangs print where each of its goroutines is.
	words := []string{"exec", "timeout", "-s", "QUIT", "-k", "20", o.seconds(), "env",
		quote("--chdir=" + o.Dir)}
	for _, v := range o.Env {
		words = append(words, quote(v))
	}
	binary := ""
	for _, arg := range command {
		if arg == exe {
			binary = pkg + "\n"
			words = append(words, `"$GOVS_VM_TESTS"/`+flat(pkg)+".test")
			continue
		}
		words = append(words, quote(arg))
	}
	script := filepath.Join(group, name+".sh")
	for file, text := range map[string]string{
		script:                                strings.Join(words, " ") + "\n",
		filepath.Join(group, name+".passes"):  strings.Join(passes, "\n") + "\n",
		filepath.Join(group, name+".package"): binary,
	} {
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			return err
		}
	}
	if exists(filepath.Join(group, name+".status")) {
		return errors.New(group + " has the result of an earlier run: remove it")
	}
	return nil
}

// skipRecorded skips t if t has recorded itself under ci/guest --record.
func skipRecorded(t testing.TB) {
	t.Helper()
	jobs := os.Getenv(jobsVar)
	if jobs == "" || !exists(filepath.Join(jobs, "recorded")) {
		return
	}
	pkg, err := packageOf(t)
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := filepath.Glob(filepath.Join(jobs, "*", jobName(pkg, t.Name())+".sh"))
	if err != nil {
		t.Fatal(err)
	}
	if len(scripts) > 0 {
		t.Skip("recorded before in " + scripts[0] + ": ci/guest runs it")
	}
}

// packageOf returns the folder of the test's package below its module.
func packageOf(t testing.TB) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	return filepath.Rel(Root(t), dir)
}

// jobName returns the name of the files of a test's job.
func jobName(pkg, test string) string { return flat(pkg) + "." + flat(test) }

func flat(path string) string { return strings.ReplaceAll(path, "/", "-") }

func exists(file string) bool {
	_, err := os.Stat(file)
	return !errors.Is(err, fs.ErrNotExist)
}

// groupFor makes and returns the directory of a job's guest, which all jobs with equal options
// share. Of the jobs that must be the last of their guest, only the first recorded one is, by the
// file "last" there. Each of the others has a guest of its own.
func groupFor(jobs string, o Options, job string) (string, error) {
	group := filepath.Join(jobs, "guest"+
		strings.NewReplacer("--", "-", "/", "-").Replace(strings.Join(o.args(), "")))
	if err := os.MkdirAll(group, 0o777); err != nil || !o.Last {
		return group, err
	}
	last := filepath.Join(group, "last")
	claim := filepath.Join(group, "last."+job) // written whole before others see it
	if err := os.WriteFile(claim, []byte(job+"\n"), 0o666); err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(claim) }()
	err := os.Link(claim, last)
	if err == nil {
		return group, nil
	}
	if holder, err := os.ReadFile(last); err == nil && string(holder) == job+"\n" {
		return group, nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	group = filepath.Join(jobs, "alone-"+job)
	return group, os.MkdirAll(group, 0o777)
}

// quote makes one word of bash.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
