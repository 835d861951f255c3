// Package capture records the packets of the suite's runs: from a network
// interface, where the process may open packet sockets, and from taps at sockets
// where it may not.
package capture

import (
	"bufio"
	"fmt"
	"os"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// packet is a captured packet. data is the recording's own.
type packet struct {
	time time.Time
	data []byte
}

// writeFile writes packets as a pcapng file of one interface.
func writeFile(name, ifname, comment string, link layers.LinkType, packets []packet) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	buf := bufio.NewWriter(f)
	opts := pcapgo.DefaultNgWriterOptions
	opts.SectionInfo.Application = "govs-verbs-test"
	opts.SectionInfo.Comment = comment
	w, err := pcapgo.NewNgWriterInterface(buf, pcapgo.NgInterface{
		Name: ifname, LinkType: link, TimestampResolution: 9, SnapLength: 0,
	}, opts)
	if err != nil {
		return err
	}
	for _, p := range packets {
		ci := gopacket.CaptureInfo{Timestamp: p.time, CaptureLength: len(p.data), Length: len(p.data)}
		if err := w.WritePacket(ci, p.data); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return buf.Flush()
}
