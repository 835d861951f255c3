package policy

import "math/bits"

// TurnOfLook is the turn of one of n streams that a poller reads directly.
func TurnOfLook(n int) int {
	if n == 1 {
		return TurnSole
	}
	return TurnOne
}

// TurnOfPost is the turn of what a program has posted for the only stream that it polls, where
// other streams leave turn for it. answers says that the peer's Reads ask for something. That has
// no more than this, because the program may poll other CQs, whose streams would wait for longer.
func TurnOfPost(turn int, answers bool) int {
	if answers {
		return turn
	}
	return max(turn, TurnSole)
}

// TurnOfShort is the turn of one of n short streams of a round.
func TurnOfShort(n int) int { return min(TurnOne, TurnsShort/n) }

// TurnOfLong is the turn of a long stream, with left of what those of a round have together: none,
// or a quarter at least.
func TurnOfLong(left int) int {
	if left <= 0 {
		return 0
	}
	return min(TurnLong, max(left, TurnLong/4))
}

// TurnOfBatch is what a batch may cost, with left of a turn.
func TurnOfBatch(left int) int { return max(left, BatchLeast) }

// A Batch decides how many bytes go out with one call. Each call costs much more than its bytes.
// But what a socket doesn't take has to be copied, so that it must have shown for a while that it
// takes everything. FPDUs that it doesn't take may have been built for nothing, so that a socket
// that was full gets at first little more than it took before that.
type Batch struct {
	apt   int32 // what the socket is likely to take
	since int32 // what it took since it was full, BatchOctets at most
	whole uint8 // batches in a row that it took whole, WholeBatches at most
}

// NewBatch is that of a socket that has not been full.
func NewBatch() Batch { return Batch{apt: BatchOctets} }

// Took notes that the socket took n bytes, and whether that was all of the batch.
func (b *Batch) Took(n int, whole bool) {
	b.since = int32(min(int(b.since)+n, BatchOctets))
	if n >= int(b.apt) {
		b.apt = min(2*b.apt, BatchOctets)
	}
	if b.whole = min(b.whole+1, WholeBatches); !whole {
		b.whole = 0
	}
	if b.whole == WholeBatches {
		b.apt = BatchOctets // the batches may have been short, but the socket took all
	}
}

// Full notes that the socket took nothing.
func (b *Batch) Full() {
	b.apt = min(max(2*b.since, BatchSlow), BatchOctets)
	b.whole, b.since = 0, 0
}

// Limit is how many bytes the next batch may have.
func (b *Batch) Limit() uint64 {
	if b.whole < WholeBatches {
		return uint64(b.apt)
	}
	return BatchMost
}

// Dense is how short the FPDUs of a stream are: the binary logarithm of what a byte of them
// costs, counted in bytes.
type Dense uint8

// DenseFirst is Dense before anything was received: FPDUs without payload, of 20 bytes.
const DenseFirst = 5

// ReadLimit is how many bytes the next read takes, when turn is left and rest is missing of an
// FPDU whose length is known: few while FPDUs are short, so that what they cost stays within the
// turn. The rest costs no more than its bytes.
func (d Dense) ReadLimit(rest, turn int) int {
	most := max(ReadLeast, min(ReadMost, turn>>d))
	// The last FPDU of a turn is read to its end, because a long part would have to be kept. The
	// quarter is for that read.
	return max(rest+ReadAhead, min(rest+most, max(turn-turn/4, ReadLeast)))
}

// Spent returns what a read of n bytes, in which as many FPDUs ended as fpdus says, has
// cost. full says that as many bytes came as were asked for.
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
