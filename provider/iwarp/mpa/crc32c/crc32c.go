// Package crc32c computes CRC32C, the Castagnoli CRC that MPA puts after each FPDU (RFC 5044
// section 4.4, RFC 3720 appendix B.4). It is faster than hash/crc32 if the CPU can multiply
// polynomials 256 or 512 bits at a time, and it can compute the CRC while it copies.
//
// At program start it chooses the kernel, the implementation for the CPU and the operating system;
// [Kernel] names it. With the build tag purego, and on architectures other than amd64, it always
// uses hash/crc32.
//
// All functions may be called concurrently, allocate nothing and retain no slice. They do not
// access octets outside the slices they are given. Without assembly, the slices escape to the heap,
// as with hash/crc32.
package crc32c

import "hash/crc32"

// Update extends crc by p; crc is the CRC32C of the octets before p, or 0 if there are none. It
// returns the same as hash/crc32.Update with the Castagnoli table.
func Update(crc uint32, p []byte) uint32 {
	if len(p) == 0 {
		return crc // most FPDUs need no pad
	}
	return update(crc, p)
}

// Copy copies src to the first len(src) octets of dst and returns crc extended by src, as [Update]
// would. It reads each octet once, so the result is the CRC of what dst contains, even if another
// goroutine changes src. dst and src must not overlap. If dst is shorter than src, Copy panics and
// writes nothing.
func Copy(crc uint32, dst, src []byte) uint32 {
	if len(dst) < len(src) {
		panic("crc32c: dst is shorter than src")
	}
	return copyUpdate(crc, dst, src)
}

// Each computes the CRC32C of len(crcs) blocks of n octets each, which begin at the multiples of
// stride in p: crcs[i] is Update(0, p[i*stride:i*stride+n]). Several short blocks together take
// little longer than one. stride must be at least n. Each panics if p is too short for the last
// block.
func Each(crcs []uint32, p []byte, n, stride int) {
	if n < 0 || stride < n {
		panic("crc32c: blocks overlap")
	}
	updateEach(crcs, p, n, stride)
}

func eachAlone(crcs []uint32, p []byte, n, stride int) {
	for i := range crcs {
		at := i * stride
		crcs[i] = Update(0, p[at:at+n:len(p)])
	}
}

// Kernel names the implementation chosen for this process, for reports:
// "vpclmulqdq-avx512", "vpclmulqdq-avx2" or "stdlib".
func Kernel() string { return chosen.name() }

// castagnoli is the table that makes hash/crc32 use the CPU's crc32 instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func updateStdlib(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }

// copyStdlib copies in pieces, so that the CRC finds them in the first-level cache.
func copyStdlib(crc uint32, dst, src []byte) uint32 {
	const piece = 8 << 10
	for len(src) > piece {
		copy(dst[:piece], src[:piece])
		crc = updateStdlib(crc, dst[:piece])
		dst, src = dst[piece:], src[piece:]
	}
	return updateStdlib(crc, dst[:copy(dst, src)])
}

// kernel is one way to compute the CRC.
type kernel uint8

const (
	stdlib kernel = iota
	avx2          // VPCLMULQDQ on 256 bits
	avx512        // VPCLMULQDQ on 512 bits
)

func (k kernel) name() string {
	switch k {
	case avx2:
		return "vpclmulqdq-avx2"
	case avx512:
		return "vpclmulqdq-avx512"
	}
	return "stdlib"
}
