//go:build !purego

package crc32c

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
