package wire

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gopacket/gopacket/layers"
)

// Live decodes packets while they come. It prints what Trace.Ladder prints, a line for each frame
// as soon as the frame is complete. Lines of several connections alternate. Where the connection
// changes, a line such as "connection 2: A -> B" comes first.
//
// Live holds what it can't decode of a direction until the connection has ended, because a packet
// that is late, or sent again, may complete it. Live is not safe for concurrent use.
type Live struct {
	// All prints connections that are not iWARP, too. The MPA start-up frames decide that.
	All bool

	// Limit is how many bytes of all connections are kept: their payload, and 128 for each packet
	// that should have some. New packets make Live decode their whole connection again. Beyond
	// Limit, the connection of which the most is kept is not decoded any further. 0 means 64 MiB.
	Limit int

	assembly *assembly
	conns    map[*stream]*liveConn
	changed  []*liveConn // with packets that were not decoded, in order of the first of these
	kept     int         // of Limit
	opened   int
	last     *liveConn // of the last line
}

// liveConn is a connection of a Live.
type liveConn struct {
	stream  *stream
	number  int
	changed bool   // in Live.changed
	octets  int    // of payload
	kept    int    // of Live.Limit
	printed [2]int // frames of each direction
}

const defaultLiveLimit = 64 << 20

// perPacket is what a packet takes beside its payload: headers, a piece and a stamp. Without it, a
// peer that sends a byte at a time makes a Live keep 100 times the Limit.
const perPacket = 128

// NewLive returns a Live for connections to or from port, or for all if it is 0.
func NewLive(port uint16) *Live {
	return &Live{assembly: newAssembly(port), conns: make(map[*stream]*liveConn)}
}

// Packet takes a packet with an Ethernet header, which belongs to the Live from then on. Those that
// can't be used are ignored.
func (l *Live) Packet(data []byte, at time.Time) {
	t, kind := parsePacket(data, layers.LinkTypeEthernet)
	if kind != packetTCP {
		return
	}
	s := l.assembly.add(t, at)
	l.assembly.streams = nil // conns has the streams that are not over
	if s == nil || s.over {
		return
	}
	c := l.conns[s]
	if c == nil {
		c = &liveConn{stream: s}
		l.conns[s] = c
	}
	if len(t.payload) > 0 || t.missing > 0 {
		c.octets += len(t.payload)
		c.kept += len(t.payload) + perPacket
		l.kept += len(t.payload) + perPacket
	}
	if !c.changed {
		c.changed = true
		l.changed = append(l.changed, c)
	}
}

// Lines returns a line for each frame that packets since the last call have completed.
func (l *Live) Lines() []string {
	var lines []string
	for _, c := range l.changed {
		c.changed = false
		lines = append(lines, l.decode(c, false)...)
	}
	l.changed = nil
	limit := l.Limit
	if limit == 0 {
		limit = defaultLiveLimit
	}
	for l.kept > limit {
		c := slices.MaxFunc(slices.Collect(maps.Values(l.conns)), func(x, y *liveConn) int {
			return x.kept - y.kept
		})
		note := fmt.Sprintf("note: not decoded any further after %d octets", c.octets)
		lines = append(lines, l.decode(c, true, note)...)
	}
	return lines
}

// End returns the lines that Live has held back, and forgets all connections.
func (l *Live) End() []string {
	lines := l.Lines()
	byStart := func(x, y *liveConn) int { return x.stream.start.Compare(y.stream.start) }
	for _, c := range slices.SortedFunc(maps.Values(l.conns), byStart) {
		lines = append(lines, l.decode(c, true)...)
	}
	return lines
}

// decode returns the lines of c that were not printed before. end says that no more packets will be
// used, and notes are lines about that.
func (l *Live) decode(c *liveConn, end bool, notes ...string) []string {
	conn := c.stream.decode()
	over := end || c.stream.ended()
	var lines []string
	if l.All || conn.Request != nil || conn.Reply != nil {
		lines = c.lines(conn, over)
		if over {
			for _, n := range conn.Notes {
				lines = append(lines, "note: "+n)
			}
		}
		lines = append(lines, notes...)
	}
	if over {
		c.stream.finish()
		delete(l.conns, c.stream)
		l.kept -= c.kept
	}
	if len(lines) == 0 || l.last == c {
		return lines
	}
	l.last = c
	if c.number == 0 {
		l.opened++
		c.number = l.opened
	}
	heading := fmt.Sprintf("connection %d: %s -> %s", c.number, conn.Initiator, conn.Responder)
	return append([]string{heading}, lines...)
}

// lines returns the lines of frames that were not printed before. In each direction it holds what
// can't be decoded, and all after it, unless the connection is over.
func (c *liveConn) lines(conn *Conn, over bool) (lines []string) {
	var seen [2]int
	var held [2]bool
	for i := range conn.Frames {
		f := &conn.Frames[i]
		held[f.Dir] = held[f.Dir] || f.Kind == KindUndecoded && !over
		if held[f.Dir] {
			continue
		}
		if seen[f.Dir]++; seen[f.Dir] > c.printed[f.Dir] {
			c.printed[f.Dir]++
			lines = append(lines, f.line(conn.Start, conn.CRC()))
		}
	}
	return lines
}

// ended reports whether the decoded connection has ended and is complete: there is a reset, or
// both sides have sent a FIN and nothing before it is missing.
func (s *stream) ended() bool {
	fins := 0
	for i := range s.halves {
		h := &s.halves[i]
		for _, f := range h.end {
			if f.Kind == KindRST {
				return true
			}
		}
		if h.finAt != nil && h.lack == "" {
			fins++
		}
	}
	return fins == len(s.halves)
}

// finish frees what a connection has brought. Packets of it that still come are ignored.
func (s *stream) finish() {
	s.over = true
	for i := range s.halves {
		h := &s.halves[i]
		h.pieces, h.octets, h.times = nil, nil, nil
	}
}
