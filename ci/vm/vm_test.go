// Package vm tests ci/vm/run: a command in the guest behaves as on the host, and every failure in
// the guest is reported. Where the guest itself does not matter, testdata/fake replaces qemu.
package vm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// TestUsage needs no guest: wrong arguments are reported before anything is booted.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		status int
		says   string
	}{
		{"help", []string{"--help"}, 0, "usage: ci/vm/run"},
		{"no command", nil, 2, "no COMMAND"},
		{"no command behind the dashes", []string{"--"}, 2, "no COMMAND"},
		{"unknown option", []string{"--colour", "--", "true"}, 2, "unknown option --colour"},
		{"option without its value", []string{"--siw"}, 2, "--siw needs a value"},
		{"unknown variant", []string{"--siw", "fast", "--", "true"}, 2, "not fast"},
		{"time limit of nothing", []string{"--timeout", "0", "--", "true"}, 2, "whole number of seconds"},
		{"time limit in words", []string{"--timeout", "soon", "--", "true"}, 2, "not soon"},
		{"directory that is not there", []string{"--dir", "/no/such", "--", "true"}, 2, "no directory /no/such"},
		{"directory that the guest has not", []string{"--dir", "/dev", "--", "true"}, 2, "and not /dev"},
		{"quoted words for the kernel", []string{"--boot", `a="b`, "--", "true"}, 2, "--boot takes letters"},
		{"link with a slash", []string{"--link", "a/b", "--", "true"}, 2, "not a name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := exec.Command("./run", c.args...).CombinedOutput()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			status := 0
			if exit != nil {
				status = exit.ExitCode()
			}
			if status != c.status || !strings.Contains(string(out), c.says) {
				t.Errorf("exit status %d, want %d and a line with %q:\n%s", status, c.status, c.says, out)
			}
		})
	}
}

// TestCommand checks everything that a command may expect, in a guest that waits for another with
// the same output directory, so that both run at the same time. Then the kernel of each guest logs
// what it logs when it is at fault: a warning, after which the command ends as it would have, and
// a panic.
func TestCommand(t *testing.T) {
	vmtest.Need(t)
	out := t.TempDir()
	const together = `
		meet() {
			echo "$1" >"$VM_OUT/$1"
			until ls "$VM_OUT" | grep -qx "$2"; do sleep 0.2; done
			ip address add 192.0.2.7/24 dev d0 && echo "I am $1"
		}
		`
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() {
		result := vmtest.Run(t, vmtest.Options{Out: out, Timeout: 5 * time.Minute}, "bash", "-c", together+`
			meet b a >"$VM_OUT/said" # what is on its way to stdout is lost with the kernel
			echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger; sleep 60`)
		complained(t, result, "sysrq triggered crash")
		if said, err := os.ReadFile(filepath.Join(out, "said")); string(said) != "I am b\n" {
			t.Errorf("the guest beside it wrote %q, %v", said, err)
		}
	})
	spoiled := filepath.Join(vmtest.Root(t), "written-in-the-guest")
	t.Cleanup(func() { os.Remove(spoiled) })
	o := vmtest.Options{Out: out, Env: []string{"GREETING=hello  world"}}
	result := vmtest.Run(t, o, "bash", "-c", together+`
		echo "greeting=$GREETING"
		printf '<%s>\n' "$@"
		echo "pwd=$PWD"
		echo "inside=$VM_INSIDE"
		echo "memlock=$(ulimit -l)"
		echo "shm=$(stat -f -c %T /dev/shm)"
		echo "addresses=$(ip -br address | tr -s ' ' | tr '\n' ';')"
		echo "uid=$(id -u)"
		echo "clock=$(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"
		rdma link
		ls /dev/infiniband
		echo written >written-in-the-guest && echo "root is writable"
		echo written >"$HOME/.govs-vm-test" && echo "home is writable"
		mkdir "$VM_OUT/dir" && seq 1 100000 >"$VM_OUT/dir/numbers"
		echo "to the device" >/dev/stderr
		printf '\000\001\377' # no byte is touched on its way
		sleep 1000 &          # what is left behind ends with the command
		meet a b >&2
		echo "<4>WARNING: CPU: 0 PID: 1 at lib/test.c:1 test" >/dev/kmsg
		exit 7`, "argv0", "two words", `$HOME "quoted" 'too'`, "", "line\nbreak", "*")

	complained(t, result, "at lib/test.c:1")
	if !strings.Contains(result.Stderr, "the command's own exit status was 7\n") {
		t.Errorf("the command's exit status is not told:\n%s", result.Stderr)
	}
	for _, want := range []string{
		"greeting=hello  world\n",
		"<two words>\n<$HOME \"quoted\" 'too'>\n<>\n<line\nbreak>\n<*>\n",
		"pwd=" + vmtest.Root(t) + "\n",
		"inside=1\n",
		"memlock=unlimited\n",
		"shm=tmpfs\n",
		"lo UNKNOWN 127.0.0.1/8", "d0 UNKNOWN 192.0.2.1/24",
		"uid=0\n",
		"link siw0/1 state ACTIVE physical_state LINK_UP netdev d0",
		"rdma_cm\nuverbs0\n",
		"root is writable\n", "home is writable\n",
	} {
		if !strings.Contains(result.Stdout, want) {
			t.Errorf("stdout lacks %q", want)
		}
	}
	// Any other clock is read by a system call, which takes a third of the guest's time.
	if !regexp.MustCompile(`clock=(tsc|kvm-clock)\n`).MatchString(result.Stdout) {
		t.Error("the clock of the guest is neither tsc nor kvm-clock")
	}
	if !strings.HasSuffix(result.Stdout, "\x00\x01\xff") {
		t.Error("stdout does not end with the three bytes written last")
	}
	if t.Failed() {
		t.Logf("stdout:\n%s", result.Stdout)
	}
	if !strings.HasPrefix(result.Stderr, "to the device\nI am a\n") {
		t.Errorf("stderr is not what the command wrote there:\n%s", result.Stderr)
	}
	numbers, err := os.ReadFile(filepath.Join(result.Out, "dir", "numbers"))
	if err != nil || bytes.Count(numbers, []byte("\n")) != 100000 {
		t.Errorf("$VM_OUT brought back %d bytes (%v), want 100000 lines", len(numbers), err)
	}
	if _, err := os.Stat(spoiled); err == nil {
		t.Error("what the command wrote outside of $VM_OUT reached the host")
	}
}

// complained checks that a guest's kernel complained, and that its log is shown.
func complained(t *testing.T, result vmtest.Result, of string) {
	t.Helper()
	if result.Status != vmtest.StatusKernel || !strings.Contains(result.Stderr, of) ||
		!strings.Contains(result.Stderr, "the kernel complained") {
		t.Errorf("exit status %d, want %d, and the kernel's log with %q:\n%s", result.Status,
			vmtest.StatusKernel, of, result.Stderr)
	}
}

// arrival notes when something was first written.
type arrival struct {
	mu    sync.Mutex
	first time.Time
}

func (a *arrival) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.first.IsZero() {
		a.first = time.Now()
	}
	return len(p), nil
}

// fake replaces qemu by testdata/fake for the rest of the test.
func fake(t *testing.T) {
	t.Setenv("PATH", filepath.Join(vmtest.Root(t), "ci", "vm", "testdata", "fake")+":"+os.Getenv("PATH"))
}

// TestTimeout checks the limit, and also that output comes while the command still runs.
// testdata/fake replaces qemu.
func TestTimeout(t *testing.T) {
	vmtest.Need(t)
	fake(t)
	const limit = 3 * time.Second
	var output arrival
	result := vmtest.Run(t, vmtest.Options{Timeout: limit, Stdout: &output}, "bash", "-c",
		`echo partial >$VM_OUT/result; echo ready; exec sleep 1000`)
	ended := time.Now()

	if result.Status != vmtest.StatusTimeout {
		t.Errorf("exit status %d, want %d\n%s", result.Status, vmtest.StatusTimeout, result.Stderr)
	}
	if !strings.Contains(result.Stderr, "time limit of 3 s passed") {
		t.Errorf("the limit is not told: %q", result.Stderr)
	}
	took := ended.Sub(output.first) // the limit begins with the command, shortly before it writes
	if result.Stdout != "ready\n" || took < time.Second || took > limit+2*time.Minute {
		t.Errorf("%q arrived %v before the end, want it as soon as it is written, and the end within %v of that", result.Stdout, took, limit)
	}
	if b, err := os.ReadFile(filepath.Join(result.Out, "result")); err != nil || string(b) != "partial\n" {
		t.Errorf("$VM_OUT brought back %q (%v), want what was there when the time was up", b, err)
	}
}

// TestBootLimit gives a guest less time than any needs to boot: ci/vm/run tries again and gives up,
// and the guest's console shows how far the boot came. The second time the guest is testdata/mute,
// which opens no console, as qemu on a busy host may not within a second.
func TestBootLimit(t *testing.T) {
	vmtest.Need(t)
	t.Setenv("GOVS_VM_BOOT", "1")
	giveUp := func(t *testing.T, wants ...string) {
		result := vmtest.Run(t, vmtest.Options{}, "echo", "not to be seen")
		if result.Status != vmtest.StatusNoGuest || result.Stdout != "" {
			t.Errorf("exit status %d, stdout %q, want %d and nothing", result.Status, result.Stdout, vmtest.StatusNoGuest)
		}
		wants = append(wants, "boot 1 of 3 took more than 1 s", "boot 3 of 3 took more than 1 s",
			"no guest got as far as the command")
		for _, want := range wants {
			if !strings.Contains(result.Stderr, want) {
				t.Errorf("stderr lacks %q:\n%s", want, result.Stderr)
			}
		}
	}
	t.Run("qemu", func(t *testing.T) { giveUp(t) })
	t.Run("no console", func(t *testing.T) {
		t.Setenv("PATH", filepath.Join(vmtest.Root(t), "ci", "vm", "testdata", "mute")+":"+os.Getenv("PATH"))
		giveUp(t, "qemu had not opened it yet")
	})
}

// TestManySplats: a kernel that complains without end, in more lines than a pipe holds, is reported
// like a kernel that complains once. testdata/fake replaces qemu.
func TestManySplats(t *testing.T) {
	vmtest.Need(t)
	fake(t)
	result := vmtest.Run(t, vmtest.Options{}, "bash", "-c", `
		control=${FAKE_OPTIONS#*mount_tag=control,path=} control=${control%%,*}
		seq -f 'line %.0f' 20 >"$control/dmesg"
		seq -f 'WARNING: CPU: 0 PID: %.0f at drivers/infiniband/sw/siw' 21 20000 >>"$control/dmesg"
		exit 3`)
	if result.Status != vmtest.StatusKernel {
		t.Errorf("exit status %d, want %d", result.Status, vmtest.StatusKernel)
	}
	for _, want := range []string{"  | line 16\n", "PID: 100 at", "the command's own exit status was 3"} {
		if !strings.Contains(result.Stderr, want) {
			t.Errorf("stderr lacks %q:\n%.500s", want, result.Stderr)
		}
	}
	if strings.Contains(result.Stderr, "line 15\n") || strings.Contains(result.Stderr, "PID: 102 at") {
		t.Errorf("stderr has more than the lines around the first complaint:\n%.500s", result.Stderr)
	}
}

// TestEndedWhileItStarts sends the script a signal when it has started a process and does not have
// the process's id yet. The script still ends, and leaves nothing. testdata/fake replaces
// qemu.
func TestEndedWhileItStarts(t *testing.T) {
	vmtest.Need(t)
	root := vmtest.Root(t)
	for name, next := range map[string]string{"builder": "builder=$!", "streams": "streams=($!)", "qemu": "qemu=$!",
		"alarm": "alarm=$!"} {
		t.Run(name, func(t *testing.T) {
			// bash reads this before the script, and calls the trap before each of its commands.
			// The builder, which has little to do if the kernel exists, goes on for long.
			hook := filepath.Join(t.TempDir(), "hook")
			err := os.WriteFile(hook, []byte(`set -T
				[[ $0 != */vm/kernel || $SIGNAL_BEFORE != builder=* ]] || sleep 1000
				trap '[[ $0 != */vm/run || $BASH_COMMAND != "$SIGNAL_BEFORE" ]] || kill -TERM $$' DEBUG`), 0o600)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, filepath.Join(root, "ci", "vm", "run"), "--out", "none", "--", "sleep", "1000")
			cmd.WaitDelay = time.Second
			temporary := t.TempDir()
			cmd.Env = append(os.Environ(), "BASH_ENV="+hook, "SIGNAL_BEFORE="+next, "TMPDIR="+temporary,
				"PATH="+filepath.Join(root, "ci", "vm", "testdata", "fake")+":"+os.Getenv("PATH"))
			text, err := cmd.CombinedOutput()
			if status := cmd.ProcessState.ExitCode(); status != 128+int(syscall.SIGTERM) {
				t.Errorf("exit status %d (%v), want that of SIGTERM\n%s", status, err, text)
			}
			if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
				t.Errorf("left in the folder for temporary files: %v (%v)", left, err)
			}
		})
	}
}
