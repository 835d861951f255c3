// Package ondevice runs tests of the engine again on a kernel device in the guest: siw or rxe.
package ondevice

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider/kernel"
)

// Device is a device of the guest.
type Device struct {
	Name   string // of the device: siw0
	Netdev string // the network interface under it
	Addr   string // of Netdev
	opts   vmtest.Options
}

// The devices of the guest. A guest has only one of them, so the system chooses it for every
// address.
var (
	Siw = Device{"siw0", "d0", "192.0.2.1", vmtest.Options{}}
	Rxe = Device{"rxe0", "d1", "198.51.100.1", vmtest.Options{Link: "none", Rxe: true}}
)

// OnSiw reports whether the test runs on siw, the guest's iWARP device.
func OnSiw() bool { return on(Siw) }

// OnRxe reports whether the test runs on rxe, the guest's RoCE device.
func OnRxe() bool { return on(Rxe) }

// OnKernel reports whether the test runs on siw or rxe.
func OnKernel() bool { return os.Getenv("GOVS_PROVIDER") == "kernel" }

func on(d Device) bool { return OnKernel() && os.Getenv("GOVS_DEVICE") == d.Name }

// Netdev returns the network interface under the device that the test runs on, "" on the
// engine.
func Netdev() string {
	for _, d := range []Device{Siw, Rxe} {
		if on(d) {
			return d.Netdev
		}
	}
	return ""
}

// Run runs the tests and examples of the calling test's package that match pattern, on the device,
// with GOVS_PROVIDER=kernel. It boots a guest with the device, unless the caller is in one already.
// leftOut has the tests that do not hold for the device, by name, each with the reason. Run fails t
// if one of the other tests fails, is skipped or does not run, or if leftOut names an unknown test.
func Run(t *testing.T, d Device, pattern string, leftOut map[string]string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, skip, err := choose(exe, pattern, leftOut)
	if err != nil {
		t.Fatal(err)
	}
	for name, why := range leftOut {
		t.Logf("not on %s: %s: %s", d.Name, name, why)
	}
	env := []string{"GOVS_PROVIDER=kernel", "GOVS_DEVICE=" + d.Name, "GOVS_ADDR=" + d.Addr}
	args := []string{"-test.run=" + pattern, "-test.v", "-test.count=1", "-test.timeout=14m"}
	if skip != "" {
		args = append(args, "-test.skip="+skip)
	}
	if !vmtest.Inside() {
		vmtest.NeedKernelProvider(t, kernel.Available)
		vmtest.Need(t)
		dir, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		o := d.opts
		o.Env, o.Dir, o.Timeout = env, dir, 15*time.Minute
		vmtest.Tests(t, o, want, append([]string{exe}, args...)...)
		return
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range want {
		if !strings.Contains(string(out), "--- PASS: "+name+" ") {
			t.Errorf("%s did not pass on %s:\n%s", name, d.Name, out)
		}
	}
}

// choose returns the tests in exe that match pattern and have to pass, and a pattern of the
// left-out ones.
func choose(exe, pattern string, leftOut map[string]string) (want []string, skip string, err error) {
	list, err := exec.Command(exe, "-test.list="+pattern).Output()
	if err != nil {
		return nil, "", fmt.Errorf("listing the tests: %w", err)
	}
	all := strings.Fields(string(list))
	var names []string
	for name := range leftOut {
		if !slices.Contains(all, name) {
			return nil, "", fmt.Errorf("%s is left out, but there is no such test", name)
		}
		names = append(names, name)
	}
	for _, name := range all {
		if _, out := leftOut[name]; !out {
			want = append(want, name)
		}
	}
	if len(want) == 0 {
		return nil, "", fmt.Errorf("no test matches %s", pattern)
	}
	if len(names) > 0 {
		slices.Sort(names)
		skip = "^(" + strings.Join(names, "|") + ")$"
	}
	return want, skip, nil
}
