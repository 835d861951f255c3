package engine

import (
	"sync/atomic"
)

// partSmall is how much a part keeps without memory of its own: more than a segment of Ethernet has
// with an MTU of 1500.
const partSmall = 1600

// rxPart is the beginning of an FPDU that was moved out of a context, because a peer that
// stops in the middle of one must not hold a whole context. What it makes us hold is
// in proportion to what it has sent: a long part has memory of its own, at most twice as
// much as has come and never more than the FPDU is long. The rest is read to there, so
// that each byte is copied a bounded number of times, in whatever pieces it comes.
type rxPart struct {
	b    []byte // what has come
	need int    // how long it has to be until there is more to be done

	counted int64 // in partOctets

	iov   [1][]byte
	small [partSmall]byte
}

// idle reports whether nothing is in p.
func (p *rxPart) idle() bool { return p.b == nil && p.iov[0] == nil }

// fill makes p the part b of an FPDU.
func (p *rxPart) fill(b []byte, need int) {
	p.need = max(need, len(b))
	if len(b) <= partSmall {
		p.b = p.small[:copy(p.small[:], b)]
		return
	}
	p.b = append(make([]byte, 0, min(p.need, 2*len(b))), b...)
}

// room returns where more of p is to be read to.
func (p *rxPart) room() []byte {
	if len(p.b) == cap(p.b) {
		p.b = append(make([]byte, 0, min(p.need, 2*len(p.b))), p.b...)
	}
	return p.b[len(p.b):min(cap(p.b), p.need)]
}

// count keeps all, the device's partOctets, up to date with the memory of its own that p
// has for an FPDU that the peer has not finished. A part that is complete and waits for an
// object of ours does not count: no other stream is to end because of it.
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

// isLong reports whether the rest of the FPDU is to be read to the part itself.
func (p *rxPart) isLong() bool { return len(p.b) > partSmall && len(p.b) < p.need }

// toPart moves what the context holds and was not consumed to a part.
func (s *stream) toPart() {
	r := &s.rx
	r.part = s.dev.prog.parts.Get()
	r.part.fill(r.c.b[r.r:r.w], int(r.need))
	r.part.count(&s.dev.prog.partOctets)
	r.r, r.w = 0, 0
}

// fromPart moves the part back to the context.
func (s *stream) fromPart() {
	r := &s.rx
	r.r, r.w = 0, copy(r.c.b, r.part.b)
	if r.part.need > r.w {
		r.need = uint32(r.part.need)
	}
	s.dropPart()
}

// dropPart gives back what holds a part.
func (s *stream) dropPart() {
	r := &s.rx
	if r.part != nil {
		r.part.b = nil
		r.part.count(&s.dev.prog.partOctets)
		s.dev.prog.parts.Put(r.part)
		r.part = nil
	}
}

// readPart is readMore for an FPDU that has begun in a part.
func (s *stream) readPart() (int, bool) {
	p := s.rx.part
	space := p.room()
	p.count(&s.dev.prog.partOctets)
	p.iov[0] = space
	n, err := s.conn.Readv(p.iov[:])
	p.iov[0] = nil
	if n == 0 {
		s.readFailed(err)
		return 0, false
	}
	p.b = p.b[:len(p.b)+n]
	if len(p.b) == p.need {
		s.rxEnsure()
		s.parse()
	}
	return n, n == len(space)
}

// unkeep takes the context away from a stream that has kept it for too long. rxMu is
// held.
func (s *stream) unkeep() {
	r := &s.rx
	if !r.kept || r.c == nil {
		return
	}
	s.toPart()
	s.giveContext()
}
