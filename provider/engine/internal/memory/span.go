package memory

import "github.com/govs-rdma/govs/provider"

// MaxSGE is how many SGEs a work request has at most.
const MaxSGE = 16

// Span is an SGE after it was checked: bytes of a region, to be touched
// between acquire and Release of the region only.
type Span struct {
	Region *Region
	Bytes  []byte
}

// Resolve checks the SGEs of one of our own work requests and appends
// what they name to out, whose capacity the caller provides: each LKey names a
// region of p with the rights need (AccessLocalWrite for sinks, 0 for
// sources) that holds all of Length at Addr. SGEs of Length zero name nothing.
// The regions are in use until ReleaseSpans. It reports false at the first SGE that
// fails a check; nothing is in use then, and out is of no use.
func (p *Domain) Resolve(sges []provider.SGE, need provider.Access, out []Span) ([]Span, bool) {
	for i := range sges {
		s := &sges[i]
		if s.Length == 0 {
			continue
		}
		m := p.Table.Local(s.LKey)
		if m == nil {
			ReleaseSpans(out)
			return out, false
		}
		b, ok := m.Octets(p, s, need)
		if !ok {
			m.Release()
			ReleaseSpans(out)
			return out, false
		}
		out = append(out, Span{m, b})
	}
	return out, true
}

// ReleaseSpans ends the uses of the regions.
func ReleaseSpans(spans []Span) {
	for i := range spans {
		spans[i].Region.Release()
	}
}

// AppendSpans appends to out the pieces that make up the n bytes at offset
// off of the message that spans make up. All of them must be there.
func AppendSpans(out [][]byte, spans []Span, off, n uint64) [][]byte {
	for i := range spans {
		if n == 0 {
			return out
		}
		b := spans[i].Bytes
		if size := uint64(len(b)); off >= size {
			off -= size
			continue
		}
		b = b[off:]
		off = 0
		b = b[:min(uint64(len(b)), n)]
		n -= uint64(len(b))
		out = append(out, b)
	}
	if n != 0 {
		panic("engine: bytes asked for beyond the end of a message")
	}
	return out
}
