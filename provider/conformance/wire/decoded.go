package wire

import (
	"cmp"
	"math"
	"slices"
)

// A Decoded is a message of a trace, with where it stands in the trace's Ladder.
type Decoded struct {
	Message
	Dir   Direction
	Lines []int // of the Ladder, counted from 0; nil for an "end" without FIN or RST
}

// Decode returns the messages of all connections in the order of the Ladder, as they are when
// they are compared: see Message. A message without lines comes last in its connection.
func (t *Trace) Decode() []Decoded {
	var out []Decoded
	for i, start := range t.ladderStarts() {
		begin := len(out)
		for _, dir := range []Direction{ToResponder, ToInitiator} {
			for _, m := range t.Conns[i].Messages(dir) {
				d := Decoded{Message: m, Dir: dir}
				for _, frame := range m.frames {
					d.Lines = append(d.Lines, start+frame)
				}
				out = append(out, d)
			}
		}
		slices.SortStableFunc(out[begin:], func(a, b Decoded) int {
			return cmp.Compare(a.firstLine(), b.firstLine())
		})
	}
	return out
}

func (d *Decoded) firstLine() int {
	if len(d.Lines) == 0 {
		return math.MaxInt
	}
	return d.Lines[0]
}
