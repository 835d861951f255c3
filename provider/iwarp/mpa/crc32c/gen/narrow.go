package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// narrow handles messages that are too short for the vectors to be faster.
func (p *program) narrow() {
	CMPQ(p.n, U8(8))
	JB(LabelRef("under8"))

	// Handle the first 1 to 8 octets, so that whole quadwords remain. Shift them up until the
	// register holds nothing else; then add the part of the current CRC that they do not overlap.
	first, shift := p.split()
	piece, rest := GP64(), GP64()
	MOVQ(Mem{Base: p.src}, piece)
	if p.copies {
		MOVQ(piece, Mem{Base: p.dst})
	}
	XORQ(p.crc, piece)
	SHLXQ(shift, piece, piece)
	XORL(rest.As32(), rest.As32())
	CRC32Q(piece, rest)
	XORL(U8(7<<3), shift.As32()) // 8*first
	SHRXQ(shift, p.crc, p.crc)
	SHRQ(U8(8), p.crc) // a separate shift, because a shift by 64 bits would do nothing
	XORQ(rest, p.crc)

	end, at := GP64(), GP64()
	LEAQ(Mem{Base: p.src, Index: p.n, Scale: 1}, end)
	if p.copies {
		ADDQ(p.n, p.dst)
	}
	MOVQ(first, at)
	SUBQ(p.n, at)
	INCQ(at)
	JZ(LabelRef("done"))
	Label("quads")
	if p.copies {
		q := GP64()
		MOVQ(Mem{Base: end, Index: at, Scale: 1}, q)
		MOVQ(q, Mem{Base: p.dst, Index: at, Scale: 1})
		CRC32Q(q, p.crc)
	} else {
		CRC32Q(Mem{Base: end, Index: at, Scale: 1}, p.crc)
	}
	ADDQ(U8(8), at)
	JNZ(LabelRef("quads"))
	JMP(LabelRef("done"))

	Label("under8")
	p.piece(4, "under4", MOVL, CRC32L, reg.GPVirtual.As32)
	p.piece(2, "under2", MOVW, CRC32W, reg.GPVirtual.As16)
	p.piece(1, "done", MOVB, CRC32B, reg.GPVirtual.As8)
	Label("done")
}

// piece handles size octets if the length says that they exist.
func (p *program) piece(size int, next string, mov, crc func(a, b Op), as func(reg.GPVirtual) reg.Register) {
	TESTQ(U32(size), p.n)
	JZ(LabelRef(next))
	q := as(GP64())
	mov(Mem{Base: p.src}, q)
	if p.copies {
		mov(q, Mem{Base: p.dst})
	}
	crc(q, p.crc.As32())
	if size > 1 {
		p.advance(size)
		Label(next)
	}
}
