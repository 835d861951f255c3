package capture

import (
	"encoding/binary"
	"net/netip"
)

// TCP flags, in the octet that is tcpFlagsAt.
const (
	tcpFlagsAt = 13
	tcpFIN     = 0x01
	tcpSYN     = 0x02
	tcpRST     = 0x04
	tcpACK     = 0x10
)

// lifetimes follows the TCP connections in a recording, to find when all of them have
// ended. It does not count connections that began before the recording.
type lifetimes struct {
	open map[connection]int // which sides have sent their FIN, as a set of bits
}

// connection is both its addresses, the lesser first.
type connection [2]netip.AddrPort

// see takes a packet into account: an Ethernet frame that portFilter lets pass.
func (e *lifetimes) see(frame []byte) {
	from, to, flags, ok := segmentOf(frame)
	if !ok {
		return
	}
	c, side := connection{from, to}, 1
	if to.Compare(from) < 0 {
		c, side = connection{to, from}, 2
	}
	if flags&(tcpSYN|tcpACK) == tcpSYN {
		if e.open == nil {
			e.open = make(map[connection]int)
		}
		e.open[c] = 0
	}
	fins, ok := e.open[c]
	if !ok {
		return
	}
	if flags&tcpFIN != 0 {
		fins |= side
		e.open[c] = fins
	}
	if flags&tcpRST != 0 || fins == 1|2 {
		delete(e.open, c)
	}
}

// all reports whether none of the connections is left.
func (e *lifetimes) all() bool { return len(e.open) == 0 }

// segmentOf finds the addresses and flags of the TCP segment in a frame.
func segmentOf(frame []byte) (from, to netip.AddrPort, flags byte, ok bool) {
	if len(frame) < ipAt+1 {
		return
	}
	ip, tcpAt, addressesAt, addressLen := frame[ipAt:], 0, 0, 0
	switch binary.BigEndian.Uint16(frame[etherTypeAt:]) {
	case etherIPv4:
		tcpAt, addressesAt, addressLen = int(ip[0]&0x0f)*4, 12, 4
	case etherIPv6:
		tcpAt, addressesAt, addressLen = ipv6Len, 8, 16
	default:
		return
	}
	if len(ip) <= max(tcpAt, addressesAt+2*addressLen)+tcpFlagsAt {
		return
	}
	tcp := ip[tcpAt:]
	src, _ := netip.AddrFromSlice(ip[addressesAt : addressesAt+addressLen])
	dst, _ := netip.AddrFromSlice(ip[addressesAt+addressLen : addressesAt+2*addressLen])
	return netip.AddrPortFrom(src, binary.BigEndian.Uint16(tcp)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(tcp[2:])), tcp[tcpFlagsAt], true
}
