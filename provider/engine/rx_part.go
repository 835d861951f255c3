package engine

import (
	"sync/atomic"
)

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

// toPart moves the unconsumed bytes of the context to a part.
func (rx *receiver) toPart() {
	rx.part = rx.s.dev.prog.parts.Get()
	rx.part.fill(rx.c.b[rx.r:rx.w], int(rx.need))
	rx.part.count(&rx.s.dev.prog.partOctets)
	rx.r, rx.w = 0, 0
}

// fromPart moves the bytes of the part back to the context.
func (rx *receiver) fromPart() {
	rx.r, rx.w = 0, copy(rx.c.b, rx.part.b)
	if rx.part.need > rx.w {
		rx.need = uint32(rx.part.need)
	}
	rx.dropPart()
}

// dropPart gives the part back.
func (rx *receiver) dropPart() {
	if rx.part != nil {
		rx.part.b = nil
		rx.part.count(&rx.s.dev.prog.partOctets)
		rx.s.dev.prog.parts.Put(rx.part)
		rx.part = nil
	}
}

// readPart reads once, into the part in which an FPDU has begun. Its results are those of readMore.
func (rx *receiver) readPart() (int, bool) {
	p := rx.part
	space := p.room()
	p.count(&rx.s.dev.prog.partOctets)
	p.iov[0] = space
	n, err := rx.s.conn.Readv(p.iov[:])
	p.iov[0] = nil
	if n == 0 {
		rx.readFailed(err)
		return 0, false
	}
	p.b = p.b[:len(p.b)+n]
	if len(p.b) == p.need {
		rx.ensureContext()
		rx.parse()
	}
	return n, n == len(space)
}

// unkeep takes the receive context from a stream that has kept it for too long. rx.mu is held.
func (rx *receiver) unkeep() {
	if !rx.kept || rx.c == nil {
		return
	}
	rx.toPart()
	rx.giveContext()
}
