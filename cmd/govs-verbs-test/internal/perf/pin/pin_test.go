package pin

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const asChild = "GOVS_TEST_PRINT_CPUS"

// TestMain makes the test's binary a program that says where it runs.
func TestMain(m *testing.M) {
	pinTo, child := os.LookupEnv(asChild)
	if !child {
		os.Exit(m.Run())
	}
	if cpu, err := strconv.Atoi(pinTo); err == nil {
		if err := Self(cpu); err != nil {
			panic(err)
		}
	}
	tids, err := threads()
	if err != nil {
		panic(err)
	}
	for _, tid := range tids {
		b, err := os.ReadFile("/proc/self/task/" + strconv.Itoa(tid) + "/status")
		if err != nil {
			continue // gone
		}
		for line := range strings.Lines(string(b)) {
			if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				os.Stdout.WriteString(strings.TrimSpace(list) + "\n")
			}
		}
	}
	os.Exit(0)
}

// child is the test's binary as that program. It pins itself, if that is a number.
func child(self string) (*exec.Cmd, *strings.Builder) {
	var out strings.Builder
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asChild+"="+self)
	cmd.Stdout = &out
	return cmd, &out
}

func wantOnly(t *testing.T, cmd *exec.Cmd, out *strings.Builder, cpu int) {
	t.Helper()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(out.String())
	if len(lines) == 0 {
		t.Fatal("the child said nothing")
	}
	for _, l := range lines {
		if l != strconv.Itoa(cpu) {
			t.Errorf("a thread may run on CPUs %s, want %d", l, cpu)
		}
	}
}

func TestPinning(t *testing.T) {
	cpus, err := CPUs()
	if err != nil || len(cpus) == 0 || !slices.IsSorted(cpus) {
		t.Fatalf("CPUs %v: %v", cpus, err)
	}
	for _, cpu := range cpus {
		cmd, out := child(strconv.Itoa(cpu))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		wantOnly(t, cmd, out, cpu)
	}
	if now, err := CPUs(); err != nil || !slices.Equal(now, cpus) {
		t.Errorf("afterwards we may run on %v, %v; before on %v", now, err, cpus)
	}
}

func TestNoSuchCPU(t *testing.T) {
	for _, cpu := range []int{-1, 1023, 1 << 20} {
		if err := Self(cpu); err == nil {
			t.Errorf("Self(%d) is no error", cpu)
		}
	}
}
