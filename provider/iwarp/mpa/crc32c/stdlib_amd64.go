//go:build !purego

package crc32c

// hash/crc32 lets its argument escape. These two jump to updateStdlib and copyStdlib, and
// their declarations promise that nothing escapes, which the compiler can't prove, so
// slices of the callers may stay on their stacks.

//go:noescape
func updateFallback(crc uint32, p []byte) uint32

//go:noescape
func copyFallback(crc uint32, dst, src []byte) uint32
