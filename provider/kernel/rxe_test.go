//go:build cgo && linux && !nokernel

package kernel

import (
	"net/netip"
	"os"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// TestRxe tests the contract on a live rxe, as TestSiw does on siw: what both have, and what siw
// lacks. It runs in the guest of ci/vm, or directly if GOVS_RXE_ADDR names an address on an
// interface with an rxe link and there is no other RDMA device.
func TestRxe(t *testing.T) {
	before := siwAddr
	defer func() { siwAddr = before }()
	if addr := os.Getenv("GOVS_RXE_ADDR"); addr != "" {
		siwAddr = netip.MustParseAddr(addr)
	} else if !vmtest.Inside() {
		vmtest.Self(t, vmtest.Options{Link: "none", Rxe: true})
		return
	} else {
		siwAddr = netip.MustParseAddr("198.51.100.1")
	}
	for _, c := range []struct {
		name string
		f    func(*testing.T)
	}{
		{"device", testRxeDevice},
		{"counters", testRxeCounters},
		{"P_Keys", testRxePkeys},
		{"GIDs", testRxeGIDs},
		{"async events of queues that drain", testRxeDrain},
		{"send", testSend},
		{"immediate data", testRxeImmediate},
		{"atomics", testRxeAtomics},
		{"masked atomics", testRxeMaskedAtomics},
		{"write and read", testRxeWriteAndRead},
		{"memory windows", testRxeWindows},
		{"zero length", testZeroLength},
		{"inline", testInline},
		{"batches beyond one crossing", testBatches},
		{"posting and polling do not allocate", testNoAllocations},
		{"post errors", testRxePostErrors},
		{"posts before the connection", testRxePostsBefore},
		{"posts after the connection", testRxePostsAfter},
		{"receiver not ready", testRxeNotReady},
		{"completion channel", testCompChannel},
		{"private data", testRxePrivateData},
		{"connection refused", testRxeRefused},
		{"a host that does not answer", testRxeSilent},
		{"a QP that fails keeps its connection", testRxeFailure},
		{"disconnect and flush", testDisconnect},
		{"calls in the wrong state", testWrongState},
		{"QP of a PD", testExternalQP},
		{"QP states", testRxeStates},
		{"QP attributes", testRxeAttributes},
		{"migrate", testMigrate},
		{"lifetimes", testLifetimes},
		{"registration", testRegistration},
		{"regions with an address of their own", testRxeIova},
		{"re-registration", testRxeRereg},
		{"forgotten region", testForgottenRegion},
		{"CQ resize", testRxeResize},
		{"shared receive queue", testRxeSRQ},
		{"many connections", testManyConnections},
		// TestSiw has more of both, because the provider treats both devices alike here.
		{"many queues", func(t *testing.T) { testQueues(t, 20) }},
		{"twenty connection ends", func(t *testing.T) { testEnds(t, 10) }},
		{"waiters", testWaiters},
	} {
		before := openFiles(t)
		passed := t.Run(c.name, c.f)
		if after := openFiles(t); passed && after > before {
			t.Errorf("%s: %d descriptors open before, %d after", c.name, before, after)
		}
	}
}
