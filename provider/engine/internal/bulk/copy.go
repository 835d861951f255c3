// Package bulk copies payload.
package bulk

// Copy is the built-in copy for payload that may be long: slices that do not overlap, or are
// the same. From leastLong octets on it takes the CPU's own instruction where that is faster
// than Go's loop.
func Copy(dst, src []byte) int {
	n := min(len(dst), len(src))
	if n >= leastLong && instruction(dst[:n], src[:n]) {
		return n
	}
	return copy(dst, src)
}

// leastLong is from how many octets on the instruction is no slower, although it takes longer
// to begin (BenchmarkCopy).
const leastLong = 4 << 10
