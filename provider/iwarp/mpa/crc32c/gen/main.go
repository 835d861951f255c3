// Command gen writes the amd64 kernels of package crc32c as Go assembly.
//
// It is a module of its own, so that users of govs do not depend on avo. go generate in the folder
// above runs it. go test here checks that the files there are up to date.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func main() {
	ConstraintExpr("!purego")
	tables := newTables()
	for _, v := range []vector{zmm, ymm} {
		TEXT("update"+v.name, NOSPLIT|NOFRAME, "func(crc uint32, p []byte) uint32")
		Doc(fmt.Sprintf("update%s extends crc by p. It needs %s.", v.name, v.needs))
		Pragma("noescape")
		emit(v, tables, false)

		TEXT("copy"+v.name, NOSPLIT|NOFRAME, "func(crc uint32, dst, src []byte) uint32")
		Doc(fmt.Sprintf("copy%s copies src to dst and extends crc by src. It relies on len(dst) >= len(src).", v.name),
			fmt.Sprintf("It needs %s.", v.needs))
		Pragma("noescape")
		emit(v, tables, true)
	}
	cpuid7()
	Generate()
}

// program is a kernel that is being written.
type program struct {
	vector
	tables   tables
	copies   bool
	crc      reg.GPVirtual // the upper 32 bits are zero; inverted, as CRC32C is between octets
	src, dst reg.GPVirtual // dst is used only if copies
	n        reg.GPVirtual // octets at src
}

func emit(v vector, t tables, copies bool) {
	p := &program{vector: v, tables: t, copies: copies, crc: GP64(), src: GP64(), n: GP64()}
	message := "p"
	if copies {
		message = "src"
		p.dst = GP64()
		Load(Param("dst").Base(), p.dst)
	}
	Load(Param("crc"), p.crc.As32())
	Load(Param(message).Base(), p.src)
	Load(Param(message).Len(), p.n)
	NOTL(p.crc.As32())
	CMPQ(p.n, U32(v.wide))
	JAE(LabelRef("wide"))
	p.narrow()
	p.finish()
	Label("wide")
	p.wide()
	p.finish()
}

func (p *program) finish() {
	NOTL(p.crc.As32())
	Store(p.crc.As32(), ReturnIndex(0))
	RET()
}

// cpuid7 queries what golang.org/x/sys/cpu does not report without AVX-512.
func cpuid7() {
	TEXT("cpuid7", NOSPLIT, "func() (ecx uint32)")
	Doc("cpuid7 returns ECX of leaf 7 of CPUID, which the CPU has if it has AVX2.")
	MOVL(U32(7), reg.EAX)
	XORL(reg.ECX, reg.ECX)
	CPUID()
	Store(reg.ECX, ReturnIndex(0))
	RET()
}
