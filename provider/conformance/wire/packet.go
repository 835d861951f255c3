package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/gopacket/gopacket/layers"
)

// tcpSegment is what a packet says about a TCP connection. payload borrows from
// the packet.
type tcpSegment struct {
	src, dst            netip.AddrPort
	seq, ack            uint32
	syn, fin, rst, acks bool
	payload             []byte
	missing             int // octets of payload that the packet had and the capture has not
}

// packetKind says whether a packet could be used, or why not.
type packetKind uint8

const (
	packetTCP packetKind = iota
	packetOther
	packetFragment // of an IP packet
	packetCut      // too short for its headers
	packetLink     // of a link type that is not known here
)

// EtherTypes.
const (
	etherIPv4    = 0x0800
	etherIPv6    = 0x86dd
	etherVLAN    = 0x8100
	etherQinQ    = 0x88a8
	etherOldQinQ = 0x9100
)

// Link types that package layers has no names for.
const (
	linkRawBSD     = 12
	linkRawOpenBSD = 14
)

// linkNames are the link types that are known here, for messages.
const linkNames = "Ethernet, raw IP, IPv4, IPv6, Linux cooked (SLL, SLL2) and BSD loopback (NULL, LOOP)"

// parsePacket parses a packet of a link type.
func parsePacket(data []byte, link layers.LinkType) (tcpSegment, packetKind) {
	switch link {
	case layers.LinkTypeEthernet:
		if len(data) < 14 {
			return tcpSegment{}, packetCut
		}
		return parseEther(binary.BigEndian.Uint16(data[12:]), data[14:])
	case layers.LinkTypeLinuxSLL:
		if len(data) < 16 {
			return tcpSegment{}, packetCut
		}
		return parseEther(binary.BigEndian.Uint16(data[14:]), data[16:])
	case layers.LinkTypeLinuxSLL2:
		if len(data) < 20 {
			return tcpSegment{}, packetCut
		}
		return parseEther(binary.BigEndian.Uint16(data), data[20:])
	case layers.LinkTypeNull, layers.LinkTypeLoop:
		// An address family in the byte order of the capturing machine, and numbers for
		// IPv6 that differ between systems: the IP version says it better.
		if len(data) < 4 {
			return tcpSegment{}, packetCut
		}
		return parseIP(data[4:])
	case layers.LinkTypeRaw, linkRawBSD, linkRawOpenBSD, layers.LinkTypeIPv4, layers.LinkTypeIPv6:
		return parseIP(data)
	}
	return tcpSegment{}, packetLink
}

// parseEther selects by the EtherType, after any VLAN tags.
func parseEther(etherType uint16, data []byte) (tcpSegment, packetKind) {
	for etherType == etherVLAN || etherType == etherQinQ || etherType == etherOldQinQ {
		if len(data) < 4 {
			return tcpSegment{}, packetCut
		}
		etherType = binary.BigEndian.Uint16(data[2:])
		data = data[4:]
	}
	if etherType != etherIPv4 && etherType != etherIPv6 {
		return tcpSegment{}, packetOther
	}
	return parseIP(data)
}

func parseIP(data []byte) (tcpSegment, packetKind) {
	if len(data) < 1 {
		return tcpSegment{}, packetCut
	}
	switch data[0] >> 4 {
	case 4:
		return parseIPv4(data)
	case 6:
		return parseIPv6(data)
	}
	return tcpSegment{}, packetOther
}

const protocolTCP = 6

func parseIPv4(data []byte) (tcpSegment, packetKind) {
	if len(data) < 20 {
		return tcpSegment{}, packetCut
	}
	headerLen := int(data[0]&0xf) * 4
	total := int(binary.BigEndian.Uint16(data[2:]))
	if total == 0 {
		total = len(data) // with offload it is filled in after the capture
	}
	switch {
	case headerLen < 20 || total < headerLen:
		return tcpSegment{}, packetOther
	case data[9] != protocolTCP:
		return tcpSegment{}, packetOther
	case binary.BigEndian.Uint16(data[6:])&0x3fff != 0: // more fragments, or an offset
		return tcpSegment{}, packetFragment
	case len(data) < headerLen:
		return tcpSegment{}, packetCut
	}
	src, dst := netip.AddrFrom4([4]byte(data[12:16])), netip.AddrFrom4([4]byte(data[16:20]))
	return parseTCP(src, dst, data[headerLen:min(total, len(data))], total-headerLen)
}

// IPv6 extension headers that may stand before TCP.
const (
	ipv6HopByHop    = 0
	ipv6Routing     = 43
	ipv6Fragment    = 44
	ipv6Destination = 60
)

func parseIPv6(data []byte) (tcpSegment, packetKind) {
	const fixed = 40
	if len(data) < fixed {
		return tcpSegment{}, packetCut
	}
	length := int(binary.BigEndian.Uint16(data[4:]))
	src, dst := netip.AddrFrom16([16]byte(data[8:24])), netip.AddrFrom16([16]byte(data[24:40]))
	next := data[6]
	rest := data[fixed:]
	if length == 0 {
		length = len(rest) // a jumbogram, or offload
	}
	rest = rest[:min(length, len(rest))]
	for {
		switch next {
		case protocolTCP:
			return parseTCP(src, dst, rest, length)
		case ipv6HopByHop, ipv6Routing, ipv6Destination:
			if len(rest) < 8 {
				return tcpSegment{}, packetCut
			}
			n := 8 + int(rest[1])*8
			if len(rest) < n || length < n {
				return tcpSegment{}, packetCut
			}
			next, rest, length = rest[0], rest[n:], length-n
		case ipv6Fragment:
			return tcpSegment{}, packetFragment
		default:
			return tcpSegment{}, packetOther
		}
	}
}

// parseTCP parses what an IP packet carries; length is how long it was on the
// wire.
func parseTCP(src, dst netip.Addr, data []byte, length int) (tcpSegment, packetKind) {
	if len(data) < 20 {
		return tcpSegment{}, packetCut
	}
	headerLen := int(data[12]>>4) * 4
	switch {
	case headerLen < 20 || headerLen > length:
		return tcpSegment{}, packetOther
	case headerLen > len(data):
		return tcpSegment{}, packetCut
	}
	flags := data[13]
	return tcpSegment{
		src: netip.AddrPortFrom(src, binary.BigEndian.Uint16(data)),
		dst: netip.AddrPortFrom(dst, binary.BigEndian.Uint16(data[2:])),
		seq: binary.BigEndian.Uint32(data[4:]), ack: binary.BigEndian.Uint32(data[8:]),
		fin: flags&1 != 0, syn: flags&2 != 0, rst: flags&4 != 0, acks: flags&16 != 0,
		payload: data[headerLen:], missing: length - len(data),
	}, packetTCP
}

// skipped counts packets that could not be used.
type skipped struct {
	fragments, cut int
	links          map[layers.LinkType]int
}

func (s *skipped) count(k packetKind, link layers.LinkType) {
	switch k {
	case packetFragment:
		s.fragments++
	case packetCut:
		s.cut++
	case packetLink:
		if s.links == nil {
			s.links = make(map[layers.LinkType]int)
		}
		s.links[link]++
	}
}

// notes returns the lines that a Trace has about them.
func (s *skipped) notes() []string {
	var out []string
	if s.fragments > 0 {
		out = append(out, fmt.Sprintf("%d fragments of IP packets were not put together", s.fragments))
	}
	if s.cut > 0 {
		out = append(out, fmt.Sprintf("%d packets are cut short inside their headers", s.cut))
	}
	n := 0
	for _, k := range s.links {
		n += k
	}
	if n > 0 {
		out = append(out, fmt.Sprintf("%d packets are of link types that are not known here (known: %s)", n, linkNames))
	}
	return out
}
