//go:build cgo && linux && !nokernel

package rdmacm

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
)

func TestAddressesSurviveTheRoundTrip(t *testing.T) {
	for _, s := range []string{"192.0.2.1:7471", "0.0.0.0:0", "[2001:db8::1]:65535", "[fe80::1%3]:1"} {
		want := netip.MustParseAddrPort(s)
		c, err := toC(want)
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		if got := fromC(&c); got != want {
			t.Errorf("%s came back as %s", s, got)
		}
	}
	c, err := toC(netip.MustParseAddrPort("[::ffff:192.0.2.1]:1"))
	if err != nil || fromC(&c) != netip.MustParseAddrPort("192.0.2.1:1") {
		t.Errorf("a mapped address: %v, %v", fromC(&c), err)
	}
	if c, err := toC(netip.AddrPort{}); err != nil || fromC(&c).IsValid() {
		t.Errorf("no address: %v, %v", fromC(&c), err)
	}
	if _, err := toC(netip.MustParseAddrPort("[fe80::1%no-such-interface]:1")); err != syscall.ENODEV {
		t.Errorf("a zone that is no interface: %v", err)
	}
	if c, err := toC(netip.MustParseAddrPort("[fe80::1%lo]:1")); err != nil || c.scope == 0 {
		t.Errorf("a zone by name: scope %d, %v", c.scope, err)
	}
}

func TestPrivateDataThatDoesNotFitAnOctetIsRefused(t *testing.T) {
	if _, _, err := private(make([]byte, 256)); err != syscall.EINVAL {
		t.Errorf("256 bytes: %v", err)
	}
	if _, n, err := private(make([]byte, 255)); err != nil || n != 255 {
		t.Errorf("255 bytes: %d, %v", n, err)
	}
	if p, n, err := private(nil); p != nil || n != 0 || err != nil {
		t.Errorf("none: %v, %d, %v", p, n, err)
	}
}

// The host that runs this may have RDMA devices or none; either is a valid result.
func TestChannelIsAnAnswer(t *testing.T) {
	ch, err := CreateEventChannel()
	if err != nil {
		if !errors.As(err, new(syscall.Errno)) {
			t.Fatalf("not an errno: %v", err)
		}
		return
	}
	if ch.FD() < 0 {
		t.Errorf("descriptor %d", ch.FD())
	}
	ch.Destroy()
}

func TestEventNames(t *testing.T) {
	for name, v := range Constants() {
		if len(name) > 14 && name[:14] == "RDMA_CM_EVENT_" && EventStr(uint32(v)) != name {
			t.Errorf("%s = %d is called %s", name, v, EventStr(uint32(v)))
		}
	}
}
