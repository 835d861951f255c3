package wire

import (
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// A Message is what one side said, without what may differ by right: where
// segments were cut, how frames were coalesced, times, ports, and the values of
// STags and tagged offsets, of which only the relations are left.
type Message struct {
	Kind   string // "request", "reply", "send", "read-response", "terminate", "fin" ...
	Fields []Field
}

// A Field of a Message.
type Field struct {
	Name, Value string
}

// String prints the message on one line.
func (m Message) String() string {
	var b strings.Builder
	b.WriteString(m.Kind)
	for _, f := range m.Fields {
		fmt.Fprintf(&b, " %s=%s", f.Name, f.Value)
	}
	return b.String()
}

// Messages returns what one side of every connection said, in order.
func (t *Trace) Messages(dir Direction) []Message {
	var out []Message
	for _, c := range t.Conns {
		out = append(out, c.messages(dir)...)
	}
	return out
}

// normaliser names the STags of a connection in the order in which they appear,
// and takes tagged offsets relative to the first that is seen with each.
type normaliser struct {
	stags map[uint32]int
	bases map[uint32]uint64
}

func (n *normaliser) stag(s uint32) string {
	if s == 0 {
		return "0"
	}
	id, ok := n.stags[s]
	if !ok {
		id = len(n.stags) + 1
		n.stags[s] = id
	}
	return fmt.Sprintf("stag%d", id)
}

func (n *normaliser) to(s uint32, to uint64) string {
	base, ok := n.bases[s]
	if !ok {
		base = to
		n.bases[s] = to
	}
	return fmt.Sprintf("%+d", int64(to-base))
}

// open is a message of which not all segments have been seen.
type open struct {
	at     int // index in the result
	length int
	sum    uint32
}

func (c *Conn) messages(dir Direction) []Message {
	n := &normaliser{stags: make(map[uint32]int), bases: make(map[uint32]uint64)}
	var out []Message
	var pending [2]*open // untagged and tagged: one of each may be unfinished
	for i := range c.Frames {
		f := &c.Frames[i]
		var m Message
		switch f.Kind {
		case KindStartup:
			m = startupMessage(f)
		case KindFIN, KindRST:
			m = Message{Kind: strings.ToLower(f.describe(false))}
		case KindUndecoded:
			m = Message{Kind: "undecoded", Fields: []Field{{"length", fmt.Sprint(len(f.Octets))}}}
		case KindFPDU:
			p := &pending[0]
			if f.Header.Tagged {
				p = &pending[1]
			}
			m = n.segment(f)
			if f.Dir != dir {
				continue // named its STags, for both directions count alike
			}
			if *p == nil {
				out = append(out, m)
				*p = &open{at: len(out) - 1}
			}
			(*p).add(&out[(*p).at], f)
			if f.Header.Last {
				*p = nil
			}
			continue
		}
		if f.Dir == dir {
			out = append(out, m)
		}
	}
	return out
}

// add counts a segment into its message.
func (o *open) add(m *Message, f *Frame) {
	o.length += len(f.Payload)
	o.sum = crc32.Update(o.sum, crc32.IEEETable, f.Payload)
	for i := range m.Fields {
		switch fl := &m.Fields[i]; fl.Name {
		case "length":
			fl.Value = fmt.Sprint(o.length)
		case "octets":
			fl.Value = fmt.Sprintf("%08x", o.sum)
		case "last":
			fl.Value = fmt.Sprint(f.Header.Last)
		case "crc":
			if f.CRCWrong {
				fl.Value = "wrong"
			}
		}
	}
}

func startupMessage(f *Frame) Message {
	m := f.Startup
	kind := "request"
	if f.Dir == ToInitiator {
		kind = "reply"
	}
	fields := []Field{
		{"revision", fmt.Sprint(m.Revision)}, {"M", bit(m.Markers)}, {"C", bit(m.CRC)}, {"R", bit(m.Reject)}, {"S", bit(m.Enhanced)},
		{"reserved", fmt.Sprint(m.Reserved)},
	}
	private := m.PrivateData
	if e, rest, err := m.SplitPrivateData(); err == nil && m.UsesEnhanced() {
		fields = append(fields, Field{"IRD", fmt.Sprint(e.IRD)}, Field{"ORD", fmt.Sprint(e.ORD)},
			Field{"ABCD", bit(e.A) + bit(e.B) + bit(e.C) + bit(e.D)})
		private = rest
	}
	return Message{kind, append(fields, Field{"private", fmt.Sprintf("%d:%08x", len(private), crc32.ChecksumIEEE(private))})}
}

func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// segment makes the message that a segment begins. Fields that go over all
// segments are filled in by open.add.
func (n *normaliser) segment(f *Frame) Message {
	h, op := &f.Header, f.Opcode()
	m := Message{Kind: strings.ToLower(strings.ReplaceAll(op.String(), " ", "-"))}
	add := func(name, value string) { m.Fields = append(m.Fields, Field{name, value}) }
	if h.Version != ddp.Version {
		add("DV", fmt.Sprint(h.Version))
	}
	if v := rdmap.ParseControl(h.ULPCtl).Version; v != rdmap.Version {
		add("RV", fmt.Sprint(v))
	}
	add("crc", "ok")
	add("last", "false")
	switch {
	case f.Terminate != nil:
		n.terminate(f.Terminate, add)
	case f.Read != nil:
		r := f.Read
		add("MSN", fmt.Sprint(h.MSN))
		add("sink", n.stag(r.SinkSTag)+n.to(r.SinkSTag, r.SinkTO))
		add("source", n.stag(r.SourceSTag)+n.to(r.SourceSTag, r.SourceTO))
		add("size", fmt.Sprint(r.Size))
	case h.Tagged:
		add("STag", n.stag(h.STag))
		add("TO", n.to(h.STag, h.TO))
		add("length", "0")
		add("octets", "")
	default:
		add("QN", fmt.Sprint(h.QN))
		add("MSN", fmt.Sprint(h.MSN))
		if h.MO != 0 {
			add("first-MO", fmt.Sprint(h.MO))
		}
		if op.Invalidates() {
			add("invalidate", n.stag(h.ULP32))
		}
		add("length", "0")
		add("octets", "")
	}
	return m
}

func (n *normaliser) terminate(t *rdmap.ReceivedTerminate, add func(name, value string)) {
	add("error", fmt.Sprintf("%d/%d/0x%02x", t.Layer, t.EType, uint8(t.Code)))
	add("layout", t.Layout.String())
	add("MDR", bit(t.M)+bit(t.D)+bit(t.R))
	if t.HaveLength {
		add("segment-length", fmt.Sprint(t.SegmentLength))
	}
	if t.HaveDDP {
		add("DDP", fmt.Sprintf("tagged=%v QN=%d MSN=%d MO=%d", t.DDP.Tagged, t.DDP.QN, t.DDP.MSN, t.DDP.MO))
	}
	if t.HaveRead {
		add("read", fmt.Sprintf("size=%d", t.Read.Size))
	}
}

// A Difference between two traces. Key is the direction, the message's kind and
// the field, joined by colons: "to-initiator:terminate:layout"; the field is
// "missing" or "extra" for a message that only one of them has.
type Difference struct {
	Key            string
	Reference, Got string
}

// Diff compares got with a reference, message by message in each direction.
func Diff(reference, got *Trace) []Difference {
	var out []Difference
	for _, dir := range []Direction{ToResponder, ToInitiator} {
		out = append(out, diffMessages(dir, reference.Messages(dir), got.Messages(dir))...)
	}
	return out
}

func diffMessages(dir Direction, ref, got []Message) []Difference {
	var out []Difference
	key := func(m Message, what string) string { return dir.String() + ":" + m.Kind + ":" + what }
	for i, j := 0, 0; i < len(ref) || j < len(got); {
		switch {
		case i < len(ref) && j < len(got) && ref[i].Kind == got[j].Kind:
			for _, d := range diffFields(ref[i], got[j]) {
				out = append(out, Difference{key(ref[i], d.Key), d.Reference, d.Got})
			}
			i, j = i+1, j+1
		case i < len(ref) && (j == len(got) || kindAhead(got[j:], ref[i].Kind) > kindAhead(ref[i:], got[j].Kind)):
			out = append(out, Difference{Key: key(ref[i], "missing"), Reference: ref[i].String()})
			i++
		default:
			out = append(out, Difference{Key: key(got[j], "extra"), Got: got[j].String()})
			j++
		}
	}
	return out
}

// kindAhead returns how far ahead the next message of a kind is.
func kindAhead(list []Message, kind string) int {
	for i, m := range list {
		if m.Kind == kind {
			return i
		}
	}
	return len(list) + 1
}

func diffFields(ref, got Message) []Difference {
	var out []Difference
	values := make(map[string]string, len(got.Fields))
	for _, f := range got.Fields {
		values[f.Name] = f.Value
	}
	for _, f := range ref.Fields {
		v, ok := values[f.Name]
		if !ok {
			v = "(none)"
		}
		if v != f.Value {
			out = append(out, Difference{f.Name, f.Value, v})
		}
		delete(values, f.Name)
	}
	for _, f := range got.Fields {
		if v, left := values[f.Name]; left {
			out = append(out, Difference{f.Name, "(none)", v})
		}
	}
	return out
}
