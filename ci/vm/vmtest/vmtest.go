// Package vmtest lets a test run in the guest of ci/vm, whose kernel has the siw
// module.
//
// A test that needs the guest begins with
//
//	func TestSomething(t *testing.T) {
//		if !vmtest.Inside() {
//			vmtest.Self(t, vmtest.Options{})
//			return
//		}
//		// from here on in the guest, as root, with siw0 on 192.0.2.1
//	}
//
// If no guest can be booted, such a test is skipped with the reason, unless REQUIRE_SIW=1 is set:
// then it fails. NO_GUEST=1 skips all; both at once fail. All functions may be called concurrently.
//
// Tests of any module may use it: the scripts that boot the guest are in the test's binary
// (docs/ci.md), and are unpacked into the cache of the guest's kernels.
package vmtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci"
)

// Exit statuses of ci/vm/run that are not the command's own.
const (
	StatusUsage   = 2   // wrong usage, or no guest is possible here
	StatusKernel  = 120 // the guest's kernel logged a WARN, BUG, Oops or the like
	StatusNoGuest = 121 // the guest ended without a status of the command
	StatusTimeout = 124 // the time limit passed
)

// Options are the options of ci/vm/run. The zero value means its defaults, except that the output
// directory is one of the test's own.
type Options struct {
	Kernel  string        // "" is 6.1
	Siw     string        // "" is default; crc, p2p, mended, mended-p2p
	Link    string        // "" is siw0; none
	Net     string        // a tap interface and the guest's address, "t0=10.0.0.2/24", or none
	Rxe     bool          // also rxe0 on 198.51.100.1
	Boot    string        // more words for the command line of the guest's kernel
	Timeout time.Duration // of the command, in whole seconds; 0 is 10 minutes
	Out     string        // the host's directory that is $VM_OUT; "" is t.TempDir()
	Dir     string        // the command's directory; "" is the root of the test's module
	Env     []string      // more variables for the command, "NAME=value"
	Last    bool          // the command changes the guest, so no other command may follow

	// Stdout gets what the command writes there, as it is written, besides
	// Result.Stdout. It may be nil.
	Stdout io.Writer
}

// Result is the result of a run.
type Result struct {
	Status         int    // exit status of ci/vm/run
	Stdout, Stderr string // the command's; Stderr has ci/vm/run's own lines too
	Out            string // the host's directory that was $VM_OUT
}

// Inside reports whether the calling process runs in the guest.
func Inside() bool { return os.Getenv("VM_INSIDE") == "1" }

// Need skips the test if this machine can't boot a guest, and fails it with
// REQUIRE_SIW=1. groups are further groups of ci/deps that the test uses. With
// NO_GUEST=1, for runs of only the quick tests, it always skips; with both it fails, because
// they contradict each other.
func Need(t testing.TB, groups ...string) {
	t.Helper()
	if os.Getenv("NO_GUEST") == "1" {
		if os.Getenv("REQUIRE_SIW") == "1" {
			t.Fatal("REQUIRE_SIW=1 wants every test in the guest, and NO_GUEST=1 none: unset one of them")
		}
		t.Skip("NO_GUEST=1")
	}
	skipRecorded(t)
	missing := lacks(t, "vm/check")
	if missing == "" && len(groups) > 0 {
		missing = lacksPackages(t, groups)
	}
	without(t, "no guest can be booted here", missing)
}

// NeedKernelProvider skips a test of the kernel provider if the provider was not built in
// (kernel.Available), as with CGO_ENABLED=0. With REQUIRE_SIW=1 the test fails.
func NeedKernelProvider(t testing.TB, available bool) {
	t.Helper()
	missing := ""
	if !available {
		missing = "ci/deps kernel installs what it needs, besides cgo"
	}
	without(t, "the kernel provider was not built in", missing)
}

// NeedPackages skips a test that needs no guest but packages of groups of ci/deps, if one is not
// installed. With REQUIRE_SIW=1 the test fails.
func NeedPackages(t testing.TB, groups ...string) {
	t.Helper()
	without(t, "packages are not installed", lacksPackages(t, groups))
}

// without ends a test that can't run here because something is missing, unless missing is empty.
func without(t testing.TB, why, missing string) {
	t.Helper()
	switch {
	case missing == "":
	case os.Getenv("REQUIRE_SIW") == "1":
		t.Fatalf("REQUIRE_SIW=1, but %s: %s", why, missing)
	default:
		t.Skipf("%s: %s", why, missing)
	}
}

func lacksPackages(t testing.TB, groups []string) string {
	t.Helper()
	return lacks(t, "deps", append([]string{"--check"}, groups...)...)
}

// complete caches successful checks of lacks: nearly every test of some packages checks, and the
// scripts take a fifth of a second of processor time.
var complete sync.Map

// lacks runs a script of package ci that ends with 2 and a reason if something is
// missing.
func lacks(t testing.TB, script string, args ...string) string {
	t.Helper()
	asked := strings.Join(append(args, script, os.Getenv("PATH")), " ")
	if _, ok := complete.Load(asked); ok {
		return ""
	}
	out, err := exec.Command(filepath.Join(scripts(t), script), args...).CombinedOutput()
	if err == nil {
		complete.Store(asked, nil)
		return ""
	}
	if reason := strings.TrimSpace(string(out)); reason != "" {
		return reason
	}
	return err.Error()
}

// scripts returns the folder of the scripts that boot a guest.
func scripts(t testing.TB) string {
	t.Helper()
	dir, err := ci.Unpack()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// args are the arguments of ci/vm/run that choose the guest.
func (o *Options) args() []string {
	var args []string
	for _, option := range []struct{ name, value string }{
		{"--kernel", o.Kernel}, {"--siw", o.Siw}, {"--link", o.Link}, {"--net", o.Net},
		{"--boot", o.Boot},
	} {
		if option.value != "" && option.value != "default" {
			args = append(args, option.name, option.value)
		}
	}
	if o.Rxe {
		args = append(args, "--rxe")
	}
	return args
}

func (o *Options) seconds() string { return strconv.Itoa(int(o.Timeout / time.Second)) }

// Run runs a command in a guest with ci/vm/run and returns its result. It
// fails the test only if ci/vm/run can't be started. Call Need first.
func Run(t testing.TB, o Options, command ...string) Result {
	t.Helper()
	if o.Out == "" {
		o.Out = t.TempDir()
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Minute
	}
	args := append([]string{"--out", o.Out, "--timeout", o.seconds()}, o.args()...)
	if o.Dir == "" {
		o.Dir = Root(t)
	}
	args = append(args, "--", "env", "--chdir="+o.Dir)
	args = append(args, o.Env...)
	args = append(args, command...)

	// The script enforces the limit itself. Building the kernel and booting, which come before the
	// command, do not count.
	ctx, cancel := context.WithTimeout(t.Context(), o.Timeout+20*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(scripts(t), "vm/run"), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if o.Stdout != nil {
		cmd.Stdout = io.MultiWriter(&stdout, o.Stdout)
	}
	defer endsWithUs(cmd)()
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !exit.Exited() {
			t.Fatalf("ci/vm/run: %v\n%s", err, stderr.String())
		}
	}
	return Result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String(), o.Out}
}

// Self runs the calling test, and no other, in a guest, and fails it if it fails there or does not
// run. It calls Need. Tests documents what GOVS_VM_JOBS changes.
func Self(t *testing.T, o Options) Result {
	t.Helper()
	Need(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if o.Dir, err = os.Getwd(); err != nil {
		t.Fatal(err)
	}
	// A subtest is named by a pattern for each level.
	pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(t.Name()), "/", "$/^") + "$"
	result := Tests(t, o, []string{t.Name()}, exe, "-test.v", "-test.count=1", "-test.run="+pattern)
	t.Logf("in the guest:\n%s", result.Stdout)
	return result
}

// Root is the directory of the test's module, found upwards from the working directory.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod upwards from the working directory")
		}
		dir = filepath.Dir(dir)
	}
}
