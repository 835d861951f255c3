//go:build !race

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// inFakeGuest starts vm in a folder outside the tree. A program replaces qemu, and runs the command
// on this machine. TestOutside of ci/vm has a guest.
func inFakeGuest(t *testing.T, dir string, args ...string) *program {
	t.Helper()
	vmtest.Need(t)
	cmd := exec.Command("/proc/self/exe", append([]string{"vm"}, args...)...)
	cmd.Dir = dir
	temporary := filepath.Join(t.TempDir(), "a, b")
	testkit.OK(t, os.Mkdir(temporary, 0o777))
	fake := filepath.Join(vmtest.Root(t), "ci", "vm", "testdata", "fake")
	cmd.Env = append(os.Environ(), asCommand+"=1", "PATH="+fake+":"+os.Getenv("PATH"),
		"GREETING=hello  world", "GOVS_VM_MEMORY=512", "TMPDIR="+temporary)
	cmd.WaitDelay = 10 * time.Second // for a guest that is left behind and holds the streams
	return startCmd(t, cmd)
}

// wantNothingLeft fails t if a run, whose TMPDIR was a new folder, has left something there.
func wantNothingLeft(t *testing.T, p *program) {
	t.Helper()
	for _, v := range p.cmd.Env {
		if dir, ok := strings.CutPrefix(v, "TMPDIR="); ok && strings.HasPrefix(dir, os.TempDir()) {
			if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
				t.Errorf("%s: left behind: %v (%v)", p, files, err)
			}
		}
	}
}

// TestVM: the command gets its folder, arguments, variables and streams, vm's exit status is the
// command's, and the guest is as the flags say.
func TestVM(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "results")
	elsewhere := t.TempDir() // CDPATH: a cd to results may go here
	testkit.OK(t, os.Mkdir(filepath.Join(elsewhere, "results"), 0o777))
	t.Setenv("CDPATH", elsewhere)
	p := inFakeGuest(t, dir, "--siw", "crc", "--rxe", "--memory", "1024", "--cpus", "3",
		"--link", "iw7", "--out", "results", "--env", "GREETING", "--env", "COLOUR=a,b=c", "--", "bash", "-c", `
		echo "in=$PWD out=$VM_OUT inside=$VM_INSIDE"
		echo "greeting=$GREETING colour=$COLOUR"
		echo "siw=$VM_SIW rxe=$VM_RXE link=$VM_LINK kernel=$VM_KERNEL"
		printf '<%s>\n' "$@"
		echo "$FAKE_OPTIONS"
		echo brought back >"$VM_OUT/result"
		echo "to stderr" >&2
		exit 7`, "argv0", "--siw", "two words", "")
	p.want(t, 7, "in="+dir+" out="+out+" inside=1\n", "greeting=hello  world colour=a,b=c\n",
		"siw=crc rxe=yes link=iw7 kernel=6.1\n", "<--siw>\n<two words>\n<>\n", " -m 1024 -smp 3 ",
		" vm_siw=crc vm_rxe=yes ")
	if p.stderr.String() != "to stderr\n" {
		t.Errorf("stderr %q", &p.stderr)
	}
	if text := readFile(t, filepath.Join(out, "result")); string(text) != "brought back\n" {
		t.Errorf("--out got %q", text)
	}
}

// TestVMDefaults: without --out nothing is left behind, and the variables of ci/vm/run have an
// effect.
func TestVMDefaults(t *testing.T) {
	dir := t.TempDir()
	p := inFakeGuest(t, dir, "bash", "-c", `echo "siw=$VM_SIW rxe=$VM_RXE link=$VM_LINK out=$VM_OUT"
		[ -d "$VM_OUT" ] && echo "greeting=$GREETING; $FAKE_OPTIONS"`)
	p.want(t, 0, "siw=default rxe=no link=siw0 out=/", "greeting=; ", " -m 512 ")
	_, temporary, _ := strings.Cut(p.stdout.String(), "out=")
	temporary, _, _ = strings.Cut(temporary, "\n")
	if _, err := os.Stat(temporary); !os.IsNotExist(err) {
		t.Errorf("%s is left behind (%v)", temporary, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("left in the folder of the caller: %v (%v)", files, err)
	}
}

// TestVMVariables: a variable is passed whatever its name is, even if it looks like an option of
// the program that sets it.
func TestVMVariables(t *testing.T) {
	p := inFakeGuest(t, t.TempDir(), "--env=--chdir=/", "--env=-i=1", "--env", "A==b", "--", "bash", "-c",
		`echo "$PWD, $A, $VM_SIW"; tr '\0' '\n' </proc/$$/environ`)
	p.want(t, 0, p.cmd.Dir+", =b, default\n", "\n--chdir=/\n", "\n-i=1\n")
}

// TestVMStatuses: exit statuses of commands that fail or can't run. The guests end within
// milliseconds, unlike real ones: the clock of the time limit still starts, and what ends it must
// not end anything else.
func TestVMStatuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "text file")
	if err := os.WriteFile(file, []byte("true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		command []string
		status  int
		stderr  string
	}{
		{[]string{"true"}, 0, ""},
		{[]string{"bash", "-c", "exit 77"}, 77, ""},
		{[]string{file}, 126, file + ": Permission denied"},
		{[]string{"no-such-program", "--version"}, 127, "no-such-program: not found"},
		{[]string{"bash", "-c", "kill -SEGV $$"}, 128 + int(syscall.SIGSEGV), ""},
		{[]string{"bash", "-c", "kill -KILL $$"}, 128 + int(syscall.SIGKILL), ""},
	} {
		p := inFakeGuest(t, "/", append([]string{"--"}, c.command...)...)
		p.want(t, c.status)
		if c.stderr == "" && p.stderr.String() != "" || !strings.Contains(p.stderr.String(), c.stderr) {
			t.Errorf("%s: stderr %q, want %q", p, &p.stderr, c.stderr)
		}
		wantNothingLeft(t, p)
	}
}

// TestVMSignals: a signal that ends vm ends the guest, and nothing is left, unless vm has no time.
func TestVMSignals(t *testing.T) {
	for sig, status := range map[syscall.Signal]int{
		syscall.SIGINT: 130, syscall.SIGQUIT: 131, syscall.SIGTERM: 143,
		syscall.SIGKILL: -1,
	} {
		p := inFakeGuest(t, t.TempDir(), "bash", "-c",
			`echo "guest $FAKE_GUEST, command $$"; exec sleep 100`)
		ids := p.stdout.await(t, `guest (\d+), command (\d+)\n`)
		if err := p.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		p.want(t, status)
		awaitEnd(t, ids[1])
		awaitEnd(t, ids[2])
		if sig != syscall.SIGKILL {
			wantNothingLeft(t, p)
		}
	}
}

// awaitEnd waits until a process that is not a child of this one has ended.
func awaitEnd(t *testing.T, id string) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile(filepath.Join("/proc", id, "stat"))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	t.Errorf("process %s goes on", id)
}

// TestVMTimeout: the time limit ends the guest.
func TestVMTimeout(t *testing.T) {
	p := inFakeGuest(t, t.TempDir(), "--timeout", "1s", "sleep", "1000")
	p.want(t, vmtest.StatusTimeout)
	wantText(t, "stderr", p.stderr.String(), parts("the time limit of 1 s passed"))
}

// TestVMRefuses: errors that the scripts find are reported before anything is booted.
func TestVMRefuses(t *testing.T) {
	for _, c := range []struct {
		dir, args, want string
	}{
		{"/tmp", "--link a/b -- true", "not a name for a link: a/b"},
		{"/tmp", "--kernel six -- true", "not a kernel version: six"},
		{"/tmp", "--net t0 -- true", "--net takes a tap interface and an address"},
		{"/tmp", "--net t0=none -- true", "--net takes a tap interface and an address"},
		{"/tmp", "--net no-such-tap=10.0.0.2/24 -- true", "no tap interface no-such-tap here"},
		{"/dev", "-- true", "has a /run, /dev, /proc and /sys of its own, and not /dev: start elsewhere"},
	} {
		p := inFakeGuest(t, c.dir, words(c.args)...)
		p.want(t, exitUsage)
		wantText(t, p.String()+": stderr", p.stderr.String(), parts(c.want))
	}
}

// TestVMMissing: if packages are missing, the error names the command that installs them.
func TestVMMissing(t *testing.T) {
	dir := t.TempDir()
	query := `#!/bin/sh
		shift 3
		for package; do
			case $package in
			busybox-static) ;;
			libelf1) echo "config-files $package" ;;
			*) echo "installed $package" ;;
			esac
		done
		exit 1`
	if err := os.WriteFile(filepath.Join(dir, "dpkg-query"), []byte(query), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "vm", "--", "true")
	cmd.Env = append(os.Environ(), asCommand+"=1", "PATH="+dir+":"+os.Getenv("PATH"))
	p := startCmd(t, cmd)
	p.want(t, exitUsage)
	if strings.Contains(p.stderr.String(), "the guest needs Linux on x86-64") {
		if os.Getenv("REQUIRE_SIW") == "1" {
			t.Fatal("no guest is possible on this machine, and siw is required")
		}
		t.Skip("no guest is possible on this machine, whatever is installed")
	}
	wantText(t, "stderr", p.stderr.String(), parts("missing for guest: busybox-static libelf1\n",
		"apt-get install -y --no-install-recommends busybox-static libelf1"))
}
