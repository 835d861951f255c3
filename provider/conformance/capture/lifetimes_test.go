package capture

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// segment makes an Ethernet frame with a TCP segment without payload.
func segment(from, to string, flags byte) []byte {
	src, dst := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	frame := make([]byte, ipAt)
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp, src.Port())
	binary.BigEndian.PutUint16(tcp[2:], dst.Port())
	tcp[tcpFlagsAt] = flags
	var ip []byte
	if src.Addr().Is4() {
		binary.BigEndian.PutUint16(frame[etherTypeAt:], etherIPv4)
		ip = make([]byte, 24) // with an option
		ip[0] = 0x46
		copy(ip[12:], src.Addr().AsSlice())
		copy(ip[16:], dst.Addr().AsSlice())
	} else {
		binary.BigEndian.PutUint16(frame[etherTypeAt:], etherIPv6)
		ip = make([]byte, ipv6Len)
		copy(ip[8:], src.Addr().AsSlice())
		copy(ip[24:], dst.Addr().AsSlice())
	}
	return append(append(frame, ip...), tcp...)
}

func TestEnds(t *testing.T) {
	for _, addrs := range [][2]string{{"192.0.2.1:5000", "192.0.2.1:20000"}, {"192.0.2.9:20000", "192.0.2.1:5000"}, {"[::1]:5000", "[::1]:20000"}} {
		a, b := addrs[0], addrs[1]
		const acked = tcpACK
		var e lifetimes
		for k, step := range []struct {
			from, to string
			flags    byte
			all      bool
		}{
			{b, a, tcpFIN | acked, true}, // of a connection from before
			{a, b, tcpSYN, false},
			{b, a, tcpSYN | acked, false},
			{a, b, acked, false},
			{a, b, tcpFIN | acked, false},
			{a, b, tcpFIN | acked, false}, // once more
			{b, a, acked, false},
			{b, a, tcpFIN | acked, true},
			{a, b, acked, true},
			{a, b, tcpSYN, false}, // the same ports again
			{b, a, tcpRST | acked, true},
			{a, b, tcpRST, true},
		} {
			e.see(segment(step.from, step.to, step.flags))
			if e.all() != step.all {
				t.Errorf("%s to %s, step %d: all %v, want %v", a, b, k+1, e.all(), step.all)
			}
		}
	}
}

// Connections are distinguished, and packets that are not TCP, or are cut short, belong
// to none.
func TestEndsOfSeveral(t *testing.T) {
	var e lifetimes
	e.see(segment("192.0.2.1:5000", "192.0.2.1:20000", tcpSYN))
	e.see(segment("192.0.2.1:5001", "192.0.2.1:20000", tcpSYN))
	e.see(segment("192.0.2.1:5000", "192.0.2.1:20000", tcpRST))
	if e.all() || len(e.open) != 1 {
		t.Errorf("%d connections are open, want 1", len(e.open))
	}
	for _, addr := range []string{"192.0.2.1:5001", "[::1]:5001"} {
		whole := segment(addr, addr, tcpSYN)
		for n := range len(whole) {
			if _, _, flags, ok := segmentOf(whole[:n]); ok && flags != tcpSYN {
				t.Errorf("of %d octets: flags %#x", n, flags)
			}
		}
		whole[etherTypeAt] ^= 0xff
		if _, _, _, ok := segmentOf(whole); ok {
			t.Error("a frame of another protocol has a TCP segment")
		}
	}
}
