package policy

import "math/bits"

// TurnOfLook is the turn of one of n streams that a poller reads directly.
func TurnOfLook(n int) int {
	if n == 1 {
		return TurnSole
	}
	return TurnOne
}

// Dense is how short the FPDUs of a stream are: the binary logarithm of what an octet of them
// costs, counted in octets.
type Dense uint8

// DenseFirst is Dense before anything was received: FPDUs without payload, of 20 octets.
const DenseFirst = 5

// ReadLimit is how many octets the next read takes, when turn is left and rest is missing of an
// FPDU whose length is known: few while FPDUs are short, so that what they cost stays within the
// turn. The rest costs no more than its octets.
func (d Dense) ReadLimit(rest, turn int) int {
	most := max(ReadLeast, min(ReadMost, turn>>d))
	// The last FPDU of a turn is read to its end, because a long part would have to be kept. The
	// quarter is for that read.
	return max(rest+ReadAhead, min(rest+most, max(turn-turn/4, ReadLeast)))
}

// Spent returns what a read of n octets, in which as many FPDUs ended as fpdus says, has
// cost. full says that as many octets came as were asked for.
//
// It records in d how short the FPDUs were. d decreases slowly, and only after reads that were as
// long as it permitted. A short read with the rest of an FPDU, and perhaps one more, does not
// increase it: with such a read the turns of streams end whose FPDUs are long.
func (d *Dense) Spent(n, fpdus int, full bool) int {
	cost := n + fpdus*FPDUCost
	dense := Dense(bits.Len(uint(cost-cost/8-1) / uint(n)))
	rest := n < TurnEnd && fpdus <= 2
	if full || dense > *d {
		less := *d - min(*d, 1)
		switch {
		case !rest:
			*d = max(dense, less)
		case full:
			*d = less
		}
	}
	return cost
}
