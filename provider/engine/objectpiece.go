package engine

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/govs-rdma/govs/provider"
)

// objectPiece is n octets, from off on, of a region that is in use until release. They
// belong to the octets of a payload from at on.
type objectPiece struct {
	m      *mr
	remote bool
	off, n uint64
	at     uint64
}

// piece is the n octets at address addr of a region that is an object, in use for the peer.
func (m *mr) piece(addr, n uint64) objectPiece {
	return objectPiece{m: m, remote: true, off: addr - m.base, n: n}
}

// vectorWriter returns the object of the piece if it can write several slices in one call.
func (p *objectPiece) vectorWriter() (provider.VectorWriterAt, bool) {
	w, ok := p.m.dst.(provider.VectorWriterAt)
	return w, ok
}

// of returns the part of the payload b that belongs to the piece.
func (p *objectPiece) of(b []byte) []byte { return b[p.at : p.at+p.n] }

// memory is the piece's octets in its region, nil for an object.
func (p *objectPiece) memory() []byte {
	if p.m.src != nil {
		return nil
	}
	return p.m.buf[p.off : p.off+p.n]
}

func (p *objectPiece) release() {
	if p.remote {
		p.m.releaseRemote()
	} else {
		p.m.release()
	}
}

// moveMemory copies at once those pieces of a payload that are memory, not objects, and
// returns the others: what waits for an object then neither touches memory nor keeps it
// in use. With out it copies to the payload b, otherwise from there.
func moveMemory(pieces []objectPiece, b []byte, out bool) []objectPiece {
	return slices.DeleteFunc(pieces, func(p objectPiece) bool {
		memory := p.memory()
		switch {
		case memory == nil:
			return false
		case out:
			copy(p.of(b), memory)
		default:
			copy(memory, p.of(b))
		}
		p.release()
		return true
	})
}

func releasePieces(pieces []objectPiece) {
	for i := range pieces {
		pieces[i].release()
	}
}

// objectPieces are the n octets at offset off of what the SGEs of a work request of
// ours name, in use until releasePieces. It is what resolve is for memory, and
// reports false for what that refuses: what can't be used, and what needs no object. A
// region that work requests register can't be beside an object: its end would have to
// wait for the object.
func (p *protDomain) objectPieces(sges []provider.SGE, need provider.Access, off, n uint64) ([]objectPiece, bool) {
	var pieces []objectPiece
	object := false
	at := uint64(0)
	for i := range sges {
		s := &sges[i]
		length := uint64(s.Length)
		if length == 0 {
			continue
		}
		m := p.table.local(s.LKey)
		if m == nil || !m.allows(p, need) || !m.holds(s.Addr, length) || m.owner != nil {
			if m != nil {
				m.release()
			}
			releasePieces(pieces)
			return nil, false
		}
		object = object || m.src != nil
		if off >= length || n == 0 {
			off -= min(off, length)
			m.release()
			continue
		}
		took := min(length-off, n)
		pieces = append(pieces, objectPiece{m: m, off: s.Addr - m.base + off, n: took, at: at})
		off, n, at = 0, n-took, at+took
	}
	if !object || n > 0 {
		releasePieces(pieces)
		return nil, false
	}
	return pieces, true
}

// readPieces reads each piece, all of objects, to its part of b. A short read is an error:
// the region is longer than its object.
func readPieces(pieces []objectPiece, b []byte) error {
	for i := range pieces {
		p := &pieces[i]
		if n, err := p.m.src.ReadAt(p.of(b), int64(p.off)); uint64(n) < p.n {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("reading %d octets at %d of the object of %s: %w", p.n, p.off, p.m.name(), err)
		}
	}
	return nil
}

// writePieces is readPieces the other way.
func writePieces(pieces []objectPiece, b []byte) error {
	for i := range pieces {
		p := &pieces[i]
		if n, err := p.m.dst.WriteAt(p.of(b), int64(p.off)); err != nil || uint64(n) < p.n {
			return p.writeError(err)
		}
	}
	return nil
}

// writeError is the error of a write of all of the piece, which was short if err is nil.
func (p *objectPiece) writeError(err error) error {
	if err == nil {
		err = io.ErrShortWrite
	}
	return fmt.Errorf("writing %d octets at %d of the object of %s: %w",
		p.n, p.off, p.m.name(), err)
}
