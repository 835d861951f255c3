package engine

import "github.com/govs-rdma/govs/provider"

// span is an SGE after it was checked: octets of a region, to be touched
// between acquire and release of the region only.
type span struct {
	m *mr
	b []byte
}

// resolve checks the SGEs of one of our own work requests and appends
// what they name to out, whose capacity the caller provides: each LKey names a
// region of p with the rights need (AccessLocalWrite for sinks, 0 for
// sources) that holds all of Length at Addr. SGEs of Length zero name nothing.
// The regions are in use until releaseSpans. It reports false at the first SGE that
// fails a check; nothing is in use then, and out is of no use.
func (p *protDomain) resolve(sges []provider.SGE, need provider.Access, out []span) ([]span, bool) {
	for i := range sges {
		s := &sges[i]
		if s.Length == 0 {
			continue
		}
		m := p.table.local(s.LKey)
		if m == nil {
			releaseSpans(out)
			return out, false
		}
		b, ok := m.octets(p, s, need)
		if !ok {
			m.release()
			releaseSpans(out)
			return out, false
		}
		out = append(out, span{m, b})
	}
	return out, true
}

func releaseSpans(spans []span) {
	for i := range spans {
		spans[i].m.release()
	}
}

// appendSpans appends to out the pieces that make up the n octets at offset
// off of the message that spans make up. All of them must be there.
func appendSpans(out [][]byte, spans []span, off, n uint64) [][]byte {
	for i := range spans {
		if n == 0 {
			return out
		}
		b := spans[i].b
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
		panic("engine: octets asked for beyond the end of a message")
	}
	return out
}
