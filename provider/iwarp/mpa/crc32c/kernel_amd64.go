//go:build !purego

package crc32c

var chosen = stdlib

func update(crc uint32, p []byte) uint32 { return updateStdlib(crc, p) }

func copyUpdate(crc uint32, dst, src []byte) uint32 { return copyStdlib(crc, dst, src) }
