//go:build !purego

package crc32c

import (
	"golang.org/x/sys/cpu"
)

//go:generate go -C gen run . -out ../fold_amd64.s -stubs ../fold_amd64.go -pkg crc32c

var chosen = best()

// best returns the fastest kernel that the CPU has and whose registers the
// operating system saves.
func best() kernel {
	switch {
	case has(avx512):
		return avx512
	case has(avx2):
		return avx2
	}
	return stdlib
}

func has(k kernel) bool {
	const vpclmulqdq = 1 << 10 // in ECX of CPUID leaf 7
	x := &cpu.X86
	switch common := x.HasSSE42 && x.HasPCLMULQDQ && x.HasBMI2 && x.HasAVX2; k {
	case avx512:
		return common && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512VPCLMULQDQ
	case avx2:
		return common && cpuid7()&vpclmulqdq != 0
	}
	return true
}

// Switches instead of a func value, because a func value would make its slices escape.

func update(crc uint32, p []byte) uint32 {
	switch chosen {
	case avx512:
		return updateAVX512(crc, p)
	case avx2:
		return updateAVX2(crc, p)
	}
	return updateFallback(crc, p)
}

// The copying kernels read no octet twice if the length is a multiple of readOnce and at least
// leastOnce.
// least leastOnce.
const readOnce, leastOnce = 64, 128

func copyUpdate(crc uint32, dst, src []byte) uint32 {
	whole := len(src) &^ (readOnce - 1)
	if whole >= leastOnce {
		crc = copyWhole(crc, dst, src[:whole])
		dst, src = dst[whole:], src[whole:]
	}
	// The CRC of the rest is computed from the copy, which no other goroutine changes.
	return update(crc, dst[:copy(dst, src)])
}

func copyWhole(crc uint32, dst, src []byte) uint32 {
	switch chosen {
	case avx512:
		return copyAVX512(crc, dst, src)
	case avx2:
		return copyAVX2(crc, dst, src)
	}
	return copyFallback(crc, dst, src)
}
