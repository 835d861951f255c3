package load

import "encoding/binary"

// fillPattern fills b with bytes that depend on seed and position.
func fillPattern(b []byte, seed uint64) {
	x := seed
	for len(b) >= 8 {
		x = mix(x)
		binary.LittleEndian.PutUint64(b, x)
		b = b[8:]
	}
	x = mix(x)
	for i := range b {
		b[i] = byte(x >> (8 * i))
	}
}

// hasPattern returns the offset of the first byte that differs from fillPattern's, or -1 if none
// does.
func hasPattern(b []byte, seed uint64) int {
	x := seed
	var want [8]byte
	for i := 0; i < len(b); i += 8 {
		x = mix(x)
		binary.LittleEndian.PutUint64(want[:], x)
		for j, w := range want[:min(8, len(b)-i)] {
			if b[i+j] != w {
				return i + j
			}
		}
	}
	return -1
}

// mix is SplitMix64's step. It is a bijection, so no two positions below 2^64 have the same eight
// bytes.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
