//go:build !purego

package crc32c

// each4 calculates the CRCs of the n octets at p and at the next three multiples
// of stride after it, for CPUs with SSE4.2. n is a multiple of four.
//
//go:noescape
func each4(crcs *[4]uint32, p *byte, n, stride int)

// eachMax is up to which length each4 is faster than one after the other: beyond
// it the chosen kernel needs less than the crc32 instruction's cycle for eight
// octets.
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
