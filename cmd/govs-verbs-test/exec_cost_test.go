//go:build !race

package main

import (
	"errors"
	"fmt"
	"math"
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
)

// environment is the environment that exec gives to a program, which can then run without exec.
func (b *bridged) environment() []string {
	b.t.Helper()
	return strings.Split(string(testkit.Must(b.command(nil, "env").Output())(b.t)), "\n")
}

// sharedMemory names the existing shared memory, which outlives processes.
func sharedMemory(t *testing.T) (names []string) {
	t.Helper()
	for _, entry := range testkit.Must(os.ReadDir("/dev/shm"))(t) {
		names = append(names, entry.Name())
	}
	for _, kind := range []string{"shm", "sem", "msg"} {
		// A system without System V's shared memory has none to leave.
		if list, err := os.ReadFile("/proc/sysvipc/" + kind); err == nil {
			for line := range strings.Lines(string(list)) {
				names = append(names, kind+" "+strings.Join(strings.Fields(line), " "))
			}
		}
	}
	return names
}

// TestExecManyProcesses runs many programs one after the other, which make objects, listen on the
// same port and end without cleaning up. They leave no process, file or shared memory, and the
// port is free for the next program.
func TestExecManyProcesses(t *testing.T) {
	const processes = 25
	b := newBridged(t)
	once := compiled(t, "once", "-libverbs", "-lrdmacm")
	temp := t.TempDir()
	env := append(b.environment(), "TMPDIR="+temp)
	port := fmt.Sprint(freePort())
	files := func() (list []string) {
		for _, dir := range []string{temp, b.cache} {
			testkit.OK(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
				list = append(list, path)
				return err
			}))
		}
		return list
	}
	had, shared := files(), sharedMemory(t)
	var used time.Duration
	for count := range processes {
		cmd := exec.Command(once, port)
		cmd.Env = env
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("process %d: %v\n%s", count, err, clip(string(out)))
		}
		used += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		if err := syscall.Kill(-cmd.ProcessState.Pid(), 0); err != syscall.ESRCH {
			t.Fatalf("process %d has left a process in its group: %v", count, err)
		}
	}
	t.Logf("%d processes in %v of the CPU", processes, used.Round(time.Millisecond))
	if now := files(); !slices.Equal(now, had) {
		t.Errorf("after %d processes there are the files\n%v, want\n%v", processes, now, had)
	}
	for _, name := range sharedMemory(t) {
		if !slices.Contains(shared, name) {
			t.Errorf("shared memory that was not there before: %s", name)
		}
	}
}

// TestExecCost: a program that opens no device pays little for the library before libc.
func TestExecCost(t *testing.T) {
	const rounds = 60
	b := newBridged(t)
	env := b.environment()
	// The minimum of many runs is the program's own cost; the rest is other load of the machine.
	least := func(to *time.Duration, mem *int, env []string) {
		t.Helper()
		cmd := exec.Command("true")
		cmd.Env = env
		testkit.OK(t, cmd.Run())
		*to = min(*to, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
		cmd = exec.Command("grep", "RssAnon", "/proc/self/status")
		cmd.Env = env
		kib := strings.Fields(string(testkit.Must(cmd.Output())(t)))[1]
		*mem = min(*mem, testkit.Must(strconv.Atoi(kib))(t))
	}
	plain, bridged := time.Hour, time.Hour
	plainMem, bridgedMem := math.MaxInt, math.MaxInt
	for range rounds {
		least(&plain, &plainMem, []string{"PATH=" + os.Getenv("PATH")})
		least(&bridged, &bridgedMem, env)
	}
	t.Logf("true takes %v and grep %d KiB, with the library %v and %d KiB", plain, plainMem, bridged,
		bridgedMem)
	if bridged > 2*plain+time.Millisecond {
		t.Errorf("true takes %v, with the library %v", plain, bridged)
	}
	if bridgedMem > plainMem+256 {
		t.Errorf("grep has %d KiB for itself, with the library %d KiB", plainMem, bridgedMem)
	}
}

// TestExecFileCost: a program's work with files and with memory that it has not registered costs
// about as much as without the library, even if the program has many regions.
func TestExecFileCost(t *testing.T) {
	b := newBridged(t)
	program := compiled(t, "filecost", "-O2", "-libverbs", "-Wno-unused-function")
	dir := t.TempDir()
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "a-file"), nil, 0o600))
	run := func(env []string, regions string) map[string]int {
		cmd := exec.Command(program, dir, regions)
		cmd.Env = env
		took := make(map[string]int)
		for line := range strings.Lines(string(testkit.Must(cmd.Output())(t))) {
			words := strings.Fields(line)
			took[words[0]] = testkit.Must(strconv.Atoi(words[1]))(t)
		}
		return took
	}
	env := b.environment()
	testkit.Once(t, func() error {
		var all error
		plain, bridged := run(nil, "0"), run(env, "10000")
		for what, least := range plain {
			t.Logf("%s takes %d ns, with the library %d ns", what, least, bridged[what])
			if bridged[what] > least*5/4+50 {
				all = errors.Join(all, fmt.Errorf("%s takes %d ns, with the library %d ns", what, least, bridged[what]))
			}
		}
		return all
	})
}
