package memory

import "github.com/govs-rdma/govs/provider"

// MaxSGE is the largest number of SGEs of a work request.
const MaxSGE = 16

// Span is a checked SGE: bytes of a region, to be touched only between acquire and Release of the
// region.
type Span struct {
	Region *Region
	Bytes  []byte
}

// Resolve checks the SGEs of one of our own work requests and appends the memory that they name to
// out, whose capacity the caller provides. Each LKey must name a region of p with the rights need
// (AccessLocalWrite for sinks, 0 for sources) that contains all of Length at Addr. SGEs of Length
// zero name nothing. The regions are in use until ReleaseSpans. It reports false at the first SGE
// that fails a check; then nothing is in use, and the returned spans are invalid.
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

// AppendSpans appends to out the pieces of the n bytes at offset off of the message that spans make
// up. The message must have all of them.
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
