//go:build !race

package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/govs-rdma/govs/ci/testkit"
)

// TestExecErrnos: calls with bad arguments fail with exec as they fail without it. With exec they
// name the RDMA device and its files in sysfs, without exec another device and its files.
func TestExecErrnos(t *testing.T) {
	b := newBridged(t)
	program := compiled(t, "errnos")
	plain := testkit.Must(exec.Command(program, "/dev/null", "/sys/class/net/lo/address",
		"0").Output())(t) // NETLINK_ROUTE
	bridged := testkit.Must(b.command(nil, program, "/dev/infiniband/uverbs0",
		"/sys/class/infiniband/siw0/node_type", "20").Output())(t) // NETLINK_RDMA
	lines := func(out []byte) []string { return strings.Split(string(out), "\n") }
	if len(lines(plain)) < 500 {
		t.Errorf("only %d calls were tried", len(lines(plain)))
	}
	if diff := cmp.Diff(lines(plain), lines(bridged)); diff != "" {
		t.Errorf("without exec (-) and with it (+):\n%s", diff)
	}
}

// TestExecSpellings uses all ways to name the device and its files in sysfs.
func TestExecSpellings(t *testing.T) {
	b := newBridged(t)
	b.start(compiled(t, "spellings")).want(t, 0, "as it must be")
}

// TestExecCloseLater: descriptors that a signal handler has closed end with the thread's next call,
// however many there are.
func TestExecCloseLater(t *testing.T) {
	b := newBridged(t)
	b.start(compiled(t, "closelater")).want(t, 0, "as it must be")
}

// TestExecDescriptors: poll, read, lseek and others return the same for the device's descriptors as
// for the kernel's.
func TestExecDescriptors(t *testing.T) {
	b := newBridged(t)
	b.start(compiled(t, "descriptors", "-lrdmacm", "-libverbs", "-lpthread")).want(t, 0, "as it must be")
}

// TestExecSmallStack: threads with stacks of 16 KiB find, open and command the device.
func TestExecSmallStack(t *testing.T) {
	b := newBridged(t)
	b.start(compiled(t, "smallstack", "-lrdmacm", "-libverbs", "-lpthread")).want(t, 0, "as it must be")
}
