package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

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

// A peer names memory of ours by STag and TO. The three functions below make
// the checks that the RFCs ask for, in their order, and give the error whose
// Terminate they ask for. Their errors are the package variables of ddp and
// rdmap, so that nothing is allocated.

// writeTarget checks the n octets that a tagged segment of a Write names on a
// QP of pd. With a nil error they are in use until m.releaseRemote. For n = 0
// nothing is checked and m is nil.
//
//rfc:5041 DDP-7.1t1-01
//rfc:5041 DDP-7.1t2-01
//rfc:5041 DDP-8.3.1-1-01
func writeTarget(pd *pd, stag uint32, to uint64, n int) (m *mr, b []byte, err error) {
	m, r := pd.region(stag, provider.AccessRemoteWrite)
	if err := ddp.CheckTagged(&r, to, n); err != nil || n == 0 {
		return nil, nil, err
	}
	if b = m.useRemote(to, uint64(n)); b == nil {
		return nil, nil, ddp.ErrInvalidSTag
	}
	return m, b, nil
}

// readSource is writeTarget for the source of an RDMA Read. It is called when
// the request arrives and again for each part of the response, as the region
// may go in between.
//
//rfc:5040 RDMAP-7.2-07
//rfc:5040 RDMAP-7.2-08
func readSource(pd *pd, stag uint32, to uint64, n uint32) (m *mr, b []byte, err error) {
	m, r := pd.region(stag, provider.AccessRemoteRead)
	if err := rdmap.CheckReadSource(&r, to, n); err != nil || n == 0 {
		return nil, nil, err
	}
	if b = m.useRemote(to, uint64(n)); b == nil {
		return nil, nil, rdmap.ErrReadInvalidSTag
	}
	return m, b, nil
}

// invalidateRemote does what a Send with Invalidate asks of a QP of pd. The
// region must have been registered with AccessRemoteInvalidate. The caller
// holds no use of it.
//
//rfc:5040 RDMAP-7.2-05
//rfc:5040 RDMAP-7.2-06
//rfc:5040 RDMAP-8.1.1-7-01
func invalidateRemote(pd *pd, stag uint32) error {
	m, r := pd.region(stag, provider.AccessRemoteInvalidate)
	if err := rdmap.CheckInvalidate(&r); err != nil {
		return err
	}
	m.remote.shut()
	return nil
}

// region returns what the checks want to know about stag as a QP of p sees it.
func (p *pd) region(stag uint32, need provider.Access) (*mr, ddp.Region) {
	m := p.dev.stags.lookup(stag)
	if m == nil || m.remote.isShut() {
		return nil, ddp.Region{}
	}
	return m, ddp.Region{
		Valid:      true,
		Associated: m.pd == p,
		Allowed:    m.access&need == need,
		Base:       m.base,
		Len:        uint64(len(m.buf)),
	}
}
