package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
)

// resolve makes the spans of a work request of ours ready for use in this batch.
// It reports false if they can't be used; some of their regions may be in use all
// the same, until release.
func (b *txBatch) resolve(pd *pd, sges []provider.SGE) bool {
	b.nspans = 0
	for i := range sges {
		s := &sges[i]
		if s.Length == 0 {
			continue
		}
		m := b.region(pd.dev, s.LKey)
		if m == nil {
			return false
		}
		p, ok := m.Octets(&pd.Domain, s, 0)
		if !ok {
			return false
		}
		b.spans[b.nspans] = memory.Span{Region: m, Bytes: p}
		b.nspans++
	}
	return true
}

// region returns the region that lkey names, in use until release, or nil. Work requests that
// follow each other often name the same.
func (b *txBatch) region(d *device, lkey uint32) *memory.Region {
	if b.nuses > 0 {
		if u := &b.uses[b.nuses-1]; !u.remote && u.m.STag() == lkey {
			return u.m
		}
	}
	m := d.memory.Local(lkey)
	if m != nil {
		b.use(m, false) // until release, also if the work request may not use it
	}
	return m
}

// addSpans adds the n octets of payload at offset off of the message that the
// spans make up.
func (b *txBatch) addSpans(off, n uint64, t *txState) {
	if b.nspans == 1 {
		b.add(b.spans[0].Bytes[off:off+n], n, t)
		return
	}
	pieces := memory.AppendSpans(b.pieces[:0], b.spans[:b.nspans], off, n)
	for _, p := range pieces {
		b.add(p, n, t)
	}
	clear(pieces)
}

// add adds a piece of the n octets of payload of an FPDU.
func (b *txBatch) add(p []byte, n uint64, t *txState) {
	switch {
	case n <= policy.CopyMost:
		b.copyIn(p, t)
	case t.crc && !t.markers:
		b.snapshot(p, t)
	default:
		b.refer(p, t)
	}
}

// shortPayload returns the payload of WQE i and its region, which is in use until
// release; m is that of the one before. With false the general path has to see to
// the WQE.
func (b *txBatch) shortPayload(q *qp, w *sendWQE, i uint32, m *memory.Region) (
	[]byte, *memory.Region, bool) {
	switch {
	case w.length == 0:
		return nil, m, true
	case w.flags&provider.SendInline != 0:
		return q.sq.inlineRoom(i)[:w.length], m, true
	case w.nsge != 1:
		return nil, m, false
	}
	sge := &q.sq.sgeRoom(i)[0]
	if m == nil || m.STag() != sge.LKey {
		if m = b.region(q.dev, sge.LKey); m == nil {
			return nil, nil, false
		}
	}
	p, ok := m.Octets(&q.pd.Domain, sge, 0)
	return p, m, ok
}
