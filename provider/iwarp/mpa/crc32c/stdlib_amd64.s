//go:build !purego

#include "textflag.h"

// func updateFallback(crc uint32, p []byte) uint32
TEXT ·updateFallback(SB), NOSPLIT|NOFRAME, $0-36
	JMP ·updateStdlib(SB)

// func copyFallback(crc uint32, dst, src []byte) uint32
TEXT ·copyFallback(SB), NOSPLIT|NOFRAME, $0-60
	JMP ·copyStdlib(SB)
