package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
)

// contextOctets is the size of a receive context: a read, and the FPDU before it.
const contextOctets = 2 * policy.ReadMost

// rxContext is the memory for receiving while bytes are in flight. It is lent to one stream at a
// time.
type rxContext struct {
	b       []byte
	scratch []byte // ULPDU without its markers

	iov   [maxSGE + 1][]byte
	spans [maxSGE]memory.Span
	mFor  *qp // the QP whose peer may write to m; nil without m

	// m is in use for that peer until leave, because consecutive Writes often name the same region.
	m *memory.Region

	// place is where a segment's payload goes: in regions in use until release.
	place  [maxSGE][]byte
	nplace int
	nspans int
	pieces []memory.Piece // used instead of place if one of the regions is an object
}

func newRxContext() *rxContext { return &rxContext{b: make([]byte, contextOctets)} }

// resolve prepares the n bytes at offset off of the memory that the SGEs name to be written. It
// reports false if they can't be.
func (c *rxContext) resolve(pd *pd, sges []provider.SGE, off, n uint64) bool {
	spans, ok := pd.Resolve(sges, provider.AccessLocalWrite, c.spans[:0])
	if !ok {
		clear(spans)
		return false
	}
	c.nspans = len(spans)
	c.nplace = len(memory.AppendSpans(c.place[:0], spans, off, n))
	return true
}

// resolveWrite prepares n bytes of the region that a Write names to be written.
func (c *rxContext) resolveWrite(q *qp, stag uint32, to uint64, n int) error {
	if c.m != nil && c.mFor == q && c.m.STag() == stag && n > 0 {
		// m is in use, so it is neither closed nor invalidated. Only the bounds remain to be
		// checked.
		if p, ok := c.m.Slice(to, uint64(n)); ok {
			c.place[0], c.nplace = p, 1
			return nil
		}
	}
	c.leave()
	m, p, err := q.peer.WriteTarget(stag, to, n)
	if err != nil || m == nil {
		return err
	}
	if m.IsObject() {
		c.useObject(m, to, n)
		return nil
	}
	c.m, c.mFor = m, q
	c.place[0], c.nplace = p, 1
	return nil
}

// release ends the use of the regions that hold the place of a segment, except the one that leave
// ends.
func (c *rxContext) release() {
	if c.nspans > 0 {
		memory.ReleaseSpans(c.spans[:c.nspans])
		clear(c.spans[:c.nspans])
	}
	clear(c.place[:c.nplace])
	c.nspans, c.nplace = 0, 0
	if len(c.pieces) > 0 {
		c.dropObjects()
	}
}

// leave ends the use of the region that resolveWrite began. It must precede anything that may wait,
// and the end of each read's work.
func (c *rxContext) leave() {
	if c.m != nil {
		c.m.ReleaseRemote()
		c.m, c.mFor = nil, nil
	}
}

// idle reports whether the context uses no region and holds nothing of a segment. That must be so
// between turns, and while it is not lent, because the next stream would get what it holds.
func (c *rxContext) idle() bool {
	return c.m == nil && c.mFor == nil && c.nspans == 0 && c.nplace == 0 && len(c.pieces) == 0
}

// endUses ends all uses of regions.
func (c *rxContext) endUses() {
	c.leave()
	c.release()
}

// copyIn copies payload to its place.
func (c *rxContext) copyIn(payload []byte) {
	for _, p := range c.place[:c.nplace] {
		payload = payload[copy(p, payload):]
	}
}
