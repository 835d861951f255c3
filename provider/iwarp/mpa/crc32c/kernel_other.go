//go:build !amd64 || purego

package crc32c

const chosen = stdlib

func update(crc uint32, p []byte) uint32 { return updateStdlib(crc, p) }

func copyUpdate(crc uint32, dst, src []byte) uint32 { return copyStdlib(crc, dst, src) }

func updateEach(crcs []uint32, p []byte, n, stride int) { eachAlone(crcs, p, n, stride) }
