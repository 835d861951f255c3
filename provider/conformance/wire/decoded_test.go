package wire_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// TestDecode: each frame of the ladder belongs to one message of its direction, which has the kind
// of the line. Messages stand in the order of their first lines.
func TestDecode(t *testing.T) {
	trace := tell(t, ordinary, nil)
	ladder := trace.Ladder()
	owner := make([]string, len(ladder))
	last := -1
	for _, d := range trace.Decode() {
		if len(d.Fields) == 0 {
			t.Errorf("%s has no fields", d.Kind)
		}
		if len(d.Lines) > 0 {
			if d.Lines[0] < last {
				t.Errorf("%s of line %d comes after line %d", d.Kind, d.Lines[0], last)
			}
			last = d.Lines[0]
		}
		arrow := "-->"
		if d.Dir == wire.ToInitiator {
			arrow = "<--"
		}
		for _, i := range d.Lines {
			if owner[i] != "" {
				t.Errorf("line %d belongs to %s and to %s", i, owner[i], d.Kind)
			}
			owner[i] = d.Kind
			if !strings.Contains(ladder[i], arrow) {
				t.Errorf("line %d goes %s, but is: %s", i, d.Dir, ladder[i])
			}
		}
		if d.Kind == "terminate" && !strings.Contains(ladder[d.Lines[0]], "Terminate") {
			t.Errorf("a terminate is line %q", ladder[d.Lines[0]])
		}
	}
	if i := slices.Index(owner, ""); i >= 0 {
		t.Errorf("line %d belongs to no message: %s", i, ladder[i])
	}
	if !slices.Contains(owner, "terminate") {
		t.Errorf("no terminate among %q", owner)
	}
}
