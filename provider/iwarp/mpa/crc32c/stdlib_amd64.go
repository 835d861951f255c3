//go:build !purego

package crc32c

// hash/crc32 lets its argument escape. These two functions jump to updateStdlib and copyStdlib.
// Their declarations promise that nothing escapes, which the compiler cannot prove, so the callers'
// slices may stay on the stack.

//go:noescape
func updateFallback(crc uint32, p []byte) uint32

//go:noescape
func copyFallback(crc uint32, dst, src []byte) uint32
