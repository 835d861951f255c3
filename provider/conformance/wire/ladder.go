package wire

import (
	"fmt"
	"strings"
	"time"

	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Ladder prints the trace, one line a frame: the time since the connection
// began, an arrow (initiator left, responder right), and what went that way.
// Several connections have a line each before theirs, and notes, if there are
// any, come last.
func (t *Trace) Ladder() []string {
	var lines []string
	for i, c := range t.Conns {
		lines = append(lines, t.heading(i)...)
		lines = append(lines, c.Ladder()...)
		for _, n := range c.Notes {
			lines = append(lines, "note: "+n)
		}
	}
	for _, n := range t.Notes {
		lines = append(lines, "note: "+n)
	}
	return lines
}

// heading returns the lines before the ladder of the i-th connection.
func (t *Trace) heading(i int) []string {
	if len(t.Conns) == 1 {
		return nil
	}
	line := fmt.Sprintf("connection %d: %s -> %s", i+1, t.Conns[i].Initiator, t.Conns[i].Responder)
	if i == 0 {
		return []string{line}
	}
	return []string{"", line}
}

// ladderStarts returns, for each connection, the number of its first frame's line in Ladder.
func (t *Trace) ladderStarts() []int {
	starts := make([]int, 0, len(t.Conns))
	line := 0
	for i, c := range t.Conns {
		line += len(t.heading(i))
		starts = append(starts, line)
		line += len(c.Frames) + len(c.Notes)
	}
	return starts
}

// Ladder prints one connection.
func (c *Conn) Ladder() []string {
	lines := make([]string, 0, len(c.Frames))
	for i := range c.Frames {
		lines = append(lines, c.Frames[i].line(c.Start, c.CRC()))
	}
	return lines
}

func (f *Frame) line(start time.Time, crc bool) string {
	arrow := "-->"
	if f.Dir == ToInitiator {
		arrow = "<--"
	}
	text := f.describe(crc)
	if f.Err != nil {
		text += "  !! " + f.Err.Error()
	}
	return fmt.Sprintf("%12.6f %s %s", f.Time.Sub(start).Seconds(), arrow, text)
}

// String describes the frame without time and direction.
func (f *Frame) String() string { return f.describe(true) }

func (f *Frame) describe(crc bool) string {
	switch f.Kind {
	case KindStartup:
		return describeStartup(f.Startup)
	case KindFIN:
		return "FIN"
	case KindRST:
		return "RST"
	case KindUndecoded:
		if len(f.Octets) == 0 {
			return "nothing more to decode"
		}
		return fmt.Sprintf("%d octets not decoded: %s", len(f.Octets), hexStart(f.Octets))
	}
	s := f.describeSegment()
	if !crc {
		return s
	}
	if f.CRCWrong {
		return s + fmt.Sprintf(" CRC %08x WRONG", f.CRC)
	}
	return s + " CRC ok"
}

func describeStartup(m *mpa.Frame) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s rev %d", m.Kind, m.Revision)
	for _, bit := range []struct {
		set  bool
		name string
	}{{m.Markers, " M"}, {m.CRC, " C"}, {m.Reject, " R"}, {m.Enhanced, " S"}} {
		if bit.set {
			b.WriteString(bit.name)
		}
	}
	if m.Reserved != 0 {
		fmt.Fprintf(&b, " reserved %#x", m.Reserved)
	}
	private := m.PrivateData
	if e, rest, err := m.SplitPrivateData(); err == nil && m.UsesEnhanced() {
		fmt.Fprintf(&b, " IRD %d ORD %d", e.IRD, e.ORD)
		for _, bit := range []struct {
			set  bool
			name string
		}{{e.A, " A"}, {e.B, " B"}, {e.C, " C"}, {e.D, " D"}} {
			if bit.set {
				b.WriteString(bit.name)
			}
		}
		private = rest
	}
	if len(private) > 0 {
		fmt.Fprintf(&b, " private data %d: %s", len(private), hexStart(private))
	}
	return b.String()
}

func (f *Frame) describeSegment() string {
	if f.HeaderCut {
		return fmt.Sprintf("FPDU of %d octets: %s", len(f.Payload), hexStart(f.Payload))
	}
	h := &f.Header
	last := ""
	if h.Last {
		last = " L"
	}
	op := f.Opcode()
	switch {
	case f.Terminate != nil:
		return "Terminate " + describeTerminate(f.Terminate)
	case f.Read != nil:
		r := f.Read
		return fmt.Sprintf("%s%s MSN %d sink %#08x:%#x size %d source %#08x:%#x", op, last, h.MSN, r.SinkSTag, r.SinkTO, r.Size, r.SourceSTag, r.SourceTO)
	case f.Immediate != nil:
		return fmt.Sprintf("%s%s QN %d MSN %d data %#016x", op, last, h.QN, h.MSN, *f.Immediate)
	case f.Atomic != nil:
		return fmt.Sprintf("%s%s QN %d MSN %d %s", op, last, h.QN, h.MSN, describeAtomic(f.Atomic))
	case f.Original != nil:
		return fmt.Sprintf("%s%s QN %d MSN %d id %#x original %#016x", op, last, h.QN, h.MSN, f.Original.ID, f.Original.Original)
	case h.Tagged:
		return fmt.Sprintf("%s%s STag %#08x TO %#x length %d", op, last, h.STag, h.TO, len(f.Payload))
	}
	inv := ""
	if op.Invalidates() {
		inv = fmt.Sprintf(" invalidate %#08x", h.ULP32)
	}
	return fmt.Sprintf("%s%s QN %d MSN %d MO %d length %d%s", op, last, h.QN, h.MSN, h.MO, len(f.Payload), inv)
}

// describeAtomic describes an atomic operation with the names of RFC 7306 figure 4.
func describeAtomic(r *rdmap.AtomicRequest) string {
	s := fmt.Sprintf("%s id %#x STag %#08x TO %#x", r.Op, r.ID, r.STag, r.TO)
	switch r.Op {
	case rdmap.AtomicFetchAdd:
		s += fmt.Sprintf(" add %#016x mask %#016x", r.Data, r.Mask)
	default:
		s += fmt.Sprintf(" swap %#016x mask %#016x compare %#016x mask %#016x", r.Data, r.Mask, r.Compare, r.CompareMask)
	}
	if r.Reserved != 0 {
		s += fmt.Sprintf(" reserved %#x", r.Reserved)
	}
	return s
}

func describeTerminate(t *rdmap.ReceivedTerminate) string {
	return fmt.Sprintf("%s [control %x, %s layout]", t.Terminate.String(), t.Raw, t.Layout)
}

// hexStart prints up to 16 octets.
func hexStart(b []byte) string {
	if len(b) > 16 {
		return fmt.Sprintf("%x...", b[:16])
	}
	return fmt.Sprintf("%x", b)
}
