//go:build !purego

#include "textflag.h"

// func vendor() uint32
TEXT ·vendor(SB), NOSPLIT|NOFRAME, $0-4
	XORL AX, AX
	XORL CX, CX
	CPUID
	MOVL BX, ret+0(FP)
	RET
