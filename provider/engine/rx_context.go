package engine

import (
	"sync/atomic"

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

	// The run: how many FPDUs, next in b, are verified already, and the length of each's ULPDU.
	run, runULPDU int

	iov   [maxSGE + 1][]byte
	spans [maxSGE]memory.Span
	mFor  *memory.Peer // who may write to m; nil without m

	// m is in use for that peer until releaseWrite, because consecutive Writes often name the same
	// region.
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
func (c *rxContext) resolve(d *memory.Domain, sges []provider.SGE, off, n uint64) bool {
	spans, ok := d.Resolve(sges, provider.AccessLocalWrite, c.spans[:0])
	if !ok {
		clear(spans)
		return false
	}
	c.nspans = len(spans)
	c.nplace = len(memory.AppendSpans(c.place[:0], spans, off, n))
	return true
}

// resolveWrite prepares n bytes of the region that a Write of peer names to be written.
func (c *rxContext) resolveWrite(peer *memory.Peer, stag uint32, to uint64, n int) error {
	if c.m != nil && c.mFor == peer && c.m.STag() == stag && n > 0 {
		// m is in use, so it is neither closed nor invalidated. Only the bounds remain to be
		// checked.
		if p, ok := c.m.Slice(to, uint64(n)); ok {
			c.place[0], c.nplace = p, 1
			return nil
		}
	}
	c.releaseWrite()
	m, p, err := peer.WriteTarget(stag, to, n)
	if err != nil || m == nil {
		return err
	}
	if m.IsObject() {
		c.useObject(m, to, n)
		return nil
	}
	c.m, c.mFor = m, peer
	c.place[0], c.nplace = p, 1
	return nil
}

// release ends the use of the regions that hold the place of a segment, except the one that
// releaseWrite ends.
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

// releaseWrite ends the use of the region that resolveWrite began. It must precede anything that
// may wait, and the end of each read's work.
func (c *rxContext) releaseWrite() {
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
	c.releaseWrite()
	c.release()
}

// copyIn copies payload to its place.
func (c *rxContext) copyIn(payload []byte) {
	for _, p := range c.place[:c.nplace] {
		payload = payload[copy(p, payload):]
	}
}

// partSmall is how many bytes a part holds without memory of its own: more than an Ethernet segment
// has with an MTU of 1500.
const partSmall = 1600

// rxPart is the beginning of an FPDU that was moved out of a receive context, because a peer that
// stops in the middle of an FPDU must not hold a whole context. Its memory is in proportion to what
// the peer has sent: a long part has memory of its own, at most twice what has come and never more
// than the FPDU's length. The rest of the FPDU is read into the part, so each byte is copied a
// bounded number of times, however the peer divides the bytes.
type rxPart struct {
	b    []byte // what has come
	need int    // the length it needs before there is more to do

	counted int64 // its share of partOctets

	iov   [1][]byte
	small [partSmall]byte
}

// idle reports whether p is empty.
func (p *rxPart) idle() bool { return p.b == nil && p.iov[0] == nil }

// fill stores the part b of an FPDU in p.
func (p *rxPart) fill(b []byte, need int) {
	p.need = max(need, len(b))
	if len(b) <= partSmall {
		p.b = p.small[:copy(p.small[:], b)]
		return
	}
	p.b = append(make([]byte, 0, min(p.need, 2*len(b))), b...)
}

// room returns where the next bytes of p are to be read to.
func (p *rxPart) room() []byte {
	if len(p.b) == cap(p.b) {
		p.b = append(make([]byte, 0, min(p.need, 2*len(p.b))), p.b...)
	}
	return p.b[len(p.b):min(cap(p.b), p.need)]
}

// count updates all, the device's partOctets, with the memory that p has of its own for an FPDU
// that the peer has not finished. A complete part that waits for an object of ours does not count,
// because it must not cause the end of other streams.
func (p *rxPart) count(all *atomic.Int64) {
	n := int64(0)
	if p.isLong() {
		n = int64(cap(p.b))
	}
	if n != p.counted {
		all.Add(n - p.counted)
		p.counted = n
	}
}

// isLong reports whether the rest of the FPDU is to be read into the part itself.
func (p *rxPart) isLong() bool { return len(p.b) > partSmall && len(p.b) < p.need }

// useObject makes n bytes of a region that is an object, and in use for the peer, the destination
// of the payload.
func (c *rxContext) useObject(m *memory.Region, to uint64, n int) {
	c.pieces = append(c.pieces[:0], m.Piece(to, uint64(n)))
}

// resolveObjects does what resolve does if one of the regions is an object.
func (c *rxContext) resolveObjects(d *memory.Domain, sges []provider.SGE, off, n uint64) bool {
	var ok bool
	c.pieces, ok = d.Pieces(sges, provider.AccessLocalWrite, off, n)
	return ok
}

// dropObjects undoes useObject and resolveObjects.
func (c *rxContext) dropObjects() {
	memory.ReleasePieces(c.pieces)
	c.pieces = nil
}
