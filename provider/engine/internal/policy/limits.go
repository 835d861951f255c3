package policy

import "time"

// The constants of tuning: all numbers of the engine that trade speed, memory or fairness, and
// could be others without breaking a protocol. Measured values are from docs/benchmarks/limits.md,
// or from the history of this repository.

// # Posts
//
// Not measured, where nothing else is said.
const (
	// RunTime is how long after a program has taken completions its posts may be deferred. A longer
	// time makes fewer calls, and late posts later. A program in a run posts within a few
	// microseconds.
	RunTime = 100 * time.Microsecond

	// WaitMost is how long a post is deferred. The next post or poll of the program notices that
	// the time is over. If the program makes neither, a timer does, at most one and a half times
	// WaitTimer later. Starting a timer wakes a thread, so it is started rarely: with a timer for
	// each deferral, a round trip between two ends that sleep took 1.3 times as long (measured).
	WaitMost  = 100 * time.Microsecond
	WaitTimer = 500 * time.Microsecond

	// LatePause is for how long a QP's posts are not deferred after time has ended two deferrals
	// within as long, because the program does other things between its posts. So at most two posts
	// in LatePause are deferred in vain.
	LatePause = time.Second

	// MostOctets is how many bytes are deferred at most, counted as in a budget, so at most 511
	// short posts. Measured with 1,000 QPs: 0.99, 1.12, 1.12 and 1.16 with 64, 128, 256 and 512
	// KiB.
	MostOctets = 256 << 10

	// CopyMost is the length up to which payload is copied next to its header, because that is
	// cheaper than an entry of the vector on either side: 0.04 us with its region and its CRC.
	CopyMost = 1 << 10

	// CopyFPDU is the length up to which payload without CRC is copied next to its header, with one
	// entry of the vector for each Chunk; with CRC all payload is. An entry costs the kernel 75 ns.
	// Measured in C at MTU 1500: 0.58 of raw TCP with long entries, 0.40 with two for each FPDU; at
	// 9000 0.65 and 0.60, less than the copy costs.
	CopyFPDU = 4 << 10
)

// # Who serves a stream
//
// Not measured, where nothing else is said.
const (
	// Few is how many streams are asked one by one, with a call for each: the QPs of a CQ by its
	// poller, and by epoll the streams that wait for a long turn, of which epoll must be informed
	// when they wait elsewhere. For more, one call that asks which of them have something is
	// cheaper.
	Few = 8

	// Round is how many streams a Poll serves: at most 64, because a round has a bit for each.
	// Measured: 16 instead of 64 gained 1.00 (0.45 to 1.59) with 1,000 QPs.
	Round = 64

	// SomeMost is how many completions may be taken, and how many polls of some streams made,
	// before all streams are polled.
	SomeMost = 64

	// LeasePolls is how many consecutive Polls, with no goroutine about to sleep in between, begin
	// a lease. A program that sleeps until an event makes one or two. Measured with 64: ends that
	// poll before they sleep had 1.74 (0.81 to 2.39) of the round trip, because the lease came
	// late.
	LeasePolls = 4

	// LeaseTime is how long a lease lasts after a Poll, and how often the progress goroutine checks
	// whether a program still holds one (Leased). It is longer than a program takes to handle a
	// Poll of Round streams. A longer time costs peers time when the program stops, and a shorter
	// one costs the program a CPU.
	LeaseTime = time.Millisecond

	// BusyWait is the default of Options.BusyWait, for how long a wait begins with polling. It
	// trades CPU time for the 20 to 100 us that waking takes. Measured: with 50 us, streams of
	// rsocket moved half.
	BusyWait = 250 * time.Microsecond

	// VainMost is how often polling in vain doubles the number of short waits before the next
	// polling: to 32. Measured: a round trip on one CPU takes 31 us with it, 200 without.
	VainMost = 6

	// NetpollEvery is how long a goroutine that waits in Go's netpoller waits at most because
	// others poll. Measured: round trips of a net.Conn beside them 0.02 ms, and 6.9 without.
	NetpollEvery = 200 * time.Microsecond

	// MostLoops is the largest default number of progress goroutines of a device. A poll of all
	// streams of a device asks each loop. Nothing was measured on more than two CPUs.
	MostLoops = 16

	// StepsAtOnce is how many connections that come or go take a step at a time. The others are not
	// runnable then, so any goroutine of the process waits only for these few.
	StepsAtOnce = 2
)

// # How much at once
//
// Budgets are in bytes (see CostShift): a larger budget is cheaper for each byte, and makes other
// streams wait longer. Not measured, where nothing else is said.
const (
	// BudgetSole is the budget of a stream that is the only one of the CQ that the program polls,
	// both for received bytes and for posts. BatchMost is the most that one call sends where the
	// socket takes everything and there is no CRC: see BatchOctets. Measured: Writes of 1 MiB have
	// 1.09 of what they have with 256 KiB.
	BudgetSole = 1 << 20
	BatchMost  = 1 << 20

	// BudgetMost is the budget of a post, so that a message of 1 MiB and earlier posts are sent at
	// once.
	BudgetMost = BudgetSole + BudgetSole/4

	// BudgetLong is what one long turn may use, and what all long turns of a round may use
	// together, about 0.1 ms; the last may exceed it by a quarter. Measured: long turns of 1 MiB
	// had 1.23 with Reads on 1,000 QPs, and others would wait for four times as long.
	BudgetLong = 256 << 10

	// ReadMost is what a read takes beyond the rest of an FPDU whose length is known. Measured: 128
	// KiB had 0.80 with Writes of 64 KiB.
	ReadMost = 256 << 10

	// BatchOctets is what one call usually sends, and the most that it sends of copies. It is also
	// the length of its records where the path has long segments, and what goes to an object at
	// once. Longer ones are hardly cheaper for each byte.
	BatchOctets = 256 << 10

	// BudgetAllShort is what the short turns of a round may use together: about 0.2 ms.
	BudgetAllShort = 2 * BudgetLong

	// BudgetOne is the budget of one of several streams that a poller reads directly, and the most
	// that one of the short turns of a round uses. Measured against rules by the number of QPs,
	// which it replaced: 0.99 (0.84 to 1.11) with 4 QPs.
	BudgetOne = 128 << 10

	// BudgetLeast is the budget of a stream that is closed at once, and of overdue posts: the
	// longest FPDU.
	BudgetLeast = 64 << 10

	// BudgetEnd is the budget of a stream that has just ended, in addition to the turn in which it
	// ended: enough to see the FIN of a peer that sends nothing more. A read of less may be the end
	// of a turn (see CostShift.Spent).
	BudgetEnd = 4 << 10

	// BatchLeast is what a batch may have when little is left of a budget. BatchSlow is the same
	// for a socket that takes very little.
	BatchLeast = 16 << 10
	BatchSlow  = 8 << 10

	// WholeBatches is how many consecutive batches a socket must take whole before it gets
	// BatchMost.
	WholeBatches = 64

	// BatchFPDUs is how many FPDUs, and entries of its vector, a batch has. It uses half as many
	// regions at a time, and one call sends half as many records. It trades memory of a batch,
	// about 80 KiB, for fewer calls.
	BatchFPDUs = 512

	// FPDUCost, RecordCost and EndCost are what an FPDU, a record, and the end of a stream with all
	// that follows count as, in addition to their bytes. Measured: 50 to 80 ns, 600 to 850 ns in
	// the engine with 2,300 ns in all (BenchmarkReceived, BenchmarkSent), 40 us.
	FPDUCost   = 512
	RecordCost = 8 << 10
	EndCost    = 128 << 10

	// CallCost is the least that a turn costs: the cost of calling the handler.
	CallCost = 1 << 10

	// ReadLeast is what a read may always take. ReadAhead is what it takes beyond the rest of the
	// last FPDU of a turn: the header of the next one.
	ReadLeast = 1 << 10
	ReadAhead = 512

	// RecordSegment is the longest segment on connections with CRC, where a link like loopback has
	// longer ones: a multiple of four with and without time stamps, two of which are one packet.
	// Measured: one QP without it 0.92 with 64 KiB, 1,000 QPs 1.05 to 1.12.
	RecordSegment = 32_576

	// NotSentRecords is about how many records a socket may hold that TCP can't send yet. Their
	// average length decides the limit, and there is none above NotSentMost. Records of their own
	// cost 2 to 3 us each, in the call in which acknowledgements come. Measured: calls of 12 ms
	// without.
	NotSentRecords = 64
	NotSentMost    = 256 << 10
)

// # Memory
//
// Not measured, where nothing else is said.
const (
	// Chunk is the length of a pooled buffer, into which the longest FPDU with its markers fits. It
	// is also the length of a piece of an object, and what a stream must move for a time limit to
	// begin anew.
	Chunk = 64 << 10

	// Kept is how many objects a list keeps for the next use. It leaves more to the garbage
	// collector.
	Kept = 64

	// ContextsKept is how many streams of a device keep the receive context between turns, of 512
	// KiB each, because a part of an FPDU has come. Beyond that the part is moved out.
	ContextsKept = 32

	// PartsMost is what the long parts of a device may have together. Beyond that, streams that do
	// not finish their FPDU are ended, first those of the peers that have most. It bounds what
	// peers can make a device hold (docs/bounds.md).
	PartsMost = 64 << 20

	// AheadMost is how many pieces of objects all streams of a device may have, beyond the one that
	// each needs next: 16 MiB. Measured: four pieces for a stream make Reads of an object that
	// takes 1 ms for each 3 times as fast as one.
	AheadMost = 256

	// ProbeMost is the longest region whose pages the kernel is asked to fault in when it is
	// registered. The pages of a longer one may be meant to stay unused.
	ProbeMost = 1 << 20

	// LocalReceiveBuffer and LocalSendBuffer are the buffers of connections within this host. The
	// kernel lets them grow to 32 and 4 MiB, and bytes that wait there have left the caches when
	// they are read. Measured: 1.16 to 1.32 with 1,000 and 64 QPs, 0.97 to 1.01 with one.
	LocalReceiveBuffer = 2 << 20
	LocalSendBuffer    = 256 << 10

	// StallPeriod is the longest time between two checks of stalled streams, and how long one keeps
	// more memory than it needs. There are at least ChecksPerLimit of them in a time limit of a
	// peer, so no limit is exceeded by much.
	StallPeriod    = time.Second
	ChecksPerLimit = 8
)
