package cm

import (
	"net/netip"
	"syscall"
	"testing"
)

// TestNotBoundTexts: what a link-local address lacks is not said of other refusals.
func TestNotBoundTexts(t *testing.T) {
	for _, addr := range []string{"fe80::1", "fe80::1%lo"} {
		err := whyNotBound(netip.MustParseAddr(addr), syscall.EACCES)
		if err == nil || err.Error() != syscall.EACCES.Error() {
			t.Errorf("bind to %s without the right to: %v", addr, err)
		}
	}
}
