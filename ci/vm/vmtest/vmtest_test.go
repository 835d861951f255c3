package vmtest_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// recorder is a test that records how it ended.
type recorder struct {
	testing.TB
	what string
}

func (t *recorder) Skip(args ...any) { t.end("skip: " + fmt.Sprint(args...)) }

func (t *recorder) Fatal(args ...any) { t.end("fail: " + fmt.Sprint(args...)) }

func (t *recorder) end(what string) {
	t.what = what
	runtime.Goexit()
}

// TestNoGuest checks that tests are skipped on demand, but not if all tests are required.
func TestNoGuest(t *testing.T) {
	t.Setenv("NO_GUEST", "1")
	for require, want := range map[string]string{"": "skip: NO_GUEST=1", "0": "skip: NO_GUEST=1", "1": "fail: REQUIRE_SIW=1 wants every test"} {
		t.Setenv("REQUIRE_SIW", require)
		x := &recorder{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			vmtest.Need(x)
		}()
		<-done
		if !strings.HasPrefix(x.what, want) {
			t.Errorf("REQUIRE_SIW=%q: %q, want %q", require, x.what, want)
		}
	}
}

// TestSelfOfSubtest: a subtest runs in the guest, whatever its name is. testdata/fake of ci/vm
// replaces qemu.
func TestSelfOfSubtest(t *testing.T) {
	t.Run("p2p+crc (all)|a/b", func(t *testing.T) {
		if vmtest.Inside() {
			return
		}
		vmtest.Need(t)
		t.Setenv("GOVS_VM_JOBS", "")
		t.Setenv("PATH", fakeQemu(t)+":"+os.Getenv("PATH"))
		vmtest.Self(t, vmtest.Options{})
	})
}

// fakeQemu returns the folder of a program that replaces qemu.
func fakeQemu(t *testing.T) string {
	t.Helper()
	return filepath.Join(vmtest.Root(t), "ci", "vm", "testdata", "fake")
}

// TestKilled: a test that is killed, as go test does after its time limit, leaves no guest behind.
// testdata/fake of ci/vm replaces qemu.
func TestKilled(t *testing.T) {
	vmtest.Need(t)
	const asVictim = "GOVS_VMTEST_VICTIM"
	if os.Getenv(asVictim) == "1" {
		vmtest.Run(t, vmtest.Options{Stdout: os.Stdout}, "bash", "-c",
			`echo "guest $FAKE_GUEST"; exec sleep 100`)
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilled$")
	temporary := t.TempDir()
	cmd.Env = append(os.Environ(), asVictim+"=1", "TMPDIR="+temporary,
		"PATH="+fakeQemu(t)+":"+os.Getenv("PATH"))
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	guest := 0
	lines := bufio.NewScanner(pipe)
	for guest == 0 && lines.Scan() {
		_, _ = fmt.Sscanf(lines.Text(), "guest %d", &guest)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if guest == 0 {
		t.Fatal("the guest did not say which process it is")
	}
	goesOn := func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", guest))
		return err == nil && !strings.Contains(string(text), ") Z ")
	}
	files := func() []string {
		names, _ := filepath.Glob(filepath.Join(temporary, "govs-vm.*"))
		return names
	}
	for deadline := time.Now().Add(time.Minute); goesOn() || len(files()) > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("the guest, process %d, goes on: %t; its files: %q", guest, goesOn(), files())
		}
		time.Sleep(10 * time.Millisecond)
	}
}
