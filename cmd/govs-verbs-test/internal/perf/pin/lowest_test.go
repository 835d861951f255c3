package pin

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const asLowest = "GOVS_TEST_PRINT_POLICIES"

// printPolicies gives this process the lowest policy, and prints the policy of each thread,
// one that was made afterwards among them.
func printPolicies() error {
	if err := Lowest(); err != nil {
		return err
	}
	hold, held := make(chan struct{}), make(chan struct{})
	go func() {
		runtime.LockOSThread() // so that it ends with the goroutine
		close(held)
		<-hold
	}()
	<-held
	defer close(hold)
	tids, err := threads()
	if err != nil {
		return err
	}
	for _, tid := range tids {
		attr, err := unix.SchedGetAttr(tid, 0)
		if err != nil {
			return err
		}
		fmt.Println(attr.Policy)
	}
	return nil
}

func TestLowest(t *testing.T) {
	cmd, out := child("")
	cmd.Env = append(cmd.Env, asLowest+"=1")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(out.String())
	if len(lines) < 2 {
		t.Fatalf("the child has reported too few threads: %q", lines)
	}
	for _, l := range lines {
		if l != fmt.Sprint(unix.SCHED_IDLE) {
			t.Errorf("a thread has the policy %s, want %d", l, unix.SCHED_IDLE)
		}
	}
	if attr, err := unix.SchedGetAttr(os.Getpid(), 0); err != nil || attr.Policy == unix.SCHED_IDLE {
		t.Errorf("this process has the policy %+v, %v", attr, err)
	}
}
