package policy

import (
	"math/bits"
	"time"
)

// BudgetOfPoll returns the budget of one of n streams that a poller reads directly, in bytes.
func BudgetOfPoll(n int) int {
	if n == 1 {
		return BudgetSole
	}
	return BudgetOne
}

// BudgetOfPost returns the budget for the posts of a program to the only stream that it polls,
// where other streams leave budget for it. answers says that the peer's Reads also ask for
// something. Then the budget is not larger, because the program may poll other CQs, whose streams
// would wait for longer.
func BudgetOfPost(budget int, answers bool) int {
	if answers {
		return budget
	}
	return max(budget, BudgetSole)
}

// BudgetOfShort returns the budget of one of n short streams of a round.
func BudgetOfShort(n int) int { return min(BudgetOne, BudgetAllShort/n) }

// BudgetOfLong returns the budget of a long stream; left is the rest of the budget that all of a
// round share. It is 0, or at least a quarter of BudgetLong.
func BudgetOfLong(left int) int {
	if left <= 0 {
		return 0
	}
	return min(BudgetLong, max(left, BudgetLong/4))
}

// BudgetOfBatch returns what a batch may cost, with left of a budget.
func BudgetOfBatch(left int) int { return max(left, BatchLeast) }

// A Batch decides how many bytes one call sends. Each call costs much more than its bytes. But the
// bytes that a socket doesn't take must be copied, so the socket must have taken everything for a
// while first. FPDUs that it doesn't take may have been built for nothing. So a socket that was
// full at first gets little more than it took before.
type Batch struct {
	target int32 // bytes that the socket is likely to take
	since  int32 // bytes taken since the socket was full, BatchOctets at most
	whole  uint8 // consecutive batches that it took whole, WholeBatches at most
}

// NewBatch returns the Batch of a socket that has not been full.
func NewBatch() Batch { return Batch{target: BatchOctets} }

// Took notes that the socket took n bytes, and whether that was all of the batch.
func (b *Batch) Took(n int, whole bool) {
	b.since = int32(min(int(b.since)+n, BatchOctets))
	if n >= int(b.target) {
		b.target = min(2*b.target, BatchOctets)
	}
	if b.whole = min(b.whole+1, WholeBatches); !whole {
		b.whole = 0
	}
	if b.whole == WholeBatches {
		b.target = BatchOctets // the batches may have been short, but the socket took everything
	}
}

// Full notes that the socket took nothing.
func (b *Batch) Full() {
	b.target = min(max(2*b.since, BatchSlow), BatchOctets)
	b.whole, b.since = 0, 0
}

// Limit returns how many bytes the next batch may have.
func (b *Batch) Limit() uint64 {
	if b.whole < WholeBatches {
		return uint64(b.target)
	}
	return BatchMost
}

// CostShift says how short the FPDUs of a stream are: it is the binary logarithm of the cost of one
// of their bytes, counted in bytes.
type CostShift uint8

// CostShiftFirst is CostShift before anything was received. It assumes FPDUs without payload, of 20
// bytes.
const CostShiftFirst = 5

// ReadLimit returns how many bytes the next read takes. budget is what is left, and rest is
// missing of an FPDU whose length is known. The limit is small while FPDUs are short, so that their
// cost stays within the budget. The missing rest costs no more than its bytes.
func (d CostShift) ReadLimit(rest, budget int) int {
	most := max(ReadLeast, min(ReadMost, budget>>d))
	// The last FPDU of a turn is read to its end, because a long part would have to be kept. A
	// quarter of the budget is reserved for that read.
	return max(rest+ReadAhead, min(rest+most, max(budget-budget/4, ReadLeast)))
}

// Spent returns the cost of a read of n bytes in which fpdus FPDUs ended. full says that the read
// returned as many bytes as were requested.
//
// It records in d how short the FPDUs were. d decreases slowly, and only after reads that were as
// long as it permitted. A short read with the rest of an FPDU, and perhaps one more FPDU, does not
// increase it, because turns of streams with long FPDUs end with such a read.
func (d *CostShift) Spent(n, fpdus int, full bool) int {
	cost := n + fpdus*FPDUCost
	shift := CostShift(bits.Len(uint(cost-cost/8-1) / uint(n)))
	rest := n < BudgetEnd && fpdus <= 2
	if full || shift > *d {
		less := *d - min(*d, 1)
		switch {
		case !rest:
			*d = max(shift, less)
		case full:
			*d = less
		}
	}
	return cost
}

// Leased reports whether goroutines that poll a loop hold its lease at the time now. polled is when
// the last of LeasePolls or more consecutive Polls began or ended. It is 0 if there were fewer
// since a goroutine was last about to sleep.
func Leased(polled, now time.Duration) bool { return polled != 0 && now-polled < LeaseTime }

// Polls returns how many polls a poll of some streams counts as if it has moved so many bytes.
// After SomeMost of them, a program polls all streams: that is a Poll of the poller, which renews
// the lease. So BudgetLong bytes renew it, too, which may take as long as hundreds of polls that
// find nothing.
func Polls(moved int) uint64 { return 1 + uint64(moved/(BudgetLong/SomeMost)) }
