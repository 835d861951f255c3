//go:build !purego && !race && !asan && !msan

#include "textflag.h"

// func copyRep(dst, src *byte, n uintptr)
TEXT ·copyRep(SB), NOSPLIT|NOFRAME, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	REP; MOVSB
	RET

// func vendor() uint32
TEXT ·vendor(SB), NOSPLIT|NOFRAME, $0-4
	XORL AX, AX
	XORL CX, CX
	CPUID
	MOVL BX, ret+0(FP)
	RET
