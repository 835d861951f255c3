package engine

import "github.com/govs-rdma/govs/provider"

// span is an SGE after it was checked: octets of a region, to be touched
// between acquire and release of the region only.
type span struct {
	m *mr
	b []byte
}

// resolveLocal checks the SGEs of one of our own work requests and appends
// what they name to out, whose capacity the caller provides: each LKey names a
// region of pd with the rights need (AccessLocalWrite for sinks, 0 for
// sources) that holds all of Length at Addr. SGEs of Length zero name nothing.
// It reports false at the first SGE that fails a check; out is then of no use.
func resolveLocal(pd *pd, sges []provider.SGE, need provider.Access, out []span) ([]span, bool) {
	for i := range sges {
		s := &sges[i]
		if s.Length == 0 {
			continue
		}
		m := pd.dev.stags.lookup(s.LKey)
		if m == nil || m.pd != pd || m.access&need != need {
			return out, false
		}
		b, ok := m.slice(s.Addr, uint64(s.Length))
		if !ok {
			return out, false
		}
		out = append(out, span{m, b})
	}
	return out, true
}

// acquireSpans begins a use of every region of spans, or of none and reports
// false if one is closed. releaseSpans ends it.
func acquireSpans(spans []span) bool {
	for i := range spans {
		if !spans[i].m.acquire() {
			releaseSpans(spans[:i])
			return false
		}
	}
	return true
}

func releaseSpans(spans []span) {
	for i := range spans {
		spans[i].m.release()
	}
}

// spanOctets is the length of the message that spans make up.
func spanOctets(spans []span) uint64 {
	var n uint64
	for i := range spans {
		n += uint64(len(spans[i].b))
	}
	return n
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

// tagError says which check a tagged access failed. The order is that of
// RFC 5041 section 7.1 and RFC 5040 section 4.8.
type tagError uint8

const (
	tagOK      tagError = iota
	tagInvalid          // no such STag, or invalidated, or closed
	tagStream           // of another PD
	tagRights           // without the right
	tagBounds           // not all inside
	tagWrap             // the addresses wrap
)

// lookupRemote checks that the n octets at tagged offset to of stag may be
// used by the peer of a QP of pd with the rights need (AccessRemoteRead or
// AccessRemoteWrite). With tagOK the region is in use until m.releaseRemote.
// With n = 0 the STag and the rights are checked and no octet is named.
func lookupRemote(pd *pd, stag uint32, to, n uint64, need provider.Access) (*mr, []byte, tagError) {
	m := pd.dev.stags.lookup(stag)
	switch {
	case m == nil:
		return nil, nil, tagInvalid
	case m.pd != pd:
		return nil, nil, tagStream
	case m.access&need != need:
		return nil, nil, tagRights
	case to+n < to:
		return nil, nil, tagWrap
	}
	b, ok := m.slice(to, n)
	if !ok {
		return nil, nil, tagBounds
	}
	if !m.acquireRemote() {
		return nil, nil, tagInvalid
	}
	return m, b, tagOK
}

// invalidateRemote does what a Send with Invalidate asks a QP of pd for. The
// region must have been registered with AccessRemoteInvalidate.
//
//rfc:5040 RDMAP-8.1.1-01
func invalidateRemote(pd *pd, stag uint32) tagError {
	m := pd.dev.stags.lookup(stag)
	switch {
	case m == nil || m.invalidated():
		return tagInvalid
	case m.pd != pd:
		return tagStream
	case m.access&provider.AccessRemoteInvalidate == 0:
		return tagRights
	}
	m.invalidate()
	return tagOK
}
