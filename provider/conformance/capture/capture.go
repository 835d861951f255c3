// Package capture records the packets of the suite's runs: from a network
// interface, where the process may open packet sockets, and from taps at sockets
// where it may not. Files are pcapng.
package capture

import (
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

// writeOne writes packets as a file of one interface.
func writeOne(name, ifname, comment string, link layers.LinkType, packets []packet) error {
	ifc := pcapgo.NgInterface{Name: ifname, LinkType: link, TimestampResolution: nanoseconds}
	return writeFile(name, comment, []pcapgo.NgInterface{ifc}, packets)
}
