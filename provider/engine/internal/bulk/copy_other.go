//go:build !amd64 || purego || race || asan || msan

package bulk

// instruction copies nothing: the race detector and sanitizers have to see the copy, and on other
// architectures Go's loop is the one to take.
func instruction(_, _ []byte) bool { return false }
