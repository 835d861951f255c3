package tshark

import (
	"encoding/hex"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// What the witness needs to decode a frame; see the package comment.
const (
	startupHead = mpa.FrameHeaderLen
	fpduHead    = 8
)

// compare returns the contradictions between tshark's decoding of a capture and ours.
func compare(ours *wire.Trace, theirs []*conn) string {
	type ends struct{ initiator, responder netip.AddrPort }
	byEnds := make(map[ends][]*conn)
	for _, c := range theirs {
		k := ends{c.initiator, c.responder}
		byEnds[k] = append(byEnds[k], c)
	}
	seen := make(map[ends]bool)
	for _, c := range ours.Conns {
		k := ends{c.Initiator, c.Responder}
		if seen[k] {
			continue // the ports are used again
		}
		seen[k] = true
		var other *conn
		if list := byEnds[k]; len(list) > 0 && claimsRequest(c) {
			other, byEnds[k] = list[0], list[1:]
		}
		again := slices.ContainsFunc(ours.Conns, func(o *wire.Conn) bool {
			return o != c && o.Initiator == c.Initiator && o.Responder == c.Responder
		})
		if why := compareConn(c, other, again); why != "" {
			return fmt.Sprintf("%s -> %s: %s", c.Initiator, c.Responder, why)
		}
	}
	for _, c := range theirs {
		for _, left := range byEnds[ends{c.initiator, c.responder}] {
			if left == c {
				return fmt.Sprintf("%s: tshark sees an MPA Request, we do not", c)
			}
		}
	}
	return ""
}

// claimsRequest reports whether tshark should see the Request of a connection. If its PD_Length is
// too large, tshark may see it.
func claimsRequest(c *wire.Conn) bool {
	for i := range c.Frames {
		f := &c.Frames[i]
		if f.Dir == wire.ToResponder {
			return visibleStartup(f) && (f.Kind == wire.KindStartup || f.Err == mpa.ErrPDLength)
		}
	}
	return false
}

func visibleStartup(f *wire.Frame) bool { return f.Packet.Offset == 0 && f.Packet.Len >= startupHead }

// compareConn compares a connection with tshark's, which is nil if tshark has none. If the ports
// are used again, tshark's connection may also have frames of the later one.
func compareConn(ours *wire.Conn, theirs *conn, again bool) string {
	if theirs == nil {
		if ours.Request != nil && claimsRequest(ours) {
			return "we see an MPA Request, tshark does not"
		}
		return ""
	}
	var replyFrame *wire.Frame
	for i := range ours.Frames {
		if f := &ours.Frames[i]; f.Kind == wire.KindStartup && f.Dir == wire.ToInitiator {
			replyFrame = f
		}
	}
	for _, dir := range []wire.Direction{wire.ToResponder, wire.ToInitiator} {
		list, whole := comparable(ours, dir, replyFrame)
		got := theirs.frames[dir]
		for i, f := range list {
			if i >= len(got) {
				return fmt.Sprintf("%s: we see %d frames, tshark %d: it lacks %q", dir, len(list), len(got), f)
			}
			if why := compareFrame(f, got[i], ours.CRC()); why != "" {
				return fmt.Sprintf("%s, frame %d (%s): %s", dir, i+1, f, why)
			}
		}
		if whole && !again && len(got) > len(list) {
			return fmt.Sprintf("%s: we see %d frames, tshark %d", dir, len(list), len(got))
		}
	}
	return ""
}

// comparable returns the frames of a direction that the witness can see, up to the first that it
// can't see, and whether these are all frames of the direction.
func comparable(c *wire.Conn, dir wire.Direction, replyFrame *wire.Frame) (list []*wire.Frame, whole bool) {
	for i := range c.Frames {
		f := &c.Frames[i]
		if f.Dir != dir {
			continue
		}
		switch f.Kind {
		case wire.KindUndecoded:
			return list, false
		case wire.KindStartup:
			if !visibleStartup(f) {
				return list, false
			}
			list = append(list, f)
		case wire.KindFPDU:
			if !visibleFPDU(c, f, list, replyFrame) {
				return list, false
			}
			list = append(list, f)
		}
	}
	return list, true
}

// visibleFPDU reports whether the witness can see an FPDU after those in before,
// the start-up frame among them.
func visibleFPDU(c *wire.Conn, f *wire.Frame, before []*wire.Frame, replyFrame *wire.Frame) bool {
	switch {
	case c.Request.Markers || c.Reply.Markers:
		return false
	case !visibleStartup(replyFrame):
		return false
	case f.Dir == wire.ToResponder && f.Packet.Time.Before(replyFrame.Time):
		return false
	case len(before) == 1 && f.Packet.Offset > 0: // after the start-up frame, in its segment
		return false
	case f.Packet.Len-f.Packet.Offset < fpduHead:
		last := before[len(before)-1]
		return f.Packet.Offset > 0 && last.Packet.Span == 1
	}
	return true
}

// field is a value that tshark has to show under a label.
type field struct {
	label string
	value uint64
}

func flag(label string, set bool) field {
	if set {
		return field{label, 1}
	}
	return field{label, 0}
}

// compareFrame compares all that tshark shows of a frame.
func compareFrame(ours *wire.Frame, theirs *frame, crc bool) string {
	if ours.Kind == wire.KindStartup {
		return compareStartup(ours.Startup, theirs)
	}
	if theirs.kind != fpdu {
		return fmt.Sprintf("to tshark it is a %s", theirs.kind)
	}
	label := "CRC"
	if crc {
		label = "CRC check"
		if want := map[bool]string{false: "Good", true: "Bad"}[ours.CRCWrong]; !strings.Contains(theirs.values[label], "("+want+" CRC32") {
			return fmt.Sprintf("we take its CRC to be %s, tshark says %q", strings.ToLower(want), theirs.values[label])
		}
	}
	fields := []field{
		{"ULPDU length", uint64(len(ours.Payload))},
		{label, uint64(bits.ReverseBytes32(ours.CRC))}, // tshark shows it in the order of the wire
	}
	if !ours.HeaderCut {
		fields[0].value += uint64(ours.Header.Len())
		fields = append(fields, segmentFields(ours)...)
	}
	return compareFields(fields, theirs)
}

func compareStartup(ours *mpa.Frame, theirs *frame) string {
	want := request
	if ours.Kind == mpa.KindReply {
		want = reply
	}
	if theirs.kind != want {
		return fmt.Sprintf("to tshark it is a %s", theirs.kind)
	}
	reserved := uint64(ours.Reserved)
	if ours.Enhanced {
		reserved |= 0x10
	}
	if got, want := theirs.values["Private data"], hex.EncodeToString(ours.PrivateData); !samePrefix(got, want) {
		return fmt.Sprintf("we see private data %s, tshark %s", want, got)
	}
	return compareFields([]field{
		flag("Marker flag", ours.Markers), flag("CRC flag", ours.CRC), flag("Connection rejected flag", ours.Reject),
		{"Reserved", reserved}, {"Revision", uint64(ours.Revision)}, {"Private data length", uint64(len(ours.PrivateData))},
	}, theirs)
}

// samePrefix compares octets in hexadecimal. tshark shortens long ones and ends
// them in an ellipsis.
func samePrefix(got, want string) bool {
	for _, ellipsis := range []string{"…", "..."} {
		if short, cut := strings.CutSuffix(got, ellipsis); cut {
			return short != "" && strings.HasPrefix(want, short)
		}
	}
	return got == want
}

// segmentFields returns what tshark has to show of a DDP segment and its RDMAP header.
func segmentFields(f *wire.Frame) []field {
	h, ctl := &f.Header, rdmap.ParseControl(f.Header.ULPCtl)
	out := []field{
		flag("Tagged flag", h.Tagged), flag("Last flag", h.Last), {"DDP protocol version", uint64(h.Version)},
		{"Version", uint64(ctl.Version)}, {"OpCode", uint64(ctl.Opcode)},
	}
	if h.Tagged {
		return append(out, field{"(Data Sink) Steering Tag", uint64(h.STag)}, field{"(Data Sink) Tagged offset", h.TO})
	}
	out = append(out, field{"Queue number", uint64(h.QN)}, field{"Message sequence number", uint64(h.MSN)}, field{"Message offset", uint64(h.MO)})
	if ctl.Opcode.Invalidates() {
		out = append(out, field{"Invalidate STag", uint64(h.ULP32)})
	}
	if r := f.Read; r != nil {
		out = append(out,
			field{"Data Sink STag", uint64(r.SinkSTag)}, field{"Data Sink Tagged Offset", r.SinkTO},
			field{"RDMA Read Message Size", uint64(r.Size)},
			field{"Data Source STag", uint64(r.SourceSTag)}, field{"Data Source Tagged Offset", r.SourceTO})
	}
	if a := f.Atomic; a != nil {
		out = append(out, atomicFields(a)...)
	}
	if a := f.Original; a != nil { // tshark gives the value after it the same label
		out = append(out, field{"Original Request Identifier", uint64(a.ID)})
	}
	if t := f.Terminate; t != nil {
		raw := t.Raw
		out = append(out,
			field{"Layer", uint64(raw[0] >> 4)}, field{"Error Types", uint64(raw[0] & 0xf)}, field{"Error Code", uint64(raw[1])},
			field{"M bit", uint64(raw[2] >> 7)}, field{"D bit", uint64(raw[2] >> 6 & 1)}, field{"R bit", uint64(raw[2] >> 5 & 1)})
	}
	return out
}

// atomicFields returns what tshark has to show of an Atomic Request. tshark shows no data of
// operations other than the two defined ones.
func atomicFields(a *rdmap.AtomicRequest) []field {
	out := []field{{"Request Identifier", uint64(a.ID)}, {"Remote STag", uint64(a.STag)}, {"Remote Tagged Offset", a.TO}}
	switch a.Op {
	case rdmap.AtomicFetchAdd:
		out = append(out, field{"Add Data", a.Data}, field{"Add Mask", a.Mask})
	case rdmap.AtomicCmpSwap:
		out = append(out, field{"Swap Data", a.Data}, field{"Swap Mask", a.Mask})
	default:
		return out
	}
	return append(out, field{"Compare Data", a.Compare}, field{"Compare Mask", a.CompareMask})
}

func compareFields(fields []field, theirs *frame) string {
	for _, f := range fields {
		value, ok := theirs.values[f.label]
		if !ok {
			return fmt.Sprintf("tshark shows no %q, which we take to be %#x", f.label, f.value)
		}
		got, err := number(value)
		if err != nil {
			return fmt.Sprintf("tshark shows %q as %q, which is no number", f.label, value)
		}
		if got != f.value {
			return fmt.Sprintf("%q is %#x to us and %q to tshark", f.label, f.value, value)
		}
	}
	return ""
}
