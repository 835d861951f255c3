package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ibverbs/examples/internal/exampletest"
)

// testKilled kills the server of a mount, with and without a process that waits for it.
// kernel-notes/9p-server-gone.md describes what Linux does.
func testKilled(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		s := serve(t, "engine")
		mnt := s.mount(t, "msize=65536")
		put(t, filepath.Join(s.dir, "f"))
		f, err := os.Open(filepath.Join(mnt, "f"))
		if err != nil {
			t.Fatal(err)
		}
		s.Kill()
		fails(t, mnt)
		if n, err := f.ReadAt(make([]byte, 10), 0); !errors.Is(err, syscall.EIO) {
			t.Errorf("read: %d, %v", n, err)
		}
		_ = f.Close() // an error, or not: nothing was written
	})
	t.Run("under way", testKilledUnderWay)
	t.Run("umount -f", testForcedUnmount)
	t.Run("another server", func(t *testing.T) { testCalls(t, serve(t, "engine")) })
}

func put(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(name, random(1<<20), 0o666); err != nil {
		t.Fatal(err)
	}
}

// fails waits until calls on a mount fail. A process makes each call, and is killed if it takes too
// long: a request that Linux sends before it knows that the server is gone is never answered.
func fails(t *testing.T, mnt string) {
	t.Helper()
	within(t, "an error", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		stat := exec.CommandContext(ctx, "stat", filepath.Join(mnt, "new"))
		stat.Env = append(os.Environ(), "LC_ALL=C")
		out, err := stat.CombinedOutput()
		if ctx.Err() != nil {
			t.Logf("stat got no answer: %v", err)
		}
		return strings.Contains(string(out), "Input/output error")
	})
}

// within waits until a condition holds.
func within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(exampletest.Patience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%v without %s", exampletest.Patience, what)
		}
	}
}

// waiter starts a process that comes to wait for the server of a mount. waits reports whether the
// process waits for two seconds in the kernel's function at, because programs are also read from a
// 9p mount, the one with the host's files. end ends the process by a signal.
func waiter(t *testing.T, at, name string, args ...string) (waits func() bool, end func(syscall.Signal)) {
	t.Helper()
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waits = func() bool {
		for range 20 {
			stack, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/stack")
			if err != nil || !strings.Contains(string(stack), "p9_client_rpc") || !strings.Contains(string(stack), at) {
				return false
			}
			time.Sleep(100 * time.Millisecond)
		}
		return true
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return waits, func(s syscall.Signal) {
		t.Helper()
		_ = cmd.Process.Signal(s) // it may have ended
		select {
		case err := <-ended:
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != s {
				t.Errorf("%s ended with %v, want by %v", name, err, s)
			}
		case <-time.After(exampletest.Patience):
			t.Fatalf("%s is still there %v after %v", name, exampletest.Patience, s)
		}
	}
}

// testKilledUnderWay stops a server, so that a process's read is under way, and then kills it.
func testKilledUnderWay(t *testing.T) {
	s := serve(t, "engine")
	mnt := s.mountOnly(t, "msize=65536")
	put(t, filepath.Join(s.dir, "f"))
	s.Signal(syscall.SIGSTOP)
	waits, end := waiter(t, "p9_client_rpc", "cat", filepath.Join(mnt, "f"))
	within(t, "a request of cat's", waits)
	s.Kill()
	fails(t, mnt) // whoever comes now
	if !waits() {
		t.Error("cat waits no longer: kernel-notes/9p-server-gone.md is out of date")
	}
	end(syscall.SIGTERM)
	loses(t, func() {
		if err := unix.Unmount(mnt, 0); err != nil {
			t.Errorf("umount: %v", err)
		}
	})
}

// testForcedUnmount unmounts with force after the server's end.
func testForcedUnmount(t *testing.T) {
	s := serve(t, "engine")
	mnt := s.mountOnly(t, "msize=65536")
	put(t, filepath.Join(s.dir, "f"))
	if _, err := os.ReadFile(filepath.Join(mnt, "f")); err != nil {
		t.Error(err)
	}
	s.Kill()
	fails(t, mnt)
	loses(t, func() {
		waits, end := waiter(t, "cleanup_mnt", "umount", "-f", mnt)
		within(t, "a request of umount's", waits)
		if !waits() {
			t.Error("umount waits no longer: kernel-notes/9p-server-gone.md is out of date")
		}
		end(syscall.SIGKILL)
		if mounts, err := os.ReadFile("/proc/mounts"); err != nil || strings.Contains(string(mounts), mnt) {
			t.Errorf("still mounted, or %v", err)
		}
	})
}

// splat matches what fails a run of the guest if the kernel logs it, as in ci/vm/verdict.sh. lost
// matches what the kernel logs when a client has lost memory.
var (
	splat = regexp.MustCompile(`WARNING:|BUG:|kernel BUG at|Oops|general protection fault[,:]|Call Trace:|` +
		`refcount_t:|INFO: task .* blocked for|INFO: possible|possible (circular|recursive) locking|` +
		`inconsistent lock state|suspicious RCU|UBSAN|KASAN|unregister_netdevice: waiting|Kernel panic`)
	lost = regexp.MustCompile(`(?s)\[ cut here \].{1,200}` +
		`Slab cache still has objects when called from p9_client_destroy.*?\[ end trace `)
)

// loses calls unmount, after which the kernel logs that the client has lost memory. The end of the
// guest's run would find that message, too, so loses empties the log if it has no other.
func loses(t *testing.T, unmount func()) {
	t.Helper()
	if log := kernelLog(t); splat.MatchString(log) {
		t.Fatalf("the kernel has complained before the unmount:\n%s", log)
	}
	unmount()
	log := kernelLog(t)
	if len(lost.FindAllString(log, -1)) != 1 || splat.MatchString(lost.ReplaceAllString(log, "")) {
		t.Errorf("the kernel logs, of an unmount after the server's end:\n%s\nwant %v alone", log, lost)
		return
	}
	if _, err := unix.Klogctl(unix.SYSLOG_ACTION_CLEAR, nil); err != nil {
		t.Error(err)
	}
}

// kernelLog returns what the kernel has logged since the log was emptied.
func kernelLog(t *testing.T) string {
	t.Helper()
	b := make([]byte, 1<<20)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}
