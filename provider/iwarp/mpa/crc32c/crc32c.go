// Package crc32c computes CRC32C, the Castagnoli CRC that MPA puts after each
// FPDU (RFC 5044 section 4.4, RFC 3720 appendix B.4), faster than hash/crc32
// where the CPU can multiply polynomials 256 or 512 bits at a time, and
// computes it while copying.
//
// Which kernel is used is chosen once, when the program starts, by what the CPU
// and the operating system support; [Kernel] names it. With the build tag
// purego, and on architectures other than amd64, it is always hash/crc32.
//
// All functions may be called concurrently, allocate nothing and retain no slice. They
// read and write no octet outside the slices they are given. Where there is no assembly,
// the slices escape to the heap, as with hash/crc32.
package crc32c

// Update extends crc, the CRC32C of what came before p (0 for nothing), by p.
// It returns what hash/crc32.Update returns with the Castagnoli table.
func Update(crc uint32, p []byte) uint32 {
	if len(p) == 0 {
		return crc // most FPDUs need no pad
	}
	return update(crc, p)
}

// Copy copies src to the first len(src) octets of dst and returns crc extended
// by src, as [Update] would. Each octet is read once: what is returned is the CRC
// of what dst has then, also while another goroutine changes src. dst and src must not
// overlap. Like dst[:len(src)] beyond dst's length, a dst shorter than src
// panics; no octet is written then.
func Copy(crc uint32, dst, src []byte) uint32 {
	if len(dst) < len(src) {
		panic("crc32c: dst is shorter than src")
	}
	return copyUpdate(crc, dst, src)
}

// Each computes the CRC32C of len(crcs) blocks of n octets each, which begin at the
// multiples of stride in p: crcs[i] is Update(0, p[i*stride:i*stride+n]). Several short
// blocks together take little longer than one. stride is at least n; with a p that is too
// short for the last block Each panics.
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
