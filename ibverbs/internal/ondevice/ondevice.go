// Package ondevice runs tests that run on the engine once more, on a device of the
// kernel in the guest: siw or rxe.
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
	Addr   string // of that
	opts   vmtest.Options
}

// The devices of the guest. Each is alone in it, so that what the system chooses for
// an address is the device.
var (
	Siw = Device{"siw0", "d0", "192.0.2.1", vmtest.Options{}}
	Rxe = Device{"rxe0", "d1", "198.51.100.1", vmtest.Options{Link: "none", Rxe: true}}
)

// OnSiw reports whether the test runs on siw, which is the guest's iWARP; OnRxe whether on
// rxe, which is its RoCE.
func OnSiw() bool { return on(Siw) }

// OnRxe is OnSiw for rxe.
func OnRxe() bool { return on(Rxe) }

// OnKernel reports whether the test runs on one of them.
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

// Run runs the tests and examples of the calling test's package that match pattern
// with GOVS_PROVIDER=kernel on the device, in a guest with it unless the caller is in
// one already. leftOut has those that don't hold for the device, by name, each with
// the reason. Run fails t if one of the others fails, is skipped or does not run, or
// if there is no test that is left out.
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

// choose lists which of the tests in exe that match pattern have to pass, and makes a
// pattern of the others.
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
