package engine

import "bytes"

// What tests fill memory with, and how they see that it has not changed. Their loops over single
// bytes have taken a good part of the time of tests under the race detector, which would note each
// of them. So these do not tell it of single bytes, but, with copy, of all at once.

// freshOctet is what memory is filled with that nobody has written to.
const freshOctet = 0xa5

var freshOctets = bytes.Repeat([]byte{freshOctet}, 16<<10)

// freshen makes all bytes of b fresh.
func freshen(b []byte) {
	for len(b) > 0 {
		b = b[copy(b, freshOctets):]
	}
}

// isFresh reports whether all bytes of b are.
func isFresh(b []byte) bool {
	var got [16 << 10]byte
	for len(b) > 0 {
		n := copy(got[:], b)
		if !bytes.Equal(got[:n], freshOctets[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

// pattern fills b so that no two places look alike for long.
func pattern(b []byte, seed int) {
	patternUnseen(b, seed)
	copy(b, b) // for the race detector
}

//go:norace
func patternUnseen(b []byte, seed int) {
	x := uint32(seed)*2654435761 + 12345
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
}

// fillPattern fills b with bytes that follow from seed.
func fillPattern(b []byte, seed uint64) {
	fillUnseen(b, seed)
	copy(b, b) // for the race detector
}

//go:norace
func fillUnseen(b []byte, seed uint64) {
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
}
