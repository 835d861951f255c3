// Package wiretest makes captures of made-up connections, for tests of code that reads
// captures. Packets are built by package layers of gopacket, so that writing and reading
// do not share a mistake.
package wiretest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// A Packet is one packet of a Capture. Tests may change it, leave it out, or put
// it elsewhere.
type Packet struct {
	Time time.Time
	Data []byte // from the link layer's header on
	Cut  int    // octets that the packet had after Data
}

// A Capture collects packets. Set its fields before the first packet is made.
type Capture struct {
	Link  layers.LinkType // default Ethernet
	VLANs []uint16        // tags, outermost first; for Ethernet
	MSS   int             // longest payload of a packet; default 1448

	Packets []Packet
	clock   time.Time
}

// Addresses that tests need not care about.
var (
	Client = netip.MustParseAddrPort("192.0.2.1:40000")
	Server = netip.MustParseAddrPort("192.0.2.1:20001")
)

// A Conn is a TCP connection of a Capture.
type Conn struct {
	capture *Capture
	ends    [2]netip.AddrPort // sender by direction
	isn     [2]uint32
	sent    [2]uint32 // octets by direction
}

// Dial begins a connection without a handshake, as in a capture that began too late.
func (c *Capture) Dial(client, server netip.AddrPort) *Conn {
	return c.DialISN(client, server, [2]uint32{1000, 0xfffffff0}) // one of them wraps soon
}

// DialISN begins a connection with initial sequence numbers, the client's first.
func (c *Capture) DialISN(client, server netip.AddrPort, isn [2]uint32) *Conn {
	return &Conn{capture: c, ends: [2]netip.AddrPort{client, server}, isn: isn}
}

// Open begins a connection with its handshake.
func (c *Capture) Open(client, server netip.AddrPort) *Conn {
	conn := c.Dial(client, server)
	conn.Handshake()
	return conn
}

// Handshake adds the three packets.
func (c *Conn) Handshake() {
	c.packet(wire.ToResponder, -1, nil, func(t *layers.TCP) { t.SYN, t.ACK = true, false })
	c.packet(wire.ToInitiator, -1, nil, func(t *layers.TCP) { t.SYN = true })
	c.packet(wire.ToResponder, 0, nil, nil)
}

// Send sends octets, in packets of at most MSS octets.
func (c *Conn) Send(dir wire.Direction, octets []byte) {
	mss := c.capture.MSS
	if mss == 0 {
		mss = 1448
	}
	for len(octets) > 0 {
		n := min(mss, len(octets))
		c.At(dir, int64(c.sent[dir]), octets[:n])
		c.sent[dir] += uint32(n)
		octets = octets[n:]
	}
}

// At adds a packet with octets of the stream from offset on: again, ahead, or
// others than were sent.
func (c *Conn) At(dir wire.Direction, offset int64, octets []byte) {
	c.packet(dir, offset, octets, func(t *layers.TCP) { t.PSH = true })
}

// Skip pretends that n octets were sent which the capture lacks.
func (c *Conn) Skip(dir wire.Direction, n int) { c.sent[dir] += uint32(n) }

// Ack adds a packet without payload.
func (c *Conn) Ack(dir wire.Direction) { c.packet(dir, int64(c.sent[dir]), nil, nil) }

// FIN ends a direction.
func (c *Conn) FIN(dir wire.Direction) {
	c.packet(dir, int64(c.sent[dir]), nil, func(t *layers.TCP) { t.FIN = true })
}

// RST resets the connection.
func (c *Conn) RST(dir wire.Direction) {
	c.packet(dir, int64(c.sent[dir]), nil, func(t *layers.TCP) { t.RST = true })
}

// packet adds a packet whose payload begins at an offset of the direction's
// stream; the SYN's is -1.
func (c *Conn) packet(dir wire.Direction, offset int64, octets []byte, change func(*layers.TCP)) {
	src, dst := c.ends[dir], c.ends[1-dir]
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()), Window: 65535,
		Seq: c.isn[dir] + 1 + uint32(offset), Ack: c.isn[1-dir] + 1 + c.sent[1-dir], ACK: true,
	}
	if change != nil {
		change(tcp)
	}
	if !tcp.ACK {
		tcp.Ack = 0
	}
	c.capture.add(src.Addr(), dst.Addr(), tcp, octets)
}

// add wraps a TCP segment and appends it, a millisecond after the last packet.
func (c *Capture) add(src, dst netip.Addr, tcp *layers.TCP, octets []byte) {
	var ip gopacket.SerializableLayer
	etherType := layers.EthernetTypeIPv4
	if src.Is4() {
		v4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		_ = tcp.SetNetworkLayerForChecksum(v4)
		ip = v4
	} else {
		etherType = layers.EthernetTypeIPv6
		v6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		_ = tcp.SetNetworkLayerForChecksum(v6)
		ip = v6
	}
	data := serialise(append(c.link(etherType), ip, tcp, gopacket.Payload(octets))...)
	if c.clock.IsZero() {
		c.clock = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	c.clock = c.clock.Add(time.Millisecond)
	c.Packets = append(c.Packets, Packet{Time: c.clock, Data: append(c.cooked(etherType), data...)})
}

// link returns the layers below IP that package layers can build.
func (c *Capture) link(etherType layers.EthernetType) []gopacket.SerializableLayer {
	if c.Link != 0 && c.Link != layers.LinkTypeEthernet {
		return nil
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	types := []layers.EthernetType{}
	for i := range c.VLANs {
		if i == 0 && len(c.VLANs) > 1 {
			types = append(types, layers.EthernetTypeQinQ)
		} else {
			types = append(types, layers.EthernetTypeDot1Q)
		}
	}
	types = append(types, etherType)
	out := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: mac, DstMAC: mac, EthernetType: types[0]}}
	for i, id := range c.VLANs {
		out = append(out, &layers.Dot1Q{VLANIdentifier: id, Type: types[i+1]})
	}
	return out
}

// LinkNull is BSD loopback, whose number is zero as Capture's default is.
const LinkNull layers.LinkType = 0xffff

// cooked returns the header of link types that package layers can only read.
func (c *Capture) cooked(etherType layers.EthernetType) []byte {
	var b []byte
	switch c.Link {
	case layers.LinkTypeLinuxSLL:
		b = append(b, 0, 0, 3, 4, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(etherType))
	case layers.LinkTypeLinuxSLL2:
		b = binary.BigEndian.AppendUint16(b, uint16(etherType))
		b = append(b, 0, 0, 0, 0, 0, 1, 3, 4, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0)
	case LinkNull:
		b = append(b, 2, 0, 0, 0)
	case layers.LinkTypeLoop:
		b = append(b, 0, 0, 0, 2)
	}
	return b
}

func serialise(l ...gopacket.SerializableLayer) []byte {
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, l...); err != nil {
		panic(fmt.Sprintf("wiretest: %v", err))
	}
	return bytes.Clone(buf.Bytes())
}

// Pcap returns the capture as a pcap file.
func (c *Capture) Pcap() []byte {
	var buf bytes.Buffer
	w := pcapgo.NewWriterNanos(&buf)
	c.write(w, w.WriteFileHeader(1<<18, c.linkType()))
	return buf.Bytes()
}

// Pcapng returns the capture as a pcapng file.
func (c *Capture) Pcapng() []byte {
	var buf bytes.Buffer
	w, err := pcapgo.NewNgWriter(&buf, c.linkType())
	c.write(w, err)
	if err := w.Flush(); err != nil {
		panic(fmt.Sprintf("wiretest: %v", err))
	}
	return buf.Bytes()
}

// linkType is the type that files have.
func (c *Capture) linkType() layers.LinkType {
	switch c.Link {
	case 0:
		return layers.LinkTypeEthernet
	case LinkNull:
		return layers.LinkTypeNull
	}
	return c.Link
}

// write writes the packets, unless there was an error before.
func (c *Capture) write(w interface {
	WritePacket(gopacket.CaptureInfo, []byte) error
}, err error) {
	for _, p := range c.Packets {
		if err == nil {
			ci := gopacket.CaptureInfo{Timestamp: p.Time, CaptureLength: len(p.Data), Length: len(p.Data) + p.Cut}
			err = w.WritePacket(ci, p.Data)
		}
	}
	if err != nil {
		panic(fmt.Sprintf("wiretest: %v", err))
	}
}

// Trace decodes the capture.
func (c *Capture) Trace(port uint16) (*wire.Trace, error) {
	return wire.Read(bytes.NewReader(c.Pcap()), port)
}
