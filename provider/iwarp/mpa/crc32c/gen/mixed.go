package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A row of a mixed message is what an iteration takes: rowWide octets by vectors, and rowNarrow by
// crc32 instructions in each of three streams, because such an instruction waits for the one before
// it in its stream. On an AMD EPYC (family 26) the vectors wait for the multiplier, and an
// iteration takes hardly longer with the streams than without. There 32, 48, 56, 64 and 80 were no
// faster with 32 KiB.
const (
	rowWide   = 256
	rowNarrow = 40
	rowsMost  = 176 // more than the longest FPDU has
)

// mixed takes a message of 2 to rowsMost rows. First come rowWide octets for each row, then
// the three streams with rowNarrow octets for each row. Their four CRCs are computed at the same
// time. Then the first three are moved on to the end of the message.
func mixed(v vector, t tables, copies bool) {
	p := &program{vector: v, tables: t, copies: copies, crc: GP64(), src: GP64(), n: GP64()}
	rows, stream, length, dstStream := GP64(), GP64(), GP64(), GP64()
	if copies {
		TEXT("copyMixed"+v.name, NOSPLIT|NOFRAME, "func(crc uint32, dst, src *byte, rows int) uint32")
		Doc("copyMixed" + v.name + " is mixed" + v.name + " of what is at src, and copies it to dst.")
		Pragma("noescape")
		p.dst = GP64()
		Load(Param("dst"), p.dst)
		Load(Param("src"), p.src)
	} else {
		TEXT("mixed"+v.name, NOSPLIT|NOFRAME, "func(crc uint32, p *byte, rows int) uint32")
		Doc("mixed" + v.name + " extends crc by rows*rowOctets octets at p. rows is from 2 to rowsMost.")
		Pragma("noescape")
		Load(Param("p"), p.src)
	}
	Load(Param("crc"), p.crc.As32())
	Load(Param("rows"), rows)
	NOTL(p.crc.As32())
	IMUL3Q(U32(rowWide), rows, stream)
	if copies {
		LEAQ(Mem{Base: p.dst, Index: stream, Scale: 1}, dstStream)
	}
	ADDQ(p.src, stream)
	IMUL3Q(U32(rowNarrow), rows, length)

	var crcs [3]reg.GPVirtual
	for i := range crcs {
		crcs[i] = GP64()
		XORL(crcs[i].As32(), crcs[i].As32())
	}
	narrow := func(from, to int) {
		for at := from; at < to; at += 8 {
			for i, crc := range crcs {
				from := Mem{Base: stream, Disp: at}
				to := Mem{Base: dstStream, Disp: at}
				if i > 0 {
					from.Index, from.Scale, to.Index, to.Scale = length, uint8(i), length, uint8(i)
				}
				if !copies {
					CRC32Q(from, crc)
					continue
				}
				q := GP64()
				MOVQ(from, q)
				MOVQ(q, to)
				CRC32Q(q, crc)
			}
		}
	}
	acc := make([]reg.VecVirtual, p.accs)
	for i := range acc {
		acc[i] = p.reg()
		p.load(i*p.bytes, acc[i])
	}
	p.xor(p.crcLane(), acc[0])
	narrow(0, rowNarrow)
	k := p.multiplier(rowWide)
	DECQ(rows)
	Label("row")
	p.advance(rowWide)
	ADDQ(U32(rowNarrow), stream)
	if copies {
		ADDQ(U32(rowNarrow), dstStream)
	}
	for i, a := range acc {
		p.step(a, k, p.next(i*p.bytes))
		narrow(rowNarrow*i/p.accs&^7, rowNarrow*(i+1)/p.accs&^7)
	}
	DECQ(rows)
	JNZ(LabelRef("row"))

	last := acc[p.accs-1]
	p.combine(acc)
	XORL(p.n.As32(), p.n.As32())
	none := GP64()
	XORL(none.As32(), none.As32())
	p.reduce(last, none)
	VZEROUPPER()

	// shifts has a factor for each number of rows of one stream.
	one, at, shifts := GP64(), GP64(), GP64()
	Load(Param("rows"), one)
	LEAQ(Mem{Base: one, Index: one, Scale: 2}, at) // the end is three streams away
	LEAQ(t.shifts, shifts)
	sum := crcs[2]
	for _, crc := range []reg.GPVirtual{p.crc, crcs[0], crcs[1]} {
		c, f, moved, q := XMM(), XMM(), GP64(), GP64()
		MOVQ(crc, c)
		MOVQ(Mem{Base: shifts, Index: at, Scale: 8}, f)
		PCLMULQDQ(U8(0), f, c)
		MOVQ(c, q)
		XORL(moved.As32(), moved.As32())
		CRC32Q(q, moved)
		XORL(moved.As32(), sum.As32())
		SUBQ(one, at)
	}
	NOTL(sum.As32())
	Store(sum.As32(), ReturnIndex(0))
	RET()
}

// combine moves the accumulators on to the last.
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
