//go:build linux && amd64

package tracer_test

import (
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/provider/bridge/recording"
	"github.com/govs-rdma/govs/provider/bridge/recording/tracer"
)

// asProgram, set in the environment of the test's binary, makes the binary the recorded program.
const asProgram = "GOVS_TEST_AS_TRACEE"

func TestMain(m *testing.M) {
	switch os.Getenv(asProgram) {
	case "":
		os.Exit(m.Run())
	case "threads":
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 20 {
					_, _ = os.Open("/dev/infiniband/uverbs99")
					time.Sleep(time.Millisecond)
				}
			})
		}
		all.Wait()
		_, _ = os.Open("/dev/null")
		os.Exit(7)
	case "wait":
		time.Sleep(time.Hour)
	}
}

func start(t *testing.T, what string) *tracer.Tracee {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asProgram+"="+what)
	tracee, err := tracer.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tracee.Kill)
	return tracee
}

// TestThreads records a program of several threads, without what it does with other files.
// TestRecordSiw of the command has programs that use a device.
func TestThreads(t *testing.T) {
	rec, status, err := start(t, "threads").Wait()
	if err != nil || status != 7 || len(rec.Entries) != 160 {
		t.Fatalf("status %d, %v, %d calls, want 160", status, err, len(rec.Entries))
	}
	for _, e := range rec.Entries {
		if e.File != recording.Uverbs || e.Op != recording.Open || e.Errno == 0 || e.Thread == 0 {
			t.Errorf("recorded: %s", e.AppendText(nil))
		}
	}
}

// TestKill ends a program; another program, which the tracer does not trace, continues.
func TestKill(t *testing.T) {
	other := exec.Command("cat")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	tracee := start(t, "wait")
	select {
	case <-tracee.Done():
		t.Fatal("the program has ended")
	case <-time.After(100 * time.Millisecond):
	}
	tracee.Kill()
	if _, status, err := tracee.Wait(); err != nil || status != -1 {
		t.Errorf("after SIGKILL: status %d, %v", status, err)
	}
	_ = in.Close()
	if err := other.Wait(); err != nil {
		t.Errorf("another child: %v", err)
	}
}

// TestStart: a program that cannot be started is an error.
func TestStart(t *testing.T) {
	if _, err := tracer.Start(exec.Command("/no/such/program")); err == nil {
		t.Error("a program that does not exist was started")
	}
	cmd := exec.Command("true")
	cmd.Stdout = &nothing{}
	if _, err := tracer.Start(cmd); err == nil {
		t.Error("a program that writes to no file was started")
	}
}

type nothing struct{}

func (*nothing) Write(b []byte) (int, error) { return len(b), syscall.EBADF }
