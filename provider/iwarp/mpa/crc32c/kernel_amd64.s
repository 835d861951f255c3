//go:build !purego

#include "textflag.h"

// func each4(crcs *[4]uint32, p *byte, n, stride int)
//
// The crc32 instruction has a latency of three cycles and can be begun in each:
// what one block leaves idle takes three more. n is a multiple of four.
TEXT ·each4(SB), NOSPLIT, $0-32
	MOVQ crcs+0(FP), DI
	MOVQ p+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ stride+24(FP), DX
	LEAQ (SI)(DX*1), R8
	LEAQ (R8)(DX*1), R9
	LEAQ (R9)(DX*1), R10
	MOVL $-1, AX
	MOVL $-1, BX
	MOVL $-1, R11
	MOVL $-1, R12
	XORL DX, DX
	MOVQ CX, R13
	ANDQ $-8, R13
	JZ   tail

loop:
	CRC32Q (SI)(DX*1), AX
	CRC32Q (R8)(DX*1), BX
	CRC32Q (R9)(DX*1), R11
	CRC32Q (R10)(DX*1), R12
	ADDQ   $8, DX
	CMPQ   DX, R13
	JNE    loop

tail:
	TESTQ  $4, CX
	JZ     done
	CRC32L (SI)(DX*1), AX
	CRC32L (R8)(DX*1), BX
	CRC32L (R9)(DX*1), R11
	CRC32L (R10)(DX*1), R12

done:
	NOTL AX
	NOTL BX
	NOTL R11
	NOTL R12
	MOVL AX, (DI)
	MOVL BX, 4(DI)
	MOVL R11, 8(DI)
	MOVL R12, 12(DI)
	RET

// func updateFallback(crc uint32, p []byte) uint32
TEXT ·updateFallback(SB), NOSPLIT|NOFRAME, $0-36
	JMP ·updateStdlib(SB)

// func copyFallback(crc uint32, dst, src []byte) uint32
TEXT ·copyFallback(SB), NOSPLIT|NOFRAME, $0-60
	JMP ·copyStdlib(SB)
