package frames

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// Resolve makes the memory of d that the SGEs of a work request of ours name the payload of the
// message, for AddLong and AddResolved, until Release or the next message. It does nothing if the
// message is resolved already. It reports false if an SGE can't be used; some of their regions may
// be in use all the same, until Release.
func (b *Batch) Resolve(d *memory.Domain, sges []provider.SGE) bool {
	if b.nspans > 0 {
		return true
	}
	for i := range sges {
		s := &sges[i]
		if s.Length == 0 {
			continue
		}
		if m := b.Region(d, s.LKey); m != nil {
			if p, ok := m.Octets(d, s, 0); ok {
				b.spans[b.nspans] = memory.Span{Region: m, Bytes: p}
				b.nspans++
				continue
			}
		}
		clear(b.spans[:b.nspans])
		b.nspans = 0
		return false
	}
	return true
}

// Region returns the region that lkey names in the table of d, in use until Release, or nil. The
// caller checks whether the region is of d. Work requests that follow each other often name the
// same.
func (b *Batch) Region(d *memory.Domain, lkey uint32) *memory.Region {
	if b.nuses > 0 {
		if u := &b.uses[b.nuses-1]; !u.remote && u.m.STag() == lkey {
			return u.m
		}
	}
	m := d.Table.Local(lkey)
	if m != nil {
		b.use(m, false) // until Release, even if the work request may not use it
	}
	return m
}

// AddResolved makes an FPDU of the DDP header h and the n bytes at offset off of the resolved
// payload. wqe and completes are as with Add.
func (b *Batch) AddResolved(h *ddp.Header, off, n uint64, wqe uint32, completes bool) {
	b.begin(h, int(n))
	if n > 0 {
		b.addSpans(off, n)
	}
	b.finishFPDU(wqe, completes)
}

func (b *Batch) addSpans(off, n uint64) {
	if b.nspans == 1 {
		b.addPiece(b.spans[0].Bytes[off:off+n], n)
		return
	}
	pieces := memory.AppendSpans(b.pieces[:0], b.spans[:b.nspans], off, n)
	for _, p := range pieces {
		b.addPiece(p, n)
	}
	clear(pieces)
}

// addPiece adds a piece of the n bytes of payload of an FPDU.
func (b *Batch) addPiece(p []byte, n uint64) {
	switch {
	case n <= policy.CopyMost:
		b.copyIn(p)
	case b.format.CRC && !b.format.Markers:
		b.snapshot(p)
	default:
		b.refer(p)
	}
}
