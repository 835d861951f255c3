//go:build linux && cgo

package main

import "testing"

// TestNetpollerClosed: a descriptor that a thread of the program closes while ownRuntime looks for
// the netpoller is not the netpoller's.
func TestNetpollerClosed(t *testing.T) {
	if wake, err := netpoller(1 << 30); wake != -1 || err != nil {
		t.Errorf("netpoller of a closed descriptor: %d, %v, want -1", wake, err)
	}
}
