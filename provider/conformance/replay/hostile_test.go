package replay_test

import (
	"slices"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// readAt returns the index of the capture's Read Request and of the answer's last segment.
func readAt(t *testing.T, c *wire.Conn) (request, answer int) {
	t.Helper()
	request = slices.IndexFunc(c.Frames, func(f wire.Frame) bool { return f.Read != nil })
	for i := range c.Frames {
		if f := &c.Frames[i]; f.Kind == wire.KindFPDU && f.Dir == wire.ToInitiator && f.Header.Last {
			answer = i
		}
	}
	if request < 0 || answer < request {
		t.Fatal("the capture has no Read with its answer")
	}
	return request, answer
}

// TestEmptyReadAnywhere: a Read of no octets may name any tagged offset, even one outside of the
// offsets that others use with the STag.
func TestEmptyReadAnywhere(t *testing.T) {
	for what, by := range map[string]uint64{"after": 1 << 20, "before": ^uint64(1<<20 - 1)} {
		c := capture(t, "default-read-two-fpdus.pcapng")
		request, answer := readAt(t, c)
		again, empty := c.Frames[request], c.Frames[answer]
		read := *again.Read
		read.Size, read.SourceTO = 0, read.SourceTO+by
		again.Read, again.Payload = &read, read.AppendTo(nil)
		again.Header.MSN++
		empty.Payload, empty.Header.TO = nil, read.SinkTO
		c.Frames = slices.Insert(c.Frames, answer+1, again, empty)
		r := testkit.Must(play(t, c, conformance.RoleInitiator, waitFor, engineSide()))(t)
		if !r.Same() {
			t.Errorf("%s: %s", what, told(r))
		}
	}
}

// TestOffsetsWrap: memory that would end beyond the last tagged offset is refused.
func TestOffsetsWrap(t *testing.T) {
	c := capture(t, "default-read-two-fpdus.pcapng")
	request, _ := readAt(t, c)
	c.Frames[request].Read.SourceTO = ^uint64(0) - 8
	if r, err := play(t, c, conformance.RoleInitiator, waitFor, engineSide()); err == nil {
		t.Errorf("it is replayed: %s", told(r))
	}
}
