//go:build !purego && !race && !asan && !msan

#include "textflag.h"

// func copyRep(dst, src *byte, n uintptr)
TEXT ·copyRep(SB), NOSPLIT|NOFRAME, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	REP; MOVSB
	RET
