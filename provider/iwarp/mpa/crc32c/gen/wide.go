package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// wide handles messages longer than one register. Each 128-bit lane of each accumulator is a
// polynomial congruent mod P(x) to what the lane has read so far. Moving it by a fixed distance
// means multiplying it by a power of x mod P(x), a constant. The products of its two halves with
// their constants have 128 bits again, and the next octets are added to them. Only the end reduces
// to 32 bits.
func (p *program) wide() {
	acc := make([]reg.VecVirtual, p.accs)
	for i := range acc {
		acc[i] = p.reg()
	}
	last := acc[p.accs-1]
	big := p.bytes * p.accs
	crc := p.crcLane()

	CMPQ(p.n, U32(big))
	JAE(LabelRef("big"))
	p.load(0, last)
	p.xor(crc, last)
	p.advance(p.bytes)
	SUBQ(U32(2*p.bytes), p.n)
	JB(LabelRef("tail"))
	JMP(LabelRef("blocks"))

	Label("big")
	for i, a := range acc {
		p.load(i*p.bytes, a)
	}
	p.xor(crc, acc[0])
	p.advance(big)
	SUBQ(U32(2*big), p.n)
	JB(LabelRef("combine"))
	k := p.multiplier(big)
	Label("loop")
	for i, a := range acc {
		p.step(a, k, p.next(i*p.bytes))
	}
	p.advance(big)
	SUBQ(U32(big), p.n)
	JAE(LabelRef("loop"))

	Label("combine")
	p.combine(acc)
	ADDQ(U32(big-p.bytes), p.n) // the remaining length, less one block
	JNC(LabelRef("tail"))

	Label("blocks")
	k = p.multiplier(p.bytes)
	Label("block")
	p.step(last, k, p.next(0))
	p.advance(p.bytes)
	SUBQ(U32(p.bytes), p.n)
	JAE(LabelRef("block"))

	Label("tail")
	ADDQ(U32(p.bytes), p.n)
	p.reduce(last, p.tail())
	VZEROUPPER()
}

// crcLane returns the current CRC in a register that is otherwise zero, at the four lowest
// addresses. Adding it to the first octets continues the CRC.
func (p *program) crcLane() reg.VecVirtual {
	r := p.reg()
	VMOVD(p.crc.As32(), r.AsX()) // zeroes the rest
	return r
}

// multiplier returns the pair for distance d in every lane.
func (p *program) multiplier(d int) reg.VecVirtual {
	k := p.reg()
	if p.bytes == 64 {
		VBROADCASTI32X4(p.tables.fold[d], k)
	} else {
		VBROADCASTI128(p.tables.fold[d], k)
	}
	return k
}

// step moves acc by the distance of the multiplier k and adds next.
func (p *program) step(acc, k reg.VecVirtual, next Op) {
	hi := p.reg()
	VPCLMULQDQ(U8(0x11), k, acc, hi)
	VPCLMULQDQ(U8(0x00), k, acc, acc)
	p.xor3(next, hi, acc)
}

// load loads the block at disp, and copies it.
func (p *program) load(disp int, r reg.VecVirtual) {
	p.move(Mem{Base: p.src, Disp: disp}, r)
	if p.copies {
		p.move(r, Mem{Base: p.dst, Disp: disp})
	}
}

// next returns the block at disp as an operand, and copies it.
func (p *program) next(disp int) Op {
	if !p.copies {
		return Mem{Base: p.src, Disp: disp}
	}
	r := p.reg()
	p.load(disp, r)
	return r
}

func (p *program) advance(n int) {
	ADDQ(U32(n), p.src)
	if p.copies {
		ADDQ(U32(n), p.dst)
	}
}

// tail returns the CRC, started at zero, of the n octets at src, which are fewer than a register
// has. At least a register's octets precede them. The crc32 instructions do not depend on what the
// vectors compute.
//
// A tail that is copied is read twice, and octets before it are copied again. Without a tail, all
// octets are read once.
func (p *program) tail() reg.GPVirtual {
	if p.copies {
		TESTQ(p.n, p.n)
		JZ(LabelRef("copied"))
		r := p.reg()
		p.move(Mem{Base: p.src, Index: p.n, Scale: 1, Disp: -p.bytes}, r)
		p.move(r, Mem{Base: p.dst, Index: p.n, Scale: 1, Disp: -p.bytes})
		Label("copied")
	}
	crc := GP64()
	XORL(crc.As32(), crc.As32())
	TESTQ(p.n, p.n)
	JZ(LabelRef("last"))

	// The first 1 to 8 octets, after zeros, which change nothing while the CRC is zero.
	first, shift := p.split()
	piece := GP64()
	MOVQ(Mem{Base: p.src, Index: first, Scale: 1, Disp: -7}, piece)
	SHRXQ(shift, piece, piece)
	SHLXQ(shift, piece, piece)
	CRC32Q(piece, crc)
	end, at := GP64(), GP64()
	LEAQ(Mem{Base: p.src, Index: p.n, Scale: 1}, end)
	MOVQ(first, at)
	SUBQ(p.n, at)
	INCQ(at)
	JZ(LabelRef("last"))
	Label("tailLoop")
	CRC32Q(Mem{Base: end, Index: at, Scale: 1}, crc)
	ADDQ(U8(8), at)
	JNZ(LabelRef("tailLoop"))
	Label("last")
	return crc
}

// split divides n > 0 octets into a first piece of 1 to 8 octets and whole quadwords. It returns
// the length of the first piece less one, and the number of bits by which to shift eight octets so
// that only the first piece remains.
func (p *program) split() (first, shift reg.GPVirtual) {
	first, shift = GP64(), GP64()
	LEAQ(Mem{Base: p.n, Disp: -1}, first)
	ANDL(U8(7), first.As32())
	MOVL(first.As32(), shift.As32())
	XORL(U8(7), shift.As32())
	SHLL(U8(3), shift.As32())
	return first, shift
}

// reduce moves the lanes of acc to the end of the message and adds them up to 128 bits. It reduces
// these to 32 bits and adds the tail's CRC.
func (p *program) reduce(acc reg.VecVirtual, tail reg.GPVirtual) {
	row, lane := GP64(), GP64()
	MOVL(p.n.As32(), row.As32())
	ANDL(U8(15), row.As32())
	IMUL3Q(U8(rowOctets), row, row)
	MOVL(p.n.As32(), lane.As32())
	ANDL(U8(p.bytes-16), lane.As32())
	SUBQ(lane, row)
	table := GP64()
	LEAQ(p.tables.last.Offset(rowOctets-p.bytes), table)

	k, hi := p.reg(), p.reg()
	p.move(Mem{Base: table, Index: row, Scale: 1}, k)
	VPCLMULQDQ(U8(0x11), k, acc, hi)
	VPCLMULQDQ(U8(0x00), k, acc, acc)
	p.xor(hi, acc)
	if p.bytes == 64 {
		VEXTRACTI64X4(U8(1), acc, hi.AsY())
		VPXOR(hi.AsY(), acc.AsY(), acc.AsY())
	}
	VEXTRACTI128(U8(1), acc.AsY(), hi.AsX())
	VPXOR(hi.AsX(), acc.AsX(), acc.AsX())
	q := GP64()
	XORL(p.crc.As32(), p.crc.As32())
	VMOVQ(acc.AsX(), q)
	CRC32Q(q, p.crc)
	VPEXTRQ(U8(1), acc.AsX(), q)
	CRC32Q(q, p.crc)
	XORL(tail.As32(), p.crc.As32())
}

// combine moves the accumulators to the last one and adds them up.
func (p *program) combine(acc []reg.VecVirtual) {
	last := acc[p.accs-1]
	for i, a := range acc[:p.accs-1] {
		k := p.multiplier((p.accs - 1 - i) * p.bytes)
		hi := p.reg()
		VPCLMULQDQ(U8(0x11), k, a, hi)
		VPCLMULQDQ(U8(0x00), k, a, a)
		p.xor3(hi, a, last)
	}
}
