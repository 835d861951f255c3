package worker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asWorker, in the environment, makes the test's binary a worker.
const asWorker = "GOVS_TEST_AS_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) == "" {
		goleak.VerifyTestMain(m)
		return
	}
	in, err := Stdin()
	if err == nil {
		err = Serve(in, os.Stdout, double)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// double is the order that the test's workers carry out. It can't double a negative number, and 0
// takes forever.
func double(n int) (int, error) {
	switch {
	case n < 0:
		return n, errors.New("negative")
	case n == 0:
		time.Sleep(time.Hour)
	}
	return 2 * n, nil
}

func startWorker(t *testing.T) *Process[int, int] {
	t.Helper()
	cpus, err := CPUs()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asWorker+"=1")
	p, err := Start[int, int](cmd, cpus[0])
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestOrder: the caller gets the answers and errors of its orders, and the process goes on after an
// order that it could not carry out.
func TestOrder(t *testing.T) {
	p := startWorker(t)
	for n, want := range map[int]int{1: 2, 2: 4} {
		if got, err := p.Order(t.Context(), n, time.Minute); got != want || err != nil {
			t.Errorf("order %d is answered by %d, %v; want %d", n, got, err, want)
		}
		if got, err := p.Order(t.Context(), -n, time.Minute); got != -n || err == nil ||
			err.Error() != "negative" {
			t.Errorf("order %d is answered by %d, %v; want it back with the error", -n, got, err)
		}
	}
	if p.Failed() {
		t.Error("the process counts as failed after orders that it could not carry out")
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestNoAnswer: after a late or missing answer no further order is given, because the late answer
// would count as the answer to the next order.
func TestNoAnswer(t *testing.T) {
	p := startWorker(t)
	for range 2 {
		if _, err := p.Order(t.Context(), 0, time.Millisecond); err == nil ||
			err.Error() != "no answer in 1ms" {
			t.Errorf("an order that takes for ever: %v", err)
		}
	}
	if !p.Failed() {
		t.Error("the process does not count as failed")
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("closing a process that was killed: %v", err)
	}
}

// TestNotUnderstood: a process that does not understand an order ends, and Close returns what it
// wrote to stderr.
func TestNotUnderstood(t *testing.T) {
	p := startWorker(t)
	if _, err := p.in.Write([]byte("perhaps\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Order(t.Context(), 1, time.Minute); err == nil || !p.Failed() {
		t.Errorf("an order to a process that has ended: %v", err)
	}
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "reading an order: ") {
		t.Errorf("closing a process that did not understand an order: %v", err)
	}
}

// TestOnCPU: a command runs on its CPU from the start, and with the requested policy.
func TestOnCPU(t *testing.T) {
	cpus, err := CPUs()
	if err != nil {
		t.Fatal(err)
	}
	for _, cpu := range cpus {
		cmd := exec.Command("sh", "-c", "grep Cpus_allowed_list: /proc/self/status; chrt --pid $$")
		if err := errors.Join(WhenIdle(cmd), OnCPU(cmd, cpu)); err != nil {
			t.Fatal(err)
		}
		out, err := cmd.Output()
		if text := string(out); err != nil || !strings.Contains(text, fmt.Sprintf("list:\t%d\n", cpu)) ||
			!strings.Contains(text, "SCHED_IDLE") {
			t.Errorf("%s prints %s, %v; want CPU %d and SCHED_IDLE", cmd, text, err, cpu)
		}
	}
	if err := OnCPU(exec.Command("govs-no-such-program"), cpus[0]); err == nil {
		t.Error("a program that is none has a CPU")
	}
}
