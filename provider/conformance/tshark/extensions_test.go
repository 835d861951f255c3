package tshark

import (
	"testing"

	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
)

// tshark knows RFC 7306, and sees in the octets of its figures what we see.
func TestExtensions(t *testing.T) {
	need(t)
	var c wiretest.Capture
	c.Extended()
	trace, file := save(t, &c)
	theirs := decoded(t, file)
	if why := compare(trace, theirs); why != "" {
		t.Errorf("tshark does not agree: %s", why)
	}
	if c := theirs[0]; len(c.frames[0])+len(c.frames[1]) != trace.Count() {
		t.Errorf("tshark sees %d and %d frames, we %d", len(c.frames[0]), len(c.frames[1]), trace.Count())
	}
	for i := range trace.Conns[0].Frames { // and says so where we do not
		if f := &trace.Conns[0].Frames[i]; f.Atomic != nil {
			f.Atomic.Mask++
		}
	}
	if compare(trace, theirs) == "" {
		t.Error("tshark agrees to another mask")
	}
}
