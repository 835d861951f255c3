package cm

import (
	"net/netip"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestPeerGroups: which addresses count as one peer.
func TestPeerGroups(t *testing.T) {
	for a, want := range map[string]string{
		"192.0.2.1":            "192.0.2.1",
		"::ffff:192.0.2.1":     "192.0.2.1",
		"2001:db8::1":          "2001:db8::",
		"2001:db8:0:0:1:2:3:4": "2001:db8::",
		"2001:db8:0:1::1":      "2001:db8:0:1::",
		"fe80::1%eth0":         "fe80::",
		"::1":                  "::1",
		"::2":                  "::",
	} {
		testkit.Equal(t, a, peerGroup(netip.MustParseAddr(a)), netip.MustParseAddr(want))
	}
}

// TestAcceptedPerPeerByDefault: one peer may have half of MaxAccepted, and the host itself any
// number.
func TestAcceptedPerPeerByDefault(t *testing.T) {
	for _, tc := range []struct {
		cfg   Config
		peer  string
		limit int
	}{
		{Config{MaxAccepted: 7}, "192.0.2.1", 3},
		{Config{MaxAccepted: 1}, "192.0.2.1", 1},
		{Config{MaxAccepted: 7}, "127.0.0.9", 0},
		{Config{MaxAccepted: 7}, "::1", 0},
		{Config{MaxAccepted: 7}, "::2", 3},
		{Config{MaxAccepted: 7, MaxAcceptedPerPeer: 2}, "::1", 2},
		{Config{MaxAccepted: 7, MaxAcceptedPerPeer: -1}, "192.0.2.1", 0},
		{Config{MaxAccepted: -1}, "192.0.2.1", 0},
	} {
		if got := tc.cfg.eachAccepted(peerGroup(netip.MustParseAddr(tc.peer))); got != tc.limit {
			t.Errorf("MaxAccepted %d, MaxAcceptedPerPeer %d: %s may have %d, want %d",
				tc.cfg.MaxAccepted, tc.cfg.MaxAcceptedPerPeer, tc.peer, got, tc.limit)
		}
	}
}
