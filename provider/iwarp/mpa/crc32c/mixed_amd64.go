//go:build !purego

package crc32c

// What gen/mixed.go says of the messages of mixedAVX512.
const (
	rowWide   = 256
	rowNarrow = 40
	rowOctets = rowWide + 3*rowNarrow
	rowsMost  = 176
)

// From mixedLeast octets on updateMixed is faster than updateAVX512, and from mixedCopyLeast on
// copyMixed is faster than copyAVX512.
const mixedLeast, mixedCopyLeast = 2 << 10, 6 << 10

// updateMixed is Update for CPUs with what updateAVX512 needs, whose vectors wait for the
// multiplier: it has crc32 instructions take a part of the message meanwhile.
func updateMixed(crc uint32, p []byte) uint32 {
	for len(p) >= mixedLeast {
		rows := min(len(p)/rowOctets, rowsMost)
		crc = mixedAVX512(crc, &p[0], rows)
		p = p[rows*rowOctets:]
	}
	return updateAVX512(crc, p)
}

// rowsOnce rows are a multiple of readOnce octets.
const rowsOnce = 8

// copyMixed is Copy as updateMixed is Update. It reads no octet twice where copyAVX512 does not: it
// leaves that a multiple of readOnce, and at least leastOnce, if src has as much.
func copyMixed(crc uint32, dst, src []byte) uint32 {
	for {
		rows := min(len(src)/rowOctets, rowsMost) &^ (rowsOnce - 1)
		if len(src)-rows*rowOctets < leastOnce {
			rows -= rowsOnce
		}
		if rows <= 0 || len(src) < mixedCopyLeast {
			return copyAVX512(crc, dst, src)
		}
		crc = copyMixedAVX512(crc, &dst[0], &src[0], rows)
		dst, src = dst[rows*rowOctets:], src[rows*rowOctets:]
	}
}
