package vm

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// TestOutside tests the project in testdata/outside, a C program and a Go module, on siw. A copy
// outside the tree is tested, with nothing of the tree but the command's binary and what is
// linked into the test's. In the same guest, siw and the local engine are run against each other.
func TestOutside(t *testing.T) {
	vmtest.Need(t, "kernel", "witnesses")
	dir := t.TempDir()
	buildOutside(t, dir)
	t.Run("vm", func(t *testing.T) { outsideInGuest(t, dir) })

	// Here testdata/fake replaces qemu, which saves a boot: all tests of the tree show already that
	// the same scripts boot a guest and run tests there.
	t.Run("vmtest", func(t *testing.T) {
		cmd := exec.Command("./outside.test", "-test.v", "-test.run=^TestBoots$")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOVS_VM_JOBS=", "REQUIRE_SIW=1",
			"PATH="+filepath.Join(vmtest.Root(t), "ci", "vm", "testdata", "fake")+":"+os.Getenv("PATH"))
		text, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(text), "in the guest:\n") ||
			strings.Count(string(text), "--- PASS: TestBoots ") != 2 {
			t.Errorf("%v, want a test that passes in the guest and outside:\n%s", err, text)
		}
	})
}

// outsideInGuest runs the project's programs, and then an agent of the suite, in a guest.
func outsideInGuest(t *testing.T, dir string) {
	ns, out := tapNamespace(t), t.TempDir()
	command := func(args ...string) *exec.Cmd {
		args = append([]string{"netns", "exec", ns, "./govs-verbs-test"}, args...)
		cmd := exec.CommandContext(t.Context(), "ip", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOVS_AGENT_SECRET=a secret of a test", "REQUIRE_SIW=")
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		return cmd
	}
	guest := command("vm", "--siw", "crc", "--rxe", "--net", "guest=10.0.0.2/24", "--memory", "1024",
		"--cpus", "2", "--out", out, "--env", "GREETING=hello", "--env", "GOVS_AGENT_SECRET", "--",
		"bash", "-c", `
		./devices && ./outside.test -test.v -test.run='^TestDevices$' || exit
		echo "$GREETING from siw=$VM_SIW in $PWD"
		echo "$(nproc) processors, $(sed -n 's/MemTotal: *//p' /proc/meminfo)"
		echo brought back >"$VM_OUT/result"
		echo written >spoiled
		echo "to stderr" >&2
		# siw's CRCs may be wrong where its sends fill the send buffer (kernel-notes/siw-two-senders.md).
		echo 4096 8388608 8388608 >/proc/sys/net/ipv4/tcp_wmem
		./govs-verbs-test agent --listen 10.0.0.2:7400 --provider kernel --scale 10 &
		until [ -e "$VM_OUT/enough" ]; do sleep 0.2; done
		exit 7`)
	var stderr strings.Builder
	guest.Stderr = &stderr
	pipe, err := guest.StdoutPipe()
	if err == nil {
		err = guest.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var stdout strings.Builder
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		stdout.WriteString(lines.Text() + "\n")
		if !strings.Contains(lines.Text(), "listening on 10.0.0.2:7400") {
			continue
		}
		suite, err := command("run", "--peer", "10.0.0.2:7400", "--matrix", "--providers",
			"engine,kernel@peer", "--no-tshark", "--report", "report", "--scale", "10", "--only",
			"send/one-mib,write/one-fpdu,read/one-mib,order/fence,conn/reject,"+
				"protection/read-no-right,protection/write-beyond-end,memory/iova,"+
				"mpa/request-markers,rdmap/response-second-to").CombinedOutput()
		fmt.Fprintf(&stdout, "%s(%v)\n", suite, err)
		if err := os.WriteFile(filepath.Join(out, "enough"), nil, 0o666); err != nil {
			t.Error(err)
		}
	}
	if err := guest.Wait(); guest.ProcessState.ExitCode() != 7 {
		t.Errorf("%v, want the command's exit status 7", err)
	}
	for _, want := range []string{
		"siw0: iWARP, active\n", "rxe0: InfiniBand or RoCE, active\n",
		"--- PASS: TestDevices ",
		"hello from siw=crc in " + dir + "\n",
		"2 processors, 9", // less than 1024 MiB by what the kernel takes
		"engine->kernel@peer", "kernel@peer->engine", "the suite passed\n",
		// From siw's profile.
		"siw-remote-read-unchecked, in ", "in 1 run: memory/iova\n", // UNSUPPORTED
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("stdout, or the suite's output, lacks %q", want)
		}
	}
	// A guest that stood still and was booted again is reported before the command begins.
	before, ok := strings.CutSuffix(stderr.String(), "to stderr\n")
	if !ok || before != "" && !strings.HasPrefix(before, "run: boot 1 of 3 took more than ") {
		t.Errorf("stderr is not what the command wrote there:\n%s", stderr.String())
	}
	if text, err := os.ReadFile(filepath.Join(out, "result")); string(text) != "brought back\n" {
		t.Errorf("--out got %q (%v)", text, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "spoiled")); err == nil {
		t.Error("what the command wrote in its folder reached the host")
	}
	if t.Failed() {
		t.Logf("%s%s", stdout.String(), stderr.String())
	}
}

// buildOutside makes the project's programs in dir, as a CI job does, and the command. During the
// build there is a copy of govs whose files can't be executed, as in the go command's module cache.
func buildOutside(t *testing.T, dir string) {
	t.Helper()
	root := vmtest.Root(t)
	command := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOPROXY=off")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s%s", cmd, err, out, stderr.String())
		}
		return strings.TrimSpace(string(out))
	}
	tags := strings.Fields(command(root, "ci/build", "--tags"))
	command(root, "go", append(append([]string{"build", "-buildvcs=false"}, tags...),
		"-o", filepath.Join(dir, "govs-verbs-test"), "./cmd/govs-verbs-test")...)

	module := filepath.Join(dir, "govs")
	copyFiles(t, root, module, "go.mod", "go.sum", "ci/*.go", "ci/deps", "ci/lib.sh", "ci/vm/*",
		"ci/vm/mended/*", "ci/vm/vmtest/*.go")
	copyFiles(t, "testdata/outside", dir, "*", "c/*")
	err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/outside\n"+
		"go 1.26.0\nrequire github.com/govs-rdma/govs v0.1.0\n"+
		"replace github.com/govs-rdma/govs => ./govs\n"), 0o666)
	if err != nil {
		t.Fatal(err)
	}
	command(dir, "go", "test", "-c", "-o", "outside.test", ".")
	command(dir, "cc", "-Wall", "-Wextra", "-Werror", "-o", "devices", "c/devices.c", "-libverbs")
	if err := os.RemoveAll(module); err != nil {
		t.Fatal(err)
	}
}

// copyFiles copies the files that match patterns to another folder, with the same paths.
func copyFiles(t *testing.T, from, to string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(from, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %q (%v)", pattern, files, err)
		}
		for _, file := range files {
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			if info.IsDir() {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			name := filepath.Join(to, strings.TrimPrefix(file, from))
			if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, text, 0o444); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// tapNamespace makes a network namespace with the tap interface "guest", whose address is 10.0.0.1,
// and returns its name. It needs root.
func tapNamespace(t *testing.T) string {
	t.Helper()
	testkit.NeedRoot(t, "network namespaces need root")
	ns := fmt.Sprintf("govs-vm%d", os.Getpid())
	ip(t, "netns add "+ns)
	t.Cleanup(func() { ip(t, "netns del "+ns) })
	for _, line := range []string{"link set lo up", "tuntap add guest mode tap",
		"address add 10.0.0.1/24 dev guest", "link set guest up"} {
		ip(t, "-n "+ns+" "+line)
	}
	return ns
}

// ip runs iproute2's command.
func ip(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", line, err, out)
	}
}
