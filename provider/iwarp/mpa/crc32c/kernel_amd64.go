//go:build !purego

package crc32c

import "golang.org/x/sys/cpu"

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

// each4 calculates the CRCs of the n octets at p and at the next three multiples
// of stride after it, for CPUs with SSE4.2. n is a multiple of four.
//
//go:noescape
func each4(crcs *[4]uint32, p *byte, n, stride int)

// eachMax is the length up to which each4 is faster than separate calls. For longer blocks the
// chosen kernel is faster, because the crc32 instruction needs a cycle for eight octets.
const eachMax = 224

func updateEach(crcs []uint32, p []byte, n, stride int) {
	i := 0
	if chosen != stdlib && n%4 == 0 && 0 < n && n <= eachMax {
		for ; i+4 <= len(crcs); i += 4 {
			at := i * stride
			_ = p[at+3*stride+n-1]
			each4((*[4]uint32)(crcs[i:]), &p[at], n, stride)
		}
	}
	eachAlone(crcs[i:], p[min(i*stride, len(p)):], n, stride)
}

// hash/crc32 lets its argument escape. These two functions jump to updateStdlib and copyStdlib.
// Their declarations promise that nothing escapes, which the compiler cannot prove, so the callers'
// slices may stay on the stack.

//go:noescape
func updateFallback(crc uint32, p []byte) uint32

//go:noescape
func copyFallback(crc uint32, dst, src []byte) uint32
