package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// vector is a width of registers to fold with.
type vector struct {
	name  string
	needs string
	bytes int
	accs  int // accumulators: pairs of products in flight
	wide  int // octets (more than bytes) from which vectors are faster than crc32 instructions
}

var (
	zmm = vector{name: "AVX512", needs: "AVX-512 F, BW and VL, VPCLMULQDQ, BMI2 and SSE4.2", bytes: 64, accs: 4, wide: 128}
	ymm = vector{name: "AVX2", needs: "AVX2, VPCLMULQDQ, BMI2 and SSE4.2", bytes: 32, accs: 4, wide: 128}
)

func (v vector) reg() reg.VecVirtual {
	if v.bytes == 64 {
		return ZMM()
	}
	return YMM()
}

func (v vector) move(from, to Op) {
	if v.bytes == 64 {
		VMOVDQU64(from, to)
	} else {
		VMOVDQU(from, to)
	}
}

// xor adds from to to.
func (v vector) xor(from, to reg.VecVirtual) {
	if v.bytes == 64 {
		VPXORQ(from, to, to)
	} else {
		VPXOR(from, to, to)
	}
}

// xor3 adds a and b to acc.
func (v vector) xor3(a Op, b, acc reg.VecVirtual) {
	if v.bytes == 64 {
		VPTERNLOGQ(U8(0x96), a, b, acc)
		return
	}
	VPXOR(a, acc, acc)
	VPXOR(b, acc, acc)
}

// tables are the multipliers in the assembly file.
type tables struct {
	fold map[int]Mem // the pair of multipliers, by distance in octets

	// last moves the 128-bit lanes of a register to the end of a message that continues for t
	// octets after the register. The last lane is moved by t, the one before by t+16, and so on.
	// Row t%16 has the pairs for the distances t%16+96, t%16+80 ... t%16, so a register of lanes
	// uses adjacent pairs.
	last Mem
}

const (
	rowPairs  = 7
	rowOctets = rowPairs * 16
)

func newTables() tables {
	t := tables{fold: map[int]Mem{}}
	pair := func(at, d int) {
		for i, m := range multipliers(d) {
			DATA(at+8*i, U64(m))
		}
	}
	for _, v := range []vector{zmm, ymm} {
		for k := 1; k <= v.accs; k++ {
			d := k * v.bytes
			if _, ok := t.fold[d]; !ok {
				t.fold[d] = GLOBL(fmt.Sprintf("fold%d", d), RODATA|NOPTR)
				pair(0, d)
			}
		}
	}
	t.last = GLOBL("last", RODATA|NOPTR)
	for r := range 16 {
		for j := range rowPairs {
			pair(r*rowOctets+j*16, r+16*(rowPairs-1-j))
		}
	}
	return t
}
