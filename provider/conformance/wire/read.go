package wire

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// ReadFile decodes a pcap or pcapng file, gzipped or not. With a port other than zero
// only connections to or from it are decoded.
//
// The error is about a file that is no capture, or of which not even the first packet can
// be read. All other errors in a file are in the Notes of the Trace and of its Conns, and
// in the Err of Frames.
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

// Read decodes a stream with a capture, as ReadFile decodes a file.
func Read(r io.Reader, port uint16) (*Trace, error) {
	src, err := newSource(r)
	if err != nil {
		return nil, err
	}
	a := newAssembly(port)
	var notes []string
	for {
		data, ci, link, err := src.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			// A capture that was cut off, as by a full disk or a killed dumpcap, is used
			// as far as it goes.
			if a.packets > 0 {
				notes = append(notes, fmt.Sprintf("the file cannot be read beyond packet %d: %v", a.packets, err))
				break
			}
			return nil, fmt.Errorf("packet 1: %w", err)
		}
		a.packets++
		t, kind := parsePacket(data, link)
		a.skipped.count(kind, link)
		if kind == packetTCP {
			a.add(t, ci.Timestamp)
		}
	}
	trace := a.finish()
	trace.Notes = append(notes, trace.Notes...)
	return trace, nil
}

func (a *assembly) finish() *Trace {
	t := &Trace{Notes: a.skipped.notes()}
	for _, s := range a.streams {
		t.Conns = append(t.Conns, s.decode())
	}
	slices.SortStableFunc(t.Conns, func(x, y *Conn) int { return cmp.Compare(x.Start.UnixNano(), y.Start.UnixNano()) })
	return t
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
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err // of a folder, for instance
	}
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
		// The upper bits of the field say whether frames end in an FCS.
		return data, ci, s.pcap.LinkType() & 0x0fff, err
	}
	data, ci, err := s.ng.ReadPacketData()
	if err != nil {
		return nil, ci, 0, err
	}
	ifc, err := s.ng.Interface(ci.InterfaceIndex)
	return data, ci, ifc.LinkType, err
}
