// Package capture records the packets of the suite's runs: from a network
// interface, where the process may open packet sockets, and from taps at sockets
// where it may not. Files are pcapng.
package capture

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// packet is a captured packet. data is the recording's own.
type packet struct {
	time   time.Time
	data   []byte
	length int   // octets that it had, if more than data
	ifc    int   // index of its interface in the file
	order  int64 // where it belongs among the packets of several captures
}

// size counts what a recording holds.
type size struct {
	all  *atomic.Int64 // of what several recordings hold together
	most int           // of all; 0: there is no limit
	own  int64
}

// packetBytes is what a packet takes beside its bytes.
const packetBytes = 128

// add counts n bytes of a packet, or returns why the recording has to end.
func (s *size) add(n int) error {
	s.own += int64(n) + packetBytes
	if s.all.Add(int64(n)+packetBytes) > int64(s.most) && s.most > 0 {
		return fmt.Errorf("the recordings have more than %d bytes, which is their limit", s.most)
	}
	return nil
}

// end records that the recording holds nothing any more.
func (s *size) end() {
	s.all.Add(-s.own)
	s.own = 0
}

// writeOne writes packets as a file of one interface.
func writeOne(name, ifname, comment string, link layers.LinkType, packets []packet) error {
	ifc := pcapgo.NgInterface{Name: ifname, LinkType: link, TimestampResolution: nanoseconds}
	return writeFile(name, comment, []pcapgo.NgInterface{ifc}, packets)
}
