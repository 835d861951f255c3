package engine

import (
	"math"

	"github.com/govs-rdma/govs/provider/engine/internal/turns"
	"github.com/govs-rdma/govs/provider/internal/cpuvendor"
)

// A turn is what one stream moves, in one direction, before others have their turns. What
// is left waits until the next Poll: in the socket, or in the send queue and among the
// peer's Reads. Nothing else has to be remembered: what is unread keeps the socket readable, and
// a stream that has more to send has the poller watch for room, which the socket already
// has (see putOff).
//
// Package turns decides how long the turns are that a Poll gives to streams. A turn is
// counted in octets, of which each takes 0.1 ns in the engine and 0.35 ns with what the
// kernel does over loopback, both for the sender and the receiver. Other work counts as the
// octets that take as long: an FPDU takes 50 to 80 ns in addition to its octets, and a
// record that TCP must not put together with others takes 600 to 850 ns in the engine
// (BenchmarkReceived, BenchmarkSent) and 2,300 ns with the kernel's part.
const (
	// turnMost is the turn of a post: what the program itself wants to send, a message of
	// 1 MiB for instance, goes out at once.
	turnMost = 5 << 18

	// turnPolled is what the turns of a Poll may have together of what the program has posted on
	// the QPs of the CQ that it polls, if those are at most fewStreams: one message of 1 MiB, most
	// often. See sendTurn.
	turnPolled = 1 << 20

	// turnLook is what the turns of a Poll have together on the streams that a poller reads
	// directly, if those are at most fewStreams. A device has at most loneQPs for the only stream
	// of a CQ to have it, because a program may poll one CQ for each of many, and at most fewQPs
	// for several of a CQ.
	turnLook   = 512 << 10
	fewStreams = 4
	loneQPs    = 4
	fewQPs     = 8

	// turnWhole is the shortest turn that one read may take as a whole on AMD CPUs, readLook at
	// most, from a stream whose FPDUs are long. The read may end within an FPDU, whose rest is read
	// in addition. On one such CPU 2 to 64 QPs have 1.02 to 1.15 of the bandwidth; on one of Intel,
	// 64 QPs with messages of 1 MiB had less with reads of 256 KiB (docs/benchmarks).
	turnWhole = 128 << 10

	// turnLeast is the turn of a stream that is one of several that a poller reads
	// directly, or that is closed at once.
	turnLeast = 64 << 10

	// turnEnd is the turn of a stream that has just ended, in addition to the turn in which
	// it ended: enough to see the FIN of a peer that sends nothing more.
	turnEnd = 4 << 10

	// batchLeast is what a batch may have when little is left of a turn.
	batchLeast = 16 << 10

	fpduCost   = 512
	recordCost = 8 << 10

	// endCost is what it costs to end a stream, with all that follows from it: 40 us.
	endCost = 128 << 10

	// readMost is how much one read takes, at most, beyond the rest of an FPDU whose
	// length is known, and readLeast what it may take in any case.
	readMost  = 128 << 10
	readLeast = 1 << 10

	// readAhead is read beyond the rest of the last FPDU of a turn: the header of the next one.
	readAhead = 512

	// restMost is how long a read is, at most, that may be no more than the end of a turn (see
	// rxState.spent).
	restMost = 4 << 10

	// readLook is readMost of reads that take a turn as a whole: the kernel hands over that much
	// in one read faster than in several, for each of which the sender gets an acknowledgement. It
	// does not hold on devices with objects that store: what a read takes is held until they have
	// stored it.
	readLook = 480 << 10

	// longsMost is how many reads of longRead octets or more have to bring long FPDUs before
	// one of a whole turn: that short ones follow shows only when the read is over, and took up to
	// 1.4 ms then (docs/bounds.md).
	longsMost = 8
	longRead  = 64 << 10

	// denseFirst is what rxState.dense is before anything was received: FPDUs without
	// payload.
	denseFirst = 5
)

// turnWholeHere is turnWhole on this machine.
func turnWholeHere() int {
	if cpuvendor.AMD {
		return turnWhole
	}
	return turnLook
}

// wholeTurn is how much of a turn has to be left for one read to take it, from a stream whose FPDUs
// are long.
func (d *device) wholeTurn() int {
	if d.stores.Load() {
		return math.MaxInt
	}
	return d.turnWhole
}

// turnOfLook is the turn of one of n streams that a poller reads directly.
func (d *device) turnOfLook(n int) int {
	few := n == 1 && d.qps.n.Load() <= loneQPs || n > 1 && d.fewPolled(n)
	if few && !d.stores.Load() {
		return turnLook / n
	}
	return max(turnLeast, turns.Long/max(n, 1))
}

// fewPolled reports whether the n streams that a poller reads directly share turnPolled.
func (d *device) fewPolled(n int) bool {
	return n == 1 || n <= fewStreams && d.qps.n.Load() <= fewQPs
}

// sendTurn returns how much of what there is to send goes out now, where other streams leave
// turn for it, and whether the stream shares turnPolled with others. txMu is held.
//
// A program that polls for one stream, and has posted more for it than the last turn, gets
// turnPolled once in each of its Polls: over loopback, an octet of long messages takes the sender a
// tenth less time if 1 MiB goes out with one call. The streams of a program that polls for a few
// share it, so that fewer of its Polls look in vain for what may have arrived: that is a system
// call for each of them, which takes a microsecond in some virtual machines. What the peer's Reads
// ask for gets it only where no other QP of the device has to wait for longer because of that peer,
// for the sake of fewer Polls: with CRC, a call still has 256 KiB of it. A stream without CRC to a
// peer within the host that lets much wait in its socket never gets it: that leaves the caches, and
// such turns made it slower (docs/benchmarks).
func (s *stream) sendTurn(turn int) (most int, shared bool) {
	if s.polled.Load() == 0 {
		return turn, false
	}
	n := int(s.polled.Swap(0))
	if n == 0 || !s.longTurns || s.inbound.Front() != nil && s.dev.qps.n.Load() > 1 {
		return turn, false
	}
	return max(turn, turnPolled/n), n > 1
}

// sharedCost is what a turn that has used so much of turnPolled counts in its round: together the
// turns that share turnPolled count as one long turn, so that all of them have theirs in a round.
func sharedCost(used int) int { return used / (turnPolled / turns.Long) }

// putOff ends a turn of the transmit side if that has more to send, and has the poller
// begin the next turn. The poller does so at its next Poll, because the socket has taken
// everything so far. putOff reports false if nothing is left. The batch is empty, and
// other streams may have it meanwhile.
//
// Posts meanwhile leave sending to the poller, as with a socket that is full. The progress
// goroutine doesn't park while a socket that it watches has room, and a goroutine that
// spins asks the poller when one of its streams waits for room.
func (s *stream) putOff() bool {
	t := &s.tx
	if t.fault != nil || t.fetching() || !s.unsent() {
		return false
	}
	s.putBatch()
	s.wantWrite(true)
	s.watch() // TCP may have room, but not report it before the peer takes more
	return true
}

// unsent reports whether there are messages of which something is not built yet.
func (s *stream) unsent() bool {
	t := &s.tx
	return t.task != taskNone || t.rtr != 0 || t.next != s.q.sq.tail.Load() || s.inbound.Front() != nil
}

// putBatch gives back a batch that has nothing to send, unless the stream keeps it.
func (s *stream) putBatch() {
	t := &s.tx
	if t.b != nil && !s.keeps.Load() {
		s.dev.prog.batches.Put(t.b)
		t.b = nil
	}
}
