package engine

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// TestNoRouteTexts: the event about a link-local address without a route says what the
// address lacks.
func TestNoRouteTexts(t *testing.T) {
	dev := testkit.Must(New(nil).Open(""))(t)
	defer func() { _ = dev.Close() }()
	for addr, want := range map[string][]string{
		"[fe80::1]:7471": {"route to fe80::1: invalid argument",
			"a link-local address needs a zone, as in fe80::1%eth0"},
		"[fe80::1%no-such-if]:7471": {"no such device",
			"this machine may have no interface no-such-if"},
	} {
		ch := testkit.Must(dev.CreateEventChannel())(t)
		id := testkit.Must(ch.CreateID(nil))(t)
		bound := id.BindAddr(netip.MustParseAddrPort(addr))
		if bound == nil || !strings.Contains(bound.Error(), want[1]) {
			t.Errorf("bind to %s: %v does not say %q", addr, bound, want[1])
		}
		testkit.OK(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(addr), time.Second))
		ev := testkit.Must(ch.Next(t.Context()))(t)
		if ev.Type != provider.CMAddrError || ev.Cause == nil ||
			ev.Status != -int(syscall.EINVAL) && ev.Status != -int(syscall.ENODEV) {
			t.Errorf("%s: %v, status %d, cause %v", addr, ev.Type, ev.Status, ev.Cause)
			continue
		}
		for _, part := range want {
			if !strings.Contains(ev.Cause.Error(), part) {
				t.Errorf("%s: %q does not say %q", addr, ev.Cause, part)
			}
		}
		_, _ = id.Close(), ch.Close()
	}
}
