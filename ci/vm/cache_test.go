package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// TestCache: a cache that can't be written still serves what it has. If no kernel can be made in a
// cache, the error names the cache and what to do. What a killed builder has left is removed.
func TestCache(t *testing.T) {
	vmtest.Need(t)
	testkit.NeedRoot(t, "only root can mount the file systems that this test needs")
	kernel, err := exec.Command("./kernel", "6.1").Output()
	if err != nil {
		t.Fatal(err)
	}
	made := strings.TrimSpace(string(kernel))
	for _, c := range []struct {
		name, prepare string // run in the cache; $1 is the folder of an existing kernel
		folder, says  string // of the cache, and on stderr
		status        int
	}{
		{"read-only", `mkdir "vm/${1##*/}"; mount -o remount,ro .`, "cache", "", 0},
		{"made by another meanwhile", `cp "$1/../packages-6.1" vm
				exec 9>vm/lock; flock 9
				{ timeout 120 tail -n +1 -F "$SAID" 2>/dev/null | grep -q waiting; mkdir "vm/${1##*/}"; } >/dev/null &`,
			"cache",
			"waiting for another process, which makes a kernel in $GOVS_CACHE/vm", 0},
		{"read-only and without the kernel",
			`cp "$1/../packages-6.1" vm; mount -o remount,ro .`, "cache",
			"is not in $GOVS_CACHE/vm, where nothing can be written; GOVS_CACHE can name another folder", 2},
		{"full", `cp "$1/../packages-6.1" vm; mkdir vm/build.000000
				head -c 9m /dev/zero >vm/build.000000/x || true`, "cache",
			"to make a kernel takes 750 MiB in $GOVS_CACHE/vm, which has", 2},
		{"space in its name", `cp "$1/../packages-6.1" vm`, "a cache",
			"can't build a module in $GOVS_CACHE/vm: its name has a space", 2},
		{"no folder", `rmdir vm; touch vm`, "cache",
			"there is no folder $GOVS_CACHE/vm, and none can be made", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			cache := filepath.Join(t.TempDir(), c.folder)
			if err := os.Mkdir(cache, 0o755); err != nil {
				t.Fatal(err)
			}
			said, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
			if err != nil {
				t.Fatal(err)
			}
			defer said.Close()
			cmd := exec.Command("unshare", "--mount", "bash", "-ec", `
				mount -t tmpfs -o size=8m cache "$GOVS_CACHE"
				(cd "$GOVS_CACHE" && mkdir vm && eval "$2") 2>/dev/null
				status=0
				./kernel 6.1 || status=$?
				ls -d "$GOVS_CACHE"/vm/build.* 2>/dev/null || true
				exit $status`, "bash", made, c.prepare)
			cmd.Env = append(os.Environ(), "GOVS_CACHE="+cache, "GOVS_LISTS_FRESH=yes", "SAID="+said.Name())
			cmd.Stderr = said
			stdout, err := cmd.Output()
			stderr, readErr := os.ReadFile(said.Name())
			if readErr != nil {
				t.Fatal(readErr)
			}
			want := ""
			if c.status == 0 {
				want = filepath.Join(cache, "vm", filepath.Base(made)) + "\n"
			}
			if cmd.ProcessState.ExitCode() != c.status || string(stdout) != want {
				t.Errorf("%v, stdout %q, want status %d and %q", err, stdout, c.status, want)
			}
			says := strings.ReplaceAll(c.says, "$GOVS_CACHE", cache)
			if !strings.Contains(string(stderr), says) || c.says == "" && len(stderr) > 0 {
				t.Errorf("stderr lacks %q, or has more:\n%s", says, stderr)
			}
		})
	}
}

// TestRemember: a remembered line is written whole, and failing to write one is no error.
func TestRemember(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("bash", "-euc", `. ../lib.sh
		remember "$1/answer" yes
		remember "$1/none/answer" no
		cat "$1/answer"`, "bash", dir)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "yes\n" {
		t.Errorf("%v: %q, want yes", err, out)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("left behind: %v (%v)", files, err)
	}
}
