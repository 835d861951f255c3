//go:build ignore

// Command extract prints the FPDUs in a capture of iWARP over TCP, one per line:
// the stream (client port > server port), the octet offset in that direction,
// and the FPDU in hex with its length field, pad and CRC.
//
// The capture must hold the start of each connection, and segments in order
// without loss, as a capture of a loopback interface does. Markers are not
// supported; siw never uses them.
//
//	go run extract.go capture.pcap
package main

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// direction is one half of a TCP connection: the octets that have not made a
// frame yet.
type direction struct {
	next    uint32 // sequence number that comes next
	offset  int    // octets taken from the front of pending so far
	started bool   // the MPA start-up frame has passed
	pending []byte
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: go run extract.go capture.pcap")
	}
	f, err := os.Open(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		log.Fatal(err)
	}
	streams := map[string]*direction{}
	for {
		data, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		p := gopacket.NewPacket(data, r.LinkType(), gopacket.Default)
		tcp, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if !ok {
			continue
		}
		name := fmt.Sprintf("%d>%d", tcp.SrcPort, tcp.DstPort)
		if tcp.SYN {
			streams[name] = &direction{next: tcp.Seq + 1}
			continue
		}
		d := streams[name]
		if d == nil || len(tcp.Payload) == 0 {
			continue
		}
		if tcp.Seq != d.next {
			log.Fatalf("%s: sequence number %d where %d comes next", name, tcp.Seq, d.next)
		}
		d.next += uint32(len(tcp.Payload))
		d.pending = append(d.pending, tcp.Payload...)
		d.frames(name)
	}
}

// frames prints the frames that are complete.
func (d *direction) frames(name string) {
	if !d.started {
		const fixed = 20 // key, flags, revision, PD_Length
		if len(d.pending) < fixed {
			return
		}
		n := fixed + int(binary.BigEndian.Uint16(d.pending[18:]))
		if len(d.pending) < n {
			return
		}
		d.take(n)
		d.started = true
	}
	for len(d.pending) >= 2 {
		n := 2 + int(binary.BigEndian.Uint16(d.pending))
		n += -n&3 + 4
		if len(d.pending) < n {
			return
		}
		at := d.offset
		fmt.Printf("%s @%d %s\n", name, at, hex.EncodeToString(d.take(n)))
	}
}

func (d *direction) take(n int) []byte {
	b := d.pending[:n]
	d.pending = d.pending[n:]
	d.offset += n
	return b
}
