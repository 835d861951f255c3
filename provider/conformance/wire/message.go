package wire

import (
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// A Message is a message of one side, without what may differ between runs: where
// segments were cut, how frames were coalesced, times, ports, and the values of STags and
// tagged offsets, of which only the relations are left. Payload is replaced by its CRC32.
//
// The last message of a direction is "end", with one field "how", one of the End
// constants. An RST after a FIN of the same side only shows that octets came for a socket
// that was closed already, which depends on timing: it is in the ladder, and not here.
type Message struct {
	Kind   string // "request", "reply", "send", "read-response", "terminate", "undecoded", "end" ...
	Fields []Field

	frames []int // indices in the connection's Frames
}

// A Field of a Message.
type Field struct {
	Name, Value string
}

// kindOf is the Kind of an RDMAP message.
func kindOf(op rdmap.Opcode) string {
	return strings.ToLower(strings.ReplaceAll(op.String(), " ", "-"))
}

// Kinds returns every Kind that a Message can have.
func Kinds() []string {
	kinds := []string{"request", "reply", "short-fpdu", "undecoded", "end"}
	const opcodes = 16 // the field has four bits
	for op := range rdmap.Opcode(opcodes) {
		kinds = append(kinds, kindOf(op))
	}
	return kinds
}

// String prints the message on one line.
func (m *Message) String() string {
	var b strings.Builder
	b.WriteString(m.Kind)
	for _, f := range m.Fields {
		fmt.Fprintf(&b, " %s=%s", f.Name, f.Value)
	}
	return b.String()
}

func (m *Message) add(name string, value any) {
	m.Fields = append(m.Fields, Field{name, fmt.Sprint(value)})
}

func (m *Message) set(name string, value any) {
	for i := range m.Fields {
		if m.Fields[i].Name == name {
			m.Fields[i].Value = fmt.Sprint(value)
			return
		}
	}
}

// Ways of ending a direction.
const (
	EndFIN  = "FIN"
	EndRST  = "RST"  // a reset without a FIN before it
	EndNone = "none" // the capture shows neither
	EndCut  = "cut"  // neither, and the other side had reset the connection: there may have been no time for a FIN
)

// Messages returns the messages of one side of a connection, in order.
func (c *Conn) Messages(dir Direction) []Message {
	n := newNormaliser(c, dir)
	var out []Message
	pending := make(map[flow]*open)
	for i := range c.Frames {
		f := &c.Frames[i]
		if f.Dir != dir {
			continue
		}
		switch f.Kind {
		case KindStartup:
			out = append(out, startupMessage(f))
		case KindUndecoded:
			m := Message{Kind: "undecoded"}
			m.add("length", len(f.Octets))
			m.add("why", f.Err)
			out = append(out, m)
		case KindFPDU:
			out = n.fpdu(out, f, i, pending)
			continue
		case KindFIN, KindRST:
			continue
		}
		out[len(out)-1].frames = []int{i}
	}
	return append(out, c.end(dir))
}

// End returns how a direction ended: one of the End constants.
func (c *Conn) End(dir Direction) string {
	how, reset := EndNone, false
	for i := range c.Frames {
		f := &c.Frames[i]
		switch {
		case f.Kind == KindRST && f.Dir != dir:
			reset = true
		case f.Kind == KindFIN && f.Dir == dir:
			how = EndFIN
		case f.Kind == KindRST && f.Dir == dir && how == EndNone:
			how = EndRST
		}
	}
	if how == EndNone && reset {
		how = EndCut
	}
	return how
}

// end returns the message that says how a direction ended.
func (c *Conn) end(dir Direction) Message {
	m := Message{Kind: "end"}
	for i := range c.Frames {
		if f := &c.Frames[i]; f.Dir == dir && (f.Kind == KindFIN || f.Kind == KindRST) {
			m.frames = append(m.frames, i)
		}
	}
	m.add("how", c.End(dir))
	return m
}

// flow is a sequence of segments that has at most one unfinished message at a time.
type flow struct {
	opcode rdmap.Opcode
	tagged bool
	qn     uint32
}

// open is a message whose segments have not all been seen.
type open struct {
	at     int    // index in the result
	length uint64 // octets so far
	sum    uint32 // their CRC32
	base   uint64 // TO of the first, zero if untagged
	header ddp.Header
	unlike bool // a segment had another header
}

// alike reports whether a segment's header fits the message. Only where the segment lies, and
// whether it is the last, may differ.
func (o *open) alike(h ddp.Header) bool {
	h.TO, h.MO, h.Last = o.header.TO, o.header.MO, o.header.Last
	return h == o.header
}

// fpdu adds a segment to the message that it continues, or begins one.
func (n *normaliser) fpdu(out []Message, f *Frame, i int, pending map[flow]*open) []Message {
	if f.HeaderCut {
		m := Message{Kind: "short-fpdu", frames: []int{i}}
		m.add("length", len(f.Payload))
		return append(out, m)
	}
	k := flow{opcode: f.Opcode(), tagged: f.Header.Tagged}
	at := uint64(f.Header.MO)
	if k.tagged {
		at = f.Header.TO
	} else {
		k.qn = f.Header.QN
	}
	o := pending[k]
	if o == nil {
		out = append(out, n.first(f))
		o = &open{at: len(out) - 1, header: f.Header}
		if k.tagged {
			o.base = at
		}
		pending[k] = o
	}
	m := &out[o.at]
	m.frames = append(m.frames, i)
	if at != o.base+o.length {
		m.set("offsets", "not in order")
	}
	if !o.alike(f.Header) && !o.unlike {
		o.unlike = true
		m.add("segments", "with unlike headers")
	}
	if f.CRCWrong {
		m.set("crc", "wrong")
	}
	o.length += uint64(len(f.Payload))
	o.sum = crc32.Update(o.sum, crc32.IEEETable, withoutTags(f))
	m.set("length", o.length)
	m.set("octets", fmt.Sprintf("%08x", o.sum))
	m.set("last", f.Header.Last)
	if f.Header.Last {
		delete(pending, k)
	}
	return out
}

func startupMessage(f *Frame) Message {
	s := f.Startup
	m := Message{Kind: "request"}
	if s.Kind == mpa.KindReply {
		m.Kind = "reply"
	}
	m.add("revision", s.Revision)
	m.add("M", bit(s.Markers))
	m.add("C", bit(s.CRC))
	m.add("R", bit(s.Reject))
	m.add("S", bit(s.Enhanced))
	m.add("reserved", s.Reserved)
	private := s.PrivateData
	if e, rest, err := s.SplitPrivateData(); err == nil && s.UsesEnhanced() {
		m.add("IRD", e.IRD)
		m.add("ORD", e.ORD)
		m.add("ABCD", bit(e.A)+bit(e.B)+bit(e.C)+bit(e.D))
		private = rest
	}
	m.add("private", fmt.Sprintf("%d:%08x", len(private), crc32.ChecksumIEEE(private)))
	return m
}

func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// normaliser names the STags that one direction of a connection mentions, in the order in which
// they first come, and separately for each owner. It makes tagged offsets relative to the first
// offset with the same STag. The result does not depend on how the frames of the two directions
// interleave.
type normaliser struct {
	conn  *Conn
	dir   Direction
	names map[tag]string
	bases map[tag]uint64

	requested []*rdmap.ReadRequest // by the other side, in order
	answered  int                  // of them, by responses in this direction
}

// tag is an STag of one side: the two may use the same number.
type tag struct {
	responders bool
	stag       uint32
}

func newNormaliser(c *Conn, dir Direction) *normaliser {
	n := &normaliser{conn: c, dir: dir, names: make(map[tag]string), bases: make(map[tag]uint64)}
	for _, f := range c.FPDUs(1 - dir) {
		if f.Read != nil {
			n.requested = append(n.requested, f.Read)
		}
	}
	return n
}

// theirs returns the tag of an STag of the direction's receiver, and ours of its sender.
func (n *normaliser) theirs(stag uint32) tag { return tag{n.dir == ToResponder, stag} }
func (n *normaliser) ours(stag uint32) tag   { return tag{n.dir == ToInitiator, stag} }

func (n *normaliser) name(t tag) string {
	if t.stag == 0 {
		return "0"
	}
	name, ok := n.names[t]
	if !ok {
		prefix := "i"
		if t.responders {
			prefix = "r"
		}
		count := 1
		for other := range n.names {
			if other.responders == t.responders {
				count++
			}
		}
		name = fmt.Sprintf("%s%d", prefix, count)
		n.names[t] = name
	}
	return name
}

func (n *normaliser) offset(t tag, to uint64) string {
	base, ok := n.bases[t]
	if !ok {
		base = to
		n.bases[t] = to
	}
	return fmt.Sprintf("%+d", int64(to-base))
}

// first makes the message that a segment begins. fpdu adds the fields that depend on all
// segments.
func (n *normaliser) first(f *Frame) Message {
	h, op := &f.Header, f.Opcode()
	m := Message{Kind: kindOf(op)}
	if h.Version != ddp.Version {
		m.add("DV", h.Version)
	}
	ctl := rdmap.ParseControl(h.ULPCtl)
	if ctl.Version != rdmap.Version {
		m.add("RV", ctl.Version)
	}
	if h.Reserved != 0 {
		m.add("ddp-reserved", h.Reserved)
	}
	if ctl.Reserved != 0 {
		m.add("rdmap-reserved", ctl.Reserved)
	}
	if h.Tagged != op.Tagged() {
		m.add("tagged", h.Tagged)
	}
	m.add("crc", "ok")
	m.add("last", "false")
	switch {
	case f.Terminate != nil:
		m.add("QN", h.QN)
		m.add("MSN", h.MSN)
		n.terminate(&m, f.Terminate)
		return m
	case f.Read != nil:
		r := f.Read
		m.add("QN", h.QN)
		m.add("MSN", h.MSN)
		m.add("MO", h.MO)
		m.add("sink", n.name(n.ours(r.SinkSTag))+n.offset(n.ours(r.SinkSTag), r.SinkTO))
		m.add("source", n.name(n.theirs(r.SourceSTag))+n.offset(n.theirs(r.SourceSTag), r.SourceTO))
		m.add("size", r.Size)
		return m
	case f.Immediate != nil:
		m.add("QN", h.QN)
		m.add("MSN", h.MSN)
		m.add("MO", h.MO)
		m.add("data", fmt.Sprintf("%#016x", *f.Immediate))
		return m
	case f.Atomic != nil:
		n.atomic(&m, h, f.Atomic)
		return m
	case f.Original != nil: // the requester chooses its identifier
		m.add("QN", h.QN)
		m.add("MSN", h.MSN)
		m.add("MO", h.MO)
		m.add("original", fmt.Sprintf("%#016x", f.Original.Original))
		return m
	case op == rdmap.OpReadResponse && h.Tagged:
		n.response(&m, h)
	case h.Tagged:
		m.add("STag", n.name(n.theirs(h.STag)))
		m.add("TO", n.offset(n.theirs(h.STag), h.TO))
	default:
		m.add("QN", h.QN)
		m.add("MSN", h.MSN)
		m.add("MO", h.MO)
		if op.Invalidates() {
			m.add("invalidate", n.name(n.theirs(h.ULP32)))
		} else if h.ULP32 != 0 {
			m.add("reserved", n.reserved(h.ULP32))
		}
	}
	m.add("offsets", "in order")
	m.add("length", 0)
	m.add("octets", "")
	return m
}

// atomic returns the fields of an Atomic Request.
func (n *normaliser) atomic(m *Message, h *ddp.Header, r *rdmap.AtomicRequest) {
	m.add("QN", h.QN)
	m.add("MSN", h.MSN)
	m.add("MO", h.MO)
	m.add("operation", r.Op)
	m.add("target", n.name(n.theirs(r.STag))+n.offset(n.theirs(r.STag), r.TO))
	m.add("data", fmt.Sprintf("%#x", r.Data))
	m.add("mask", fmt.Sprintf("%#x", r.Mask))
	if r.Op != rdmap.AtomicFetchAdd {
		m.add("compare", fmt.Sprintf("%#x", r.Compare))
		m.add("compare-mask", fmt.Sprintf("%#x", r.CompareMask))
	}
}

// response relates a Read Response to the request that it answers. That is the next one in order,
// or else another one that has its STag.
func (n *normaliser) response(m *Message, h *ddp.Header) {
	next := n.answered
	n.answered++
	if next < len(n.requested) && n.requested[next].SinkSTag == h.STag {
		m.add("STag", "as requested")
		m.add("TO", fmt.Sprintf("%+d", int64(h.TO-n.requested[next].SinkTO)))
		return
	}
	for k, r := range n.requested {
		if r.SinkSTag == h.STag {
			m.add("STag", fmt.Sprintf("of request %d, not %d", k+1, next+1))
			m.add("TO", fmt.Sprintf("%+d", int64(h.TO-r.SinkTO)))
			return
		}
	}
	m.add("STag", "of no request")
	m.add("TO", n.offset(n.theirs(h.STag), h.TO))
}

// reserved returns the value, in a message that invalidates nothing, of the field for the STag to
// invalidate. It is the name of an STag that the direction mentions elsewhere, or else the number.
func (n *normaliser) reserved(value uint32) string {
	for _, f := range n.conn.FPDUs(n.dir) {
		if f.Header.Tagged && f.Header.STag == value {
			return n.name(n.theirs(value))
		}
	}
	return fmt.Sprintf("%#08x", value)
}

// withoutTags returns the payload of a segment without what may differ between runs. Only the
// payload of a Read or Atomic Request that could not be decoded has such fields: STags and tagged
// offsets. They are cleared as far as the payload has them.
func withoutTags(f *Frame) []byte {
	if f.Opcode() == rdmap.OpAtomicRequest && !f.Header.Tagged && f.Atomic == nil {
		const id, data = 4, 20 // RFC 7306 figure 4: identifier, STag, TO
		masked := slices.Clone(f.Payload)
		clear(masked[min(id, len(masked)):min(data, len(masked))])
		return masked
	}
	if f.Opcode() != rdmap.OpReadRequest || f.Header.Tagged || f.Read != nil {
		return f.Payload
	}
	// Sink STag, sink TO, size, source STag, source TO (RFC 5040 section 4.4).
	const size, source, end = 12, 16, 28
	masked := slices.Clone(f.Payload)
	clear(masked[:min(size, len(masked))])
	clear(masked[min(source, len(masked)):min(end, len(masked))])
	return masked
}

func (n *normaliser) terminate(m *Message, t *rdmap.ReceivedTerminate) {
	m.add("error", fmt.Sprintf("%d/%d/0x%02x", t.Layer, t.EType, uint8(t.Code)))
	m.add("layout", t.Layout)
	m.add("MDR", bit(t.M)+bit(t.D)+bit(t.R))
	if t.HaveLength {
		m.add("segment-length", t.SegmentLength)
	}
	if t.HaveDDP {
		if h := &t.DDP; h.Tagged {
			m.add("header", "tagged "+n.mentioned(h))
		} else {
			m.add("header", fmt.Sprintf("untagged QN %d MSN %d MO %d", h.QN, h.MSN, h.MO))
		}
	}
	if t.HaveRead {
		m.add("read", fmt.Sprintf("size %d", t.Read.Size))
	}
}

// mentioned says whether the other side sent the tagged header that a Terminate returns. The
// header's STag and TO can't be compared as they are.
func (n *normaliser) mentioned(h *ddp.Header) string {
	for _, f := range n.conn.FPDUs(1 - n.dir) {
		if f.Header.Tagged && f.Header.STag == h.STag && f.Header.TO == h.TO {
			return "as sent"
		}
	}
	return "not as sent"
}
