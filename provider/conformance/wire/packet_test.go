package wire_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
)

var oneSend = []string{
	"--> MPA Request Frame rev 2 S IRD 4 ORD 4",
	"<-- MPA Reply Frame rev 2 S IRD 4 ORD 4",
	"--> Send L QN 0 MSN 1 MO 0 length 5",
	"--> FIN",
	"<-- FIN",
}

// sendOne fills a capture with a connection that carries one Send.
func sendOne(c *wiretest.Capture, client, server string) *wiretest.Capture {
	conn := c.Open(netip.MustParseAddrPort(client), netip.MustParseAddrPort(server))
	s := conn.Start(wiretest.Enhanced(0, false, 4, 4), wiretest.Enhanced(1, false, 4, 4))
	s.SendMessage(wire.ToResponder, 1, []byte("hello"))
	s.Close()
	return c
}

func TestLinkTypes(t *testing.T) {
	for _, tc := range []struct {
		name string
		c    wiretest.Capture
		v6   bool
	}{
		{name: "Ethernet"},
		{name: "Ethernet, IPv6", v6: true},
		{name: "VLAN", c: wiretest.Capture{VLANs: []uint16{7}}},
		{name: "VLAN in VLAN", c: wiretest.Capture{VLANs: []uint16{7, 8}}},
		{name: "raw IP", c: wiretest.Capture{Link: layers.LinkTypeRaw}},
		{name: "raw IP, IPv6", c: wiretest.Capture{Link: layers.LinkTypeRaw}, v6: true},
		{name: "IPv4", c: wiretest.Capture{Link: layers.LinkTypeIPv4}},
		{name: "IPv6", c: wiretest.Capture{Link: layers.LinkTypeIPv6}, v6: true},
		{name: "Linux cooked", c: wiretest.Capture{Link: layers.LinkTypeLinuxSLL}},
		{name: "Linux cooked 2", c: wiretest.Capture{Link: layers.LinkTypeLinuxSLL2}},
		{name: "Linux cooked 2, IPv6", c: wiretest.Capture{Link: layers.LinkTypeLinuxSLL2}, v6: true},
		{name: "BSD loopback", c: wiretest.Capture{Link: wiretest.LinkNull}},
		{name: "BSD loopback, IPv6", c: wiretest.Capture{Link: wiretest.LinkNull}, v6: true},
		{name: "OpenBSD loopback", c: wiretest.Capture{Link: layers.LinkTypeLoop}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client, server := "192.0.2.1:40000", "192.0.2.2:20001"
			if tc.v6 {
				client, server = "[2001:db8::1]:40000", "[2001:db8::2]:20001"
			}
			trace := testkit.Must(sendOne(&tc.c, client, server).Trace(0))(t)
			if len(trace.Conns) != 1 || len(trace.Notes) != 0 {
				t.Fatalf("%d connections, notes %q", len(trace.Conns), trace.Notes)
			}
			c := trace.Conns[0]
			if c.Initiator.String() != client || c.Responder.String() != server {
				t.Errorf("the connection is %v -> %v", c.Initiator, c.Responder)
			}
			want(t, c, oneSend...)
		})
	}
}

// ipStart finds where the IP header begins in a packet of an Ethernet capture.
const ipStart = 14

func TestUnusualPackets(t *testing.T) {
	plain := func() *wiretest.Capture { return sendOne(newCapture(), "192.0.2.1:40000", "192.0.2.2:20001") }
	t.Run("padding after the IP packet", func(t *testing.T) {
		c := plain()
		for i := range c.Packets {
			c.Packets[i].Data = append(c.Packets[i].Data, 0, 0, 0, 0, 0, 0)
		}
		want(t, testkit.Must(c.Trace(0))(t).Conns[0], oneSend...)
	})
	t.Run("an IP length of zero, as offload leaves it", func(t *testing.T) {
		c := plain()
		for i := range c.Packets {
			if b := c.Packets[i].Data; len(b) > 60 { // Ethernet pads shorter ones
				binary.BigEndian.PutUint16(b[ipStart+2:], 0)
			}
		}
		want(t, testkit.Must(c.Trace(0))(t).Conns[0], oneSend...)
	})
	t.Run("IPv6 with headers before TCP", func(t *testing.T) {
		c := sendOne(newCapture(), "[2001:db8::1]:40000", "[2001:db8::2]:20001")
		for i := range c.Packets {
			b := c.Packets[i].Data
			b[ipStart+6] = 0 // hop-by-hop options, then destination options
			extra := []byte{60, 0, 1, 4, 0, 0, 0, 0, 6, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
			b = slices.Insert(b, ipStart+40, extra...)
			n := binary.BigEndian.Uint16(b[ipStart+4:])
			binary.BigEndian.PutUint16(b[ipStart+4:], n+uint16(len(extra)))
			c.Packets[i].Data = b
		}
		want(t, testkit.Must(c.Trace(0))(t).Conns[0], oneSend...)
	})
	t.Run("fragments are noted", func(t *testing.T) {
		c := plain()
		last := &c.Packets[len(c.Packets)-1].Data
		(*last)[ipStart+6] = 0x20
		notes(t, testkit.Must(c.Trace(0))(t), "1 fragments of IP packets were not put together")
	})
	t.Run("headers cut short are noted", func(t *testing.T) {
		c := plain()
		for _, n := range []int{5, 13, 20, 40, 53} {
			c.Packets = append(c.Packets, wiretest.Packet{Time: c.Packets[0].Time, Data: c.Packets[0].Data[:n], Cut: 60})
		}
		trace := testkit.Must(c.Trace(0))(t)
		notes(t, trace, "5 packets are cut short inside their headers")
		want(t, trace.Conns[0], oneSend...)
	})
	t.Run("an unknown link type is noted", func(t *testing.T) {
		c := plain()
		c.Link = layers.LinkTypeIEEE802_11
		trace := testkit.Must(c.Trace(0))(t)
		notes(t, trace, "8 packets are of link types that are not known here (known: Ethernet, raw IP, IPv4, IPv6, "+
			"Linux cooked (SLL, SLL2) and BSD loopback (NULL, LOOP))")
		if len(trace.Conns) != 0 {
			t.Errorf("%d connections", len(trace.Conns))
		}
	})
	t.Run("tunnels are not entered", func(t *testing.T) {
		c := plain()
		for i := range c.Packets { // GRE with the IP packet in it, in another IP packet
			b := c.Packets[i].Data
			outer := bytes.Clone(b[ipStart : ipStart+20])
			outer[9] = 47
			binary.BigEndian.PutUint16(outer[2:], uint16(len(b)-ipStart+24))
			c.Packets[i].Data = slices.Insert(b, ipStart, append(outer, 0, 0, 8, 0)...)
		}
		trace := testkit.Must(c.Trace(0))(t)
		notes(t, trace)
		if len(trace.Conns) != 0 {
			t.Errorf("%d connections", len(trace.Conns))
		}
	})
	t.Run("other protocols are passed over", func(t *testing.T) {
		c := plain()
		udp, arp := bytes.Clone(c.Packets[0].Data), bytes.Clone(c.Packets[0].Data)
		udp[ipStart+9] = 17
		arp[12], arp[13] = 8, 6
		c.Packets = append(c.Packets, wiretest.Packet{Time: c.Packets[0].Time, Data: udp}, wiretest.Packet{Time: c.Packets[0].Time, Data: arp})
		trace := testkit.Must(c.Trace(0))(t)
		notes(t, trace)
		want(t, trace.Conns[0], oneSend...)
	})
}

func notes(t *testing.T, trace *wire.Trace, want ...string) {
	t.Helper()
	if !slices.Equal(trace.Notes, want) {
		t.Errorf("notes are %q, want %q", trace.Notes, want)
	}
}

func TestNoCapture(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"empty":                       {"", "not a capture file: shorter than four octets"},
		"text":                        {"this is no capture at all", "neither a pcap nor a pcapng file"},
		"pcapng cut at once":          {"\x0a\x0d\x0d\x0a\x1c\x00", "not a pcapng file that can be read"},
		"pcap of one octet of packet": {string(newCapture().Pcap()) + "\x00", "packet 1: "},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := wire.Read(strings.NewReader(tc.file), 0)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want one with %q", err, tc.want)
			}
		})
	}
	t.Run("no file", func(t *testing.T) {
		if _, err := wire.ReadFile(t.TempDir()+"/nothing.pcap", 0); err == nil {
			t.Error("a file that is not there can be read")
		}
	})
}

func TestFileCutOff(t *testing.T) {
	file := sendOne(newCapture(), "192.0.2.1:40000", "192.0.2.2:20001").Pcap()
	trace, err := wire.Read(bytes.NewReader(file[:len(file)-3]), 0)
	if err != nil {
		t.Fatal(err)
	}
	notes(t, trace, "the file cannot be read beyond packet 7: unexpected EOF")
	want(t, trace.Conns[0], oneSend[:4]...)
}
