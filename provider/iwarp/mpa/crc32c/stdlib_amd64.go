//go:build !purego

package crc32c

// hash/crc32 lets its argument escape. These two jump to updateStdlib and
// copyStdlib and promise what the compiler can't see, so that slices of the
// callers may stay on their stacks.

//go:noescape
func updateFallback(crc uint32, p []byte) uint32

//go:noescape
func copyFallback(crc uint32, dst, src []byte) uint32
