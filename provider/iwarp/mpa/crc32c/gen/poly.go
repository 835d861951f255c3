package main

// castagnoli is P(x), 0x11edc6f41, without x^32 and bit-reflected: bit 31-i is the coefficient of
// x^i. All polynomials here are reflected in this way, because CRC32C processes the lowest bit of
// an octet first.
const castagnoli = 0x82f63b78

// xPow returns x^n mod P(x) for n >= -1.
func xPow(n int) uint32 {
	if n < 0 {
		// P's constant term is 1, so x * (P(x)-1)/x = 1 mod P(x).
		const withoutOne = castagnoli & (1<<31 - 1)
		return withoutOne<<1 | 1 // x^32/x = x^31 is bit 0
	}
	r := uint32(1) << 31
	for range n {
		carry := r & 1
		r >>= 1
		if carry != 0 {
			r ^= castagnoli
		}
	}
	return r
}

// multipliers returns the two factors that move 128 bits of the message by d octets. The first is
// for the 64 bits at the lower address, which are the higher powers of x. The product of two
// reflected 64-bit factors is one power too low, which the factors correct.
func multipliers(d int) [2]uint64 {
	return [2]uint64{uint64(xPow(8*d+63)) << 32, uint64(xPow(8*d-1)) << 32}
}
