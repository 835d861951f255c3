package main

import (
	"cmp"
	"net/netip"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider/kernel"
)

// siwAddr is the guest's address on the interface under siw0.
const siwAddr = "192.0.2.1"

// providers are the providers with which the guest's tests run our programs.
var providers = []string{"engine", "kernel"}

// inGuest reports whether the test runs in the guest. If not, it runs the test in a guest with the
// options and returns false. The C programs of
// rdmacm-utils and perftest are needed.
func inGuest(t *testing.T, o vmtest.Options) bool {
	t.Helper()
	if vmtest.Inside() {
		return true
	}
	vmtest.NeedKernelProvider(t, kernel.Available)
	vmtest.Need(t, "witnesses")
	o.Timeout = cmp.Or(o.Timeout, 8*time.Minute)
	vmtest.Self(t, o)
	return false
}

// addrOf returns siwAddr with a port.
func addrOf(port uint16) string {
	return netip.AddrPortFrom(netip.MustParseAddr(siwAddr), port).String()
}

// startServer starts a C program that listens on a port, and waits until it listens.
func startServer(t *testing.T, port uint16, args ...string) *program {
	t.Helper()
	p := startProgram(t, args...)
	awaitListener(t, p, port)
	return p
}

// awaitListener waits until a program listens on a port.
func awaitListener(t *testing.T, p *program, port uint16) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !testkit.Listens(t, port) {
		select {
		case <-p.done:
			t.Fatalf("%s ended before it listened: %v\nstdout:\n%s\nstderr:\n%s", p, p.err, &p.stdout, &p.stderr)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen on port %d", p, port)
		}
	}
}
