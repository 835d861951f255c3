package memory

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/govs-rdma/govs/provider"
)

// Piece is N bytes, from Off on, of a region that is in use until ReleasePieces: by the peer if
// Remote, otherwise by a work request of ours. They hold the bytes of a payload from at on.
type Piece struct {
	Region *Region
	Remote bool
	Off, N uint64
	at     uint64
}

// Piece returns n bytes at address addr of a region that is an object, in use for the peer.
func (m *Region) Piece(addr, n uint64) Piece {
	return Piece{Region: m, Remote: true, Off: addr - m.base, N: n}
}

// VectorWriter returns the object of the piece if it can write several slices in one call.
func (p *Piece) VectorWriter() (provider.VectorWriterAt, bool) {
	w, ok := p.Region.dst.(provider.VectorWriterAt)
	return w, ok
}

// of returns the part of the payload b that belongs to the piece.
func (p *Piece) of(b []byte) []byte { return b[p.at : p.at+p.N] }

// memory returns the piece's bytes in its region, nil for an object.
func (p *Piece) memory() []byte {
	if p.Region.src != nil {
		return nil
	}
	return p.Region.buf[p.Off : p.Off+p.N]
}

// release ends the use of the region.
func (p *Piece) release() {
	if p.Remote {
		p.Region.ReleaseRemote()
	} else {
		p.Region.Release()
	}
}

// MoveMemory copies the pieces of a payload that are memory, not objects, and returns the others.
// So a goroutine that waits for an object neither touches memory nor keeps it in use. With out it
// copies to the payload b, otherwise from b.
func MoveMemory(pieces []Piece, b []byte, out bool) []Piece {
	return slices.DeleteFunc(pieces, func(p Piece) bool {
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

// ReleasePieces ends the uses of the regions.
func ReleasePieces(pieces []Piece) {
	for i := range pieces {
		pieces[i].release()
	}
}

// Pieces returns the n bytes at offset off of the memory that the SGEs of a work request of ours
// name, in use until ReleasePieces, if at least one SGE names an object. It reports false
// otherwise, or if an SGE can't be used. A region that work requests register can't be beside an
// object, because its end would have to wait for the object.
func (p *Domain) Pieces(sges []provider.SGE, need provider.Access, off, n uint64) ([]Piece, bool) {
	var pieces []Piece
	object := false
	at := uint64(0)
	for i := range sges {
		s := &sges[i]
		length := uint64(s.Length)
		if length == 0 {
			continue
		}
		m := p.Table.Local(s.LKey)
		if m == nil || !m.allows(p, need) || !m.contains(s.Addr, length) || m.owner != nil {
			if m != nil {
				m.Release()
			}
			ReleasePieces(pieces)
			return nil, false
		}
		object = object || m.src != nil
		if off >= length || n == 0 {
			off -= min(off, length)
			m.Release()
			continue
		}
		took := min(length-off, n)
		pieces = append(pieces, Piece{Region: m, Off: s.Addr - m.base + off, N: took, at: at})
		off, n, at = 0, n-took, at+took
	}
	if !object || n > 0 {
		ReleasePieces(pieces)
		return nil, false
	}
	return pieces, true
}

// ReadPieces reads each piece, all of them of objects, into its part of b. A short read is an
// error, because the region is longer than its object.
func ReadPieces(pieces []Piece, b []byte) error {
	for i := range pieces {
		p := &pieces[i]
		if n, err := p.Region.src.ReadAt(p.of(b), int64(p.Off)); uint64(n) < p.N {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("reading %d bytes at %d of the object of %s: %w", p.N, p.Off, p.Region.name(), err)
		}
	}
	return nil
}

// WritePieces writes to each piece, all of them of objects, its part of b. A short write is an
// error.
func WritePieces(pieces []Piece, b []byte) error {
	for i := range pieces {
		p := &pieces[i]
		if n, err := p.Region.dst.WriteAt(p.of(b), int64(p.Off)); err != nil || uint64(n) < p.N {
			return p.WriteError(err)
		}
	}
	return nil
}

// WriteError returns the error of a write of the whole piece; nil means that it was short.
func (p *Piece) WriteError(err error) error {
	if err == nil {
		err = io.ErrShortWrite
	}
	return fmt.Errorf("writing %d bytes at %d of the object of %s: %w",
		p.N, p.Off, p.Region.name(), err)
}
