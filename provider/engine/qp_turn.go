package engine

import "math/bits"

// A turn is what one stream moves before others have theirs, in one direction: what it
// has moved then waits in the socket, or in the send queue and among the peer's Reads,
// until the next Poll. Nobody needs to remember it: what is unread keeps the socket
// readable, and a stream that has more to send has the poller watch for room, which there
// is (see putOff).
//
// A turn is counted in octets, so that it needs no clock and is the same on every run.
// What else costs time counts as the octets that take as long: with 0.1 ns for an octet,
// an FPDU is 50 to 80 ns beside its octets, and a record that TCP must not put together
// with others is 600 to 850 ns (BenchmarkReceived, BenchmarkSent).
const (
	// turnMost is the turn of a stream that has nobody beside it, 100 to 200 us. A
	// message of 1 MiB is one turn.
	turnMost = 5 << 18

	// turnsMost is what the streams that one Poll serves get together, about 1 ms, and
	// turnLeast what each gets in any case: of 64 streams that each move a MiB at a time
	// all octets pass through cold caches when turns are shorter, and half as many go
	// through (BenchmarkWriteMany).
	turnsMost = 8 << 20
	turnLeast = 128 << 10

	// batchLeast is what a batch may have when little is left of a turn.
	batchLeast = 32 << 10

	fpduCost   = 512
	recordCost = 4 << 10

	// readMost is how much one read takes at most beside the rest of an FPDU whose
	// length is known, and readLeast what it may take in any case.
	readMost  = 128 << 10
	readLeast = 2 << 10

	// denseFirst is what rxState.dense is before anything was received: FPDUs without
	// payload.
	denseFirst = 5
)

// turnAmong is the turn of one of n streams that are ready at the same time.
func turnAmong(n int) int { return min(turnMost, max(turnLeast, turnsMost/max(n, 1))) }

// turnOfLook is the turn of one of n streams that a poller reads directly. It wants to
// come back soon.
func turnOfLook(n int) int { return turnAmong(4 * n) }

// cost is what the batch's FPDUs take of a turn.
func (b *txBatch) cost() int {
	return int(b.built) + b.nfpdus*fpduCost + b.nrecs*recordCost
}

// setTurn bounds what is put into the empty batch by what is left of the turn.
func (b *txBatch) setTurn(left int) {
	left = max(left, batchLeast)
	b.limit = min(b.limit, uint64(left))
	b.mostFPDUs = min(batchFPDUs, left/fpduCost)
	b.mostRecords = min(batchFPDUs, left/recordCost)
}

// putOff ends a turn of the transmit side that has more to send, and has the poller say
// when the next may begin, which is at once: the socket has taken all so far. It reports
// false if nothing is left. The batch is empty, and others may have it meanwhile.
//
// Whoever posts meanwhile leaves it to the poller, as for a socket that is full. The
// progress goroutine doesn't park while a socket that it watches has room; who spins
// looks at the poller when one of its streams waits for it.
func (s *stream) putOff() bool {
	t := &s.tx
	if t.fault != nil || t.fetching() || !s.unsent() {
		return false
	}
	s.putBatch()
	s.wantWrite(true)
	s.watch() // there may be room that TCP doesn't tell of before the peer takes more
	return true
}

// unsent reports whether there are messages of which something is not built yet.
func (s *stream) unsent() bool {
	t := &s.tx
	return t.msg != msgNone || t.rtr != 0 || t.next != s.q.sq.tail.Load() || s.inbound.Front() != nil
}

// putBatch gives back a batch that has nothing to send, unless the stream keeps it.
func (s *stream) putBatch() {
	t := &s.tx
	if t.b != nil && !s.keeps.Load() {
		s.dev.prog.batches.put(t.b)
		t.b = nil
	}
}

// inLong reports whether the receive side is inside an FPDU so long that it is better to
// end than to keep.
func (r *rxState) inLong() bool { return r.c != nil && r.w-r.r > partSmall && !r.storing() }

// readLimit is how many octets the next read takes, when turn is left: few while FPDUs
// are short, so that what they cost stays within it.
func (r *rxState) readLimit(turn int) int {
	if r.direct.recent {
		return directAhead
	}
	most := max(readLeast, min(readMost, turn/2, turn>>r.dense))
	rest := int(r.need) - (r.w - r.r) // which costs no more than its octets
	switch {
	case rest <= 0:
		return most
	case rest+most > turn:
		return rest + directAhead // the turn ends with the FPDU, so that no long part is left
	}
	return rest + most
}

// spent is what n octets that were read with one call have cost, among which the ends of
// fpdus were; full says that as many came as were asked for.
//
// It keeps in mind how dense FPDUs were. That is forgotten slowly, and only by reads that
// it limits.
func (r *rxState) spent(n, fpdus int, full bool) int {
	cost := n + fpdus*fpduCost
	dense := uint8(bits.Len(uint(cost-1) / uint(n)))
	if full || dense > r.dense {
		r.dense = max(dense, r.dense-min(r.dense, 1))
	}
	return cost
}
