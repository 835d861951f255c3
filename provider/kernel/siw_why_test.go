//go:build cgo && linux && !nokernel

package kernel

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// tryOpening is set in the environment of a process that only tries to open a device. It is a
// separate process, because what the libraries open stays open.
const tryOpening = "GOVS_TRY_OPENING"

// tryToOpen opens a device and prints the result.
func tryToOpen() {
	_, err := New().Devices()
	fmt.Println("Devices:", err)
	dev, err := New().Open("")
	fmt.Println("Open:", err)
	if err == nil {
		_, err = dev.CreateEventChannel()
		fmt.Println("CreateEventChannel:", err)
	}
}

// testWhyNoDevice removes things that a device needs, one at a time, and checks that the error
// names them. In each case the libraries only return that there is no device.
func testWhyNoDevice(t *testing.T) {
	const uverbs = "/dev/infiniband/uverbs0"
	exe := copyOfMyself(t)
	for _, c := range []struct {
		name   string
		spoil  func() error
		mend   func() error
		nobody bool // as a user without privileges
		says   []string
	}{
		{
			name:   "nothing is wrong",
			spoil:  func() error { return nil },
			mend:   func() error { return nil },
			nobody: true,
			says:   []string{"Devices: <nil>", "Open: <nil>", "CreateEventChannel: <nil>"},
		},
		{
			name:   "no rights to the device",
			spoil:  func() error { return os.Chmod(uverbs, 0o600) },
			mend:   func() error { return os.Chmod(uverbs, 0o666) },
			nobody: true,
			says:   []string{"Open: ", syscall.EACCES.Error(), uverbs},
		},
		{
			name:   "no rights to the connection manager",
			spoil:  func() error { return os.Chmod(rdmaCMNode, 0o600) },
			mend:   func() error { return os.Chmod(rdmaCMNode, 0o666) },
			nobody: true,
			says:   []string{"CreateEventChannel: ", syscall.EACCES.Error(), rdmaCMNode},
		},
		{
			name:  "no connection manager",
			spoil: func() error { return os.Rename(rdmaCMNode, rdmaCMNode+".away") },
			mend:  func() error { return os.Rename(rdmaCMNode+".away", rdmaCMNode) },
			says:  []string{"CreateEventChannel: ", syscall.ENOENT.Error(), "modprobe"},
		},
		{
			name:  "no device node",
			spoil: func() error { return os.Rename(uverbs, uverbs+".away") },
			mend:  func() error { return os.Rename(uverbs+".away", uverbs) },
			says: []string{"Devices: ibv_get_device_list: the kernel has siw0, but " + uverbs + " is missing",
				"Open: rdma_get_devices: the kernel has siw0"},
		},
		{
			name:  "no driver in user space",
			spoil: func() error { return unix.Mount(t.TempDir(), "/etc/libibverbs.d", "", unix.MS_BIND, "") },
			mend:  func() error { return unix.Unmount("/etc/libibverbs.d", 0) },
			says: []string{"Devices: ibv_get_device_list: the kernel has siw0, but libibverbs has no driver",
				"Open: rdma_get_devices: the kernel has siw0"},
		},
	} {
		if err := c.spoil(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), tryOpening+"=1")
		if c.nobody {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		out, err := cmd.CombinedOutput()
		if mended := c.mend(); mended != nil {
			t.Fatalf("%s: %v", c.name, mended)
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, want := range c.says {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: no %q in\n%s", c.name, want, out)
			}
		}
	}
	if _, err := New().Open("no-such-device"); provider.Errno(err) != syscall.ENODEV || !strings.Contains(err.Error(), "of that name") {
		t.Errorf("a name that nobody has: %v", err)
	}
}

// copyOfMyself copies the test's program to a place where everybody may run it.
func copyOfMyself(t *testing.T) string {
	t.Helper()
	dir := testkit.Must(os.MkdirTemp("", "govs"))(t)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	src := testkit.Must(os.Open("/proc/self/exe"))(t)
	defer src.Close()
	name := filepath.Join(dir, "exe")
	dst := testkit.Must(os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o755))(t)
	if _, err := io.Copy(dst, src); err != nil {
		t.Fatal(err)
	}
	if err := dst.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}
