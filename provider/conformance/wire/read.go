package wire

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/gopacket/gopacket/reassembly"
)

// ReadFile decodes a pcap or pcapng file. With a port other than zero only
// connections to it are looked at.
func ReadFile(name string, port uint16) (*Trace, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := Read(f, port)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}

// Read is ReadFile on a stream.
func Read(r io.Reader, port uint16) (*Trace, error) {
	src, err := newSource(r)
	if err != nil {
		return nil, err
	}
	a := newAssembly(port)
	for {
		data, ci, link, err := src.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			// A capture that was cut off, as by a full disk or a killed
			// dumpcap, is worth what it has.
			if errors.Is(err, io.ErrUnexpectedEOF) && a.packets > 0 {
				break
			}
			return nil, fmt.Errorf("packet %d: %w", a.packets+1, err)
		}
		a.add(data, ci, link)
	}
	return a.finish(), nil
}

// source is a capture file of either format.
type source struct {
	pcap *pcapgo.Reader
	ng   *pcapgo.NgReader
}

var pcapngMagic = []byte{0x0a, 0x0d, 0x0d, 0x0a}

func newSource(r io.Reader) (*source, error) {
	br := bufio.NewReaderSize(r, 1<<16)
	magic, err := br.Peek(4)
	if err != nil {
		return nil, errors.New("not a capture file: shorter than four octets")
	}
	if bytes.Equal(magic, pcapngMagic) {
		opts := pcapgo.DefaultNgReaderOptions
		opts.WantMixedLinkType = true
		ng, err := pcapgo.NewNgReader(br, opts)
		if err != nil {
			return nil, fmt.Errorf("not a pcapng file that can be read: %w", err)
		}
		return &source{ng: ng}, nil
	}
	pc, err := pcapgo.NewReader(br)
	if err != nil {
		return nil, fmt.Errorf("neither a pcap nor a pcapng file: %w", err)
	}
	return &source{pcap: pc}, nil
}

func (s *source) next() ([]byte, gopacket.CaptureInfo, layers.LinkType, error) {
	if s.pcap != nil {
		data, ci, err := s.pcap.ReadPacketData()
		return data, ci, s.pcap.LinkType(), err
	}
	data, ci, err := s.ng.ReadPacketData()
	if err != nil {
		return nil, ci, 0, err
	}
	link := s.ng.LinkType()
	if ifc, err := s.ng.Interface(ci.InterfaceIndex); err == nil {
		link = ifc.LinkType
	}
	return data, ci, link, nil
}

// assembly puts packets back into streams.
type assembly struct {
	port      uint16
	packets   int
	assembler *reassembly.Assembler
	streams   []*stream
}

func newAssembly(port uint16) *assembly {
	a := &assembly{port: port}
	a.assembler = reassembly.NewAssembler(reassembly.NewStreamPool(a))
	return a
}

// New implements reassembly.StreamFactory.
func (a *assembly) New(netFlow, tcpFlow gopacket.Flow, tcp *layers.TCP, ac reassembly.AssemblerContext) reassembly.Stream {
	src, _ := netip.AddrFromSlice(netFlow.Src().Raw())
	dst, _ := netip.AddrFromSlice(netFlow.Dst().Raw())
	s := &stream{
		client: netip.AddrPortFrom(src, uint16(tcp.SrcPort)),
		server: netip.AddrPortFrom(dst, uint16(tcp.DstPort)),
		start:  ac.GetCaptureInfo().Timestamp,
		synAck: tcp.SYN && tcp.ACK,
	}
	a.streams = append(a.streams, s)
	return s
}

// packetContext carries a packet's capture info through the assembler.
type packetContext gopacket.CaptureInfo

// GetCaptureInfo implements reassembly.AssemblerContext.
func (c *packetContext) GetCaptureInfo() gopacket.CaptureInfo { return gopacket.CaptureInfo(*c) }

func (a *assembly) add(data []byte, ci gopacket.CaptureInfo, link layers.LinkType) {
	a.packets++
	p := gopacket.NewPacket(data, link, gopacket.DecodeOptions{Lazy: true, NoCopy: true})
	tcp, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
	if !ok || p.NetworkLayer() == nil {
		return
	}
	if p := layers.TCPPort(a.port); a.port != 0 && tcp.SrcPort != p && tcp.DstPort != p {
		return
	}
	a.assembler.AssembleWithContext(p.NetworkLayer().NetworkFlow(), tcp, (*packetContext)(&ci))
}

func (a *assembly) finish() *Trace {
	a.assembler.FlushAll()
	t := &Trace{}
	for _, s := range a.streams {
		t.Conns = append(t.Conns, s.decode())
	}
	slices.SortStableFunc(t.Conns, func(x, y *Conn) int { return cmp.Compare(x.Start.UnixNano(), y.Start.UnixNano()) })
	return t
}

// stream is one TCP connection as the assembler gives it.
type stream struct {
	client, server netip.AddrPort // who sent the first packet, and whom to
	synAck         bool           // the first packet was the responder's
	start          time.Time
	halves         [2]half // by Direction as the assembler has it: 0 from client
}

// half is what one side sent.
type half struct {
	octets []byte
	times  []stamp
	gap    int // octets missing behind those, and decoding ends there; 0 if none
	end    []Frame
}

// stamp says that the octets before end had come by time.
type stamp struct {
	end  uint64
	time time.Time
}

// Accept implements reassembly.Stream. It sees every packet, also those without
// octets, which is where FIN and RST are.
func (s *stream) Accept(tcp *layers.TCP, ci gopacket.CaptureInfo, dir reassembly.TCPFlowDirection, _ reassembly.Sequence, start *bool, _ reassembly.AssemblerContext) bool {
	h := &s.halves[half01(dir)]
	if !tcp.SYN && len(h.octets) == 0 && len(tcp.Payload) > 0 {
		*start = true // a capture that began later than the connection
	}
	switch {
	case tcp.RST:
		h.ended(KindRST, ci.Timestamp)
	case tcp.FIN:
		h.ended(KindFIN, ci.Timestamp)
	}
	return true
}

// ended records the first FIN and the first RST of a direction.
func (h *half) ended(kind Kind, at time.Time) {
	for _, f := range h.end {
		if f.Kind == kind {
			return
		}
	}
	h.end = append(h.end, Frame{Kind: kind, Time: at})
}

func half01(dir reassembly.TCPFlowDirection) int {
	if dir == reassembly.TCPDirClientToServer {
		return 0
	}
	return 1
}

// ReassembledSG implements reassembly.Stream.
func (s *stream) ReassembledSG(sg reassembly.ScatterGather, _ reassembly.AssemblerContext) {
	dir, _, _, skip := sg.Info()
	h := &s.halves[half01(dir)]
	n, _ := sg.Lengths()
	if skip > 0 && len(h.octets) > 0 && h.gap == 0 {
		h.gap = skip
	}
	if n == 0 || h.gap != 0 {
		return
	}
	// A chunk is one packet, or several that had to wait for an earlier one and
	// so became readable with the last of them.
	h.octets = append(h.octets, sg.Fetch(n)...)
	h.times = append(h.times, stamp{uint64(len(h.octets)), sg.CaptureInfo(n - 1).Timestamp})
}

// ReassemblyComplete implements reassembly.Stream. The stream stays, to see an
// RST behind a FIN.
func (s *stream) ReassemblyComplete(reassembly.AssemblerContext) bool { return false }

// at returns when the octet before offset end had come.
func (h *half) at(end uint64) time.Time {
	i, _ := slices.BinarySearchFunc(h.times, end, func(s stamp, e uint64) int { return cmp.Compare(s.end, e) })
	if i == len(h.times) {
		i--
	}
	if i < 0 {
		return time.Time{}
	}
	return h.times[i].time
}
