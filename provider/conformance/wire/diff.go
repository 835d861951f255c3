package wire

import "slices"

// A Difference between two traces. Key is the direction, the message's kind and
// the field, joined by colons: "to-initiator:terminate:layout". The field is
// "missing" or "extra" for a message that only the reference or only the other
// has. A whole connection that only one of them has is "connection:missing" or
// "connection:extra".
type Difference struct {
	Key            string
	Reference, Got string
}

// A Row sets a message of a reference beside the one that corresponds to it.
type Row struct {
	Reference, Got []int // lines of the two traces' Ladders, counted from 0; nil where there is none
	Differences    []Difference
}

// Diff compares got with a reference, connection by connection, in each
// direction message by message.
func Diff(reference, got *Trace) []Difference {
	var out []Difference
	for _, r := range Align(reference, got) {
		out = append(out, r.Differences...)
	}
	return out
}

// Align compares all messages, and returns rows also for those that are the same. Rows come in the
// order in which got has them. What only the reference has stands after what came before it in its
// direction.
func Align(reference, got *Trace) []Row {
	var out []Row
	refLines, gotLines := reference.ladderStarts(), got.ladderStarts()
	for _, p := range pairConns(reference, got) {
		switch {
		case p.got < 0:
			ref := reference.Conns[p.ref]
			out = append(out, Row{
				Reference:   lines(refLines[p.ref], len(ref.Frames)),
				Differences: []Difference{{Key: "connection:missing", Reference: ref.summary()}},
			})
		case p.ref < 0:
			c := got.Conns[p.got]
			out = append(out, Row{
				Got:         lines(gotLines[p.got], len(c.Frames)),
				Differences: []Difference{{Key: "connection:extra", Got: c.summary()}},
			})
		default:
			out = append(out, alignConns(reference.Conns[p.ref], got.Conns[p.got], refLines[p.ref], gotLines[p.got])...)
		}
	}
	return out
}

func lines(from, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = from + i
	}
	return out
}

// summary is a connection on one line.
func (c *Conn) summary() string {
	s := ""
	for _, dir := range []Direction{ToResponder, ToInitiator} {
		for _, m := range c.Messages(dir) {
			if s != "" {
				s += ", "
			}
			s += m.Kind
		}
	}
	return s
}

// pair is a connection of the reference and the corresponding one; -1 means that there is none.
type pair struct{ ref, got int }

// pairConns finds which connections correspond. Those with the same messages belong
// together, because several that are opened at once may come in any order; the rest go in
// the order in which they were opened.
func pairConns(reference, got *Trace) []pair {
	if len(reference.Conns) == 1 && len(got.Conns) == 1 {
		return []pair{{0, 0}}
	}
	partner := make([]int, len(got.Conns))
	taken := make([]bool, len(reference.Conns))
	words := make(map[string][]int)
	for i, c := range reference.Conns {
		words[c.words()] = append(words[c.words()], i)
	}
	for j, c := range got.Conns {
		partner[j] = -1
		if same := words[c.words()]; len(same) > 0 {
			partner[j], taken[same[0]] = same[0], true
			words[c.words()] = same[1:]
		}
	}
	var out []pair
	for j := range got.Conns {
		if partner[j] < 0 {
			if i := slices.Index(taken, false); i >= 0 {
				partner[j], taken[i] = i, true
			}
		}
		out = append(out, pair{partner[j], j})
	}
	for i := range taken {
		if !taken[i] {
			out = append(out, pair{i, -1})
		}
	}
	return out
}

// words is the text of all messages of a connection.
func (c *Conn) words() string {
	s := ""
	for _, dir := range []Direction{ToResponder, ToInitiator} {
		for _, m := range c.Messages(dir) {
			s += m.String() + "\n"
		}
	}
	return s
}

// alignConns makes the rows of two connections whose ladders begin at the given
// lines.
func alignConns(ref, got *Conn, refLine, gotLine int) []Row {
	var sides [2][]Row
	for _, dir := range []Direction{ToResponder, ToInitiator} {
		for _, p := range alignMessages(ref.Messages(dir), got.Messages(dir)) {
			sides[dir] = append(sides[dir], p.row(dir, refLine, gotLine))
		}
	}
	// Merge the directions by where got has their lines.
	out, in := sides[ToResponder], sides[ToInitiator]
	var rows []Row
	for len(out) > 0 && len(in) > 0 {
		if firstLine(out) <= firstLine(in) {
			rows, out = append(rows, out[0]), out[1:]
		} else {
			rows, in = append(rows, in[0]), in[1:]
		}
	}
	return append(append(rows, out...), in...)
}

// firstLine returns the line of the first row in got. A row that is not in got goes before
// whatever else there is.
func firstLine(rows []Row) int {
	if len(rows[0].Got) == 0 {
		return -1
	}
	return rows[0].Got[0]
}

// messagePair is two messages that correspond; one of them may be nil.
type messagePair struct{ ref, got *Message }

// alignMessages finds which messages of one direction correspond. Where the kinds
// part, whichever side meets the other's kind again sooner has something extra.
func alignMessages(ref, got []Message) []messagePair {
	var out []messagePair
	for i, j := 0, 0; i < len(ref) || j < len(got); {
		switch {
		case i < len(ref) && j < len(got) && ref[i].Kind == got[j].Kind:
			out = append(out, messagePair{&ref[i], &got[j]})
			i, j = i+1, j+1
		case i < len(ref) && (j == len(got) || kindAhead(got[j:], ref[i].Kind) > kindAhead(ref[i:], got[j].Kind)):
			out = append(out, messagePair{ref: &ref[i]})
			i++
		default:
			out = append(out, messagePair{got: &got[j]})
			j++
		}
	}
	return out
}

// kindAhead returns how far ahead the next message of a kind is.
func kindAhead(list []Message, kind string) int {
	for i := range list {
		if list[i].Kind == kind {
			return i
		}
	}
	return len(list) + 1
}

// row compares the two messages.
func (p messagePair) row(dir Direction, refLine, gotLine int) Row {
	var r Row
	if p.ref != nil {
		for _, i := range p.ref.frames {
			r.Reference = append(r.Reference, refLine+i)
		}
	}
	if p.got != nil {
		for _, i := range p.got.frames {
			r.Got = append(r.Got, gotLine+i)
		}
	}
	key := func(m *Message, what string) string { return dir.String() + ":" + m.Kind + ":" + what }
	switch {
	case p.got == nil:
		r.Differences = []Difference{{Key: key(p.ref, "missing"), Reference: p.ref.String()}}
	case p.ref == nil:
		r.Differences = []Difference{{Key: key(p.got, "extra"), Got: p.got.String()}}
	default:
		for _, d := range diffFields(p.ref, p.got) {
			r.Differences = append(r.Differences, Difference{key(p.ref, d.Key), d.Reference, d.Got})
		}
	}
	return r
}

// diffFields compares two messages of a kind.
func diffFields(ref, got *Message) []Difference {
	const none = "(none)"
	var out []Difference
	values := make(map[string]string, len(got.Fields))
	for _, f := range got.Fields {
		values[f.Name] = f.Value
	}
	for _, f := range ref.Fields {
		v, ok := values[f.Name]
		if !ok {
			v = none
		}
		if v != f.Value && !(ref.Kind == "end" && (v == EndCut || f.Value == EndCut)) {
			out = append(out, Difference{f.Name, f.Value, v})
		}
		delete(values, f.Name)
	}
	for _, f := range got.Fields {
		if v, left := values[f.Name]; left {
			out = append(out, Difference{f.Name, none, v})
		}
	}
	return out
}
