package crc32c

import "hash/crc32"

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
