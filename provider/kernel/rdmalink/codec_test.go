//go:build linux

package rdmalink

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// The messages below are iproute2's and the kernel's: what strace -e write=all
// -e read=all shows of rdma(8) 6.1 with the kernel 6.1.192-2 of Debian 12, at
//
//	rdma link add siw0 type siw netdev d0
//	rdma link
//	rdma link del siw0
//
// without the header, whose type and flags TestRequests has.
const (
	wireNewLink = "0900020073697730" + "00000000" + "0800410073697700" + "0700330064300000"
	wireDelLink = "0800010000000000"

	wireGetReply = "0800010000000000" + "0900020073697730" + "00000000" + // index 0, siw0
		"0800030001000000" + "0c0004000000200000000000" + // one port, capabilities
		"0c000600f2907bfeff10fcfc" + "0c000700f2907bfeff10fcfc" + // node and system image GUID
		"05000e0004000000" + "0500540000000000" + "0700430069770000" // RNIC, DIM off, iw

	wirePortGetReply = "0800010000000000" + "0900020073697730" + "00000000" +
		"0800030001000000" + // port 1
		"05000c0004000000" + "05000d0005000000" + // active, LinkUp
		"0800320002000000" + "0700330064300000" // interface 2, d0
)

func marshal(t testing.TB, attrs ...netlink.Attribute) []byte {
	t.Helper()
	b, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRequests(t *testing.T) {
	const request, acknowledge, dump = 1, 4, 0x300 // NLM_F_*
	for _, c := range []struct {
		name  string
		got   netlink.Message
		kind  uint16
		flags uint16
		data  string
	}{
		{"NEWLINK", newLinkRequest("siw0", "siw", "d0"), 0x1403, request | acknowledge, wireNewLink},
		{"DELLINK", delLinkRequest(0), 0x1404, request | acknowledge, wireDelLink},
		{"GET", getRequest(), 0x1401, request | dump, ""},
		{"PORT_GET", portGetRequest(0x01020304), 0x1405, request | dump, "0800010004030201"},
	} {
		if uint16(c.got.Header.Type) != c.kind || uint16(c.got.Header.Flags) != c.flags {
			t.Errorf("%s: type %#x flags %#x, want %#x and %#x",
				c.name, uint16(c.got.Header.Type), uint16(c.got.Header.Flags), c.kind, c.flags)
		}
		if !bytes.Equal(c.got.Data, testkit.Unhex(t, c.data)) {
			t.Errorf("%s: %x, want %s", c.name, c.got.Data, c.data)
		}
	}
}

func TestParse(t *testing.T) {
	link, err := parseLink(testkit.Unhex(t, wireGetReply))
	if err != nil {
		t.Fatal(err)
	}
	// ibv_devinfo printed node_guid fcfc:10ff:fe7b:90f2 in the same guest.
	want := Link{Name: "siw0", NodeGUID: 0xfcfc10fffe7b90f2, NodeType: provider.NodeRNIC, Protocol: "iw"}
	if diff := cmp.Diff(want, link); diff != "" {
		t.Errorf("link (-want +got):\n%s", diff)
	}

	port, err := parsePort(testkit.Unhex(t, wirePortGetReply))
	if err != nil {
		t.Fatal(err)
	}
	wantPort := Port{Num: 1, State: provider.PortActive, PhysState: 5, Netdev: "d0", NetdevIndex: 2}
	if diff := cmp.Diff(wantPort, port); diff != "" {
		t.Errorf("port (-want +got):\n%s", diff)
	}
}

// A reply that is cut short is refused, unless the cut is between attributes and all required ones
// are before it.
func TestParsePrefixes(t *testing.T) {
	for _, c := range []struct {
		name  string
		wire  string
		parse func([]byte) error
		needs int // bytes up to the last required attribute
	}{
		{"link", wireGetReply, func(b []byte) error { _, err := parseLink(b); return err }, 20},
		{"port", wirePortGetReply, func(b []byte) error { _, err := parsePort(b); return err }, 28},
	} {
		whole := testkit.Unhex(t, c.wire)
		for n := range whole {
			b := bytes.Clone(whole[:n])
			err := c.parse(b[:n:n])
			if legal := n+3 >= c.needs && endsAttribute(whole, n); legal != (err == nil) {
				t.Errorf("%s: first %d bytes: error %v, want one: %v", c.name, n, err, !legal)
			}
		}
	}
}

// endsAttribute reports whether an attribute of b ends with byte n, with all, part or none of its
// padding.
func endsAttribute(b []byte, n int) bool {
	for at := 0; at <= n; {
		if at == n {
			return true
		}
		length := int(b[at])
		if at+length <= n && n < (at+length+3)&^3 {
			return true
		}
		at += (length + 3) &^ 3
	}
	return false
}

// One attribute at a time has a size that does not fit its type.
func TestParseWrongSize(t *testing.T) {
	for _, attr := range []uint16{attrDevIndex, attrNodeGUID, attrDevNodeType} {
		wrong := marshal(t, netlink.Attribute{Type: attr, Data: make([]byte, 3)})
		if link, err := parseLink(append(testkit.Unhex(t, wireGetReply), wrong...)); err == nil {
			t.Errorf("attribute %d of a link with 3 bytes gave %+v", attr, link)
		}
	}
	for _, attr := range []uint16{attrPortIndex, attrPortState, attrPortPhysState, attrNetdevIndex} {
		wrong := marshal(t, netlink.Attribute{Type: attr, Data: make([]byte, 3)})
		if port, err := parsePort(append(testkit.Unhex(t, wirePortGetReply), wrong...)); err == nil {
			t.Errorf("attribute %d of a port with 3 bytes gave %+v", attr, port)
		}
	}
}

// A newer kernel's attributes are skipped.
func TestParseUnknownAttribute(t *testing.T) {
	want, err := parseLink(testkit.Unhex(t, wireGetReply))
	if err != nil {
		t.Fatal(err)
	}
	more := marshal(t, netlink.Attribute{Type: 999, Data: []byte{0xa5, 0xa5, 0xa5}})
	got, err := parseLink(append(more, testkit.Unhex(t, wireGetReply)...))
	if err != nil || cmp.Diff(want, got) != "" {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

// FuzzParse gives the parsers input that no kernel would send.
func FuzzParse(f *testing.F) {
	f.Add(testkit.Unhex(f, wireGetReply))
	f.Add(testkit.Unhex(f, wirePortGetReply))
	f.Add([]byte{4, 0, 2, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		if link, err := parseLink(b); err == nil && link.Name == "" {
			t.Error("a link without a name")
		}
		if port, err := parsePort(b); err == nil && port.Num == 0 {
			t.Error("a port without a number")
		}
		if !bytes.Equal(before, b) {
			t.Error("the parsers changed what they read")
		}
	})
}
