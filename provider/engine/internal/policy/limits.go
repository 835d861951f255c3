package policy

import "time"

// The constants of tuning, what each trades, and what was measured.
const (
	// RunTime is how long after a program has taken completions a post of it may wait for others. A
	// program in a run posts within a few microseconds.
	RunTime = 100 * time.Microsecond

	// WaitMost is how long a post waits. The next post or poll of the program notices that it is
	// over; where the program makes neither, a timer does, after at most one and a half times
	// WaitTimer.
	WaitMost  = 100 * time.Microsecond
	WaitTimer = 500 * time.Microsecond

	// LatePause is for how long a QP's posts don't wait after time has ended the wait of some
	// twice within as long: the program does other things between its posts. It bounds what waits
	// in vain to two posts in LatePause.
	LatePause = time.Second

	// MostOctets is how much waits at most, counted as in a turn, so that short posts are at most
	// 511. That much makes a call which is about as cheap for an octet as longer ones.
	MostOctets = 256 << 10
)

// How much at once, in octets of a turn (see Dense): longer is cheaper for an octet, and other
// streams wait for longer.
const (
	// TurnMost is the turn of a post: what the program itself wants to send, a message of
	// 1 MiB for instance, goes out at once. Not measured.
	TurnMost = 5 << 18

	// TurnSole is the turn of a stream that is the only one of the CQ that the program polls: of
	// what has come, and of what the program has posted. Over loopback, an octet of long messages
	// takes the sender a tenth less time if 1 MiB goes out with one call.
	TurnSole = 1 << 20

	// TurnOne is the turn of a stream that is one of several that a poller reads directly. What was
	// measured is in docs/benchmarks/limits.md.
	TurnOne = 128 << 10

	// TurnLeast is the turn of a stream that is closed at once, and of posts that have waited. Not
	// measured.
	TurnLeast = 64 << 10

	// TurnEnd is the turn of a stream that has just ended, in addition to the turn in which it
	// ended. Not measured; it is enough to see the FIN of a peer that sends nothing more.
	TurnEnd = 4 << 10

	// BatchLeast is what a batch may have when little is left of a turn. Not measured.
	BatchLeast = 16 << 10

	// FPDUCost and RecordCost are what an FPDU and a record count as, in addition to their octets:
	// 50 to 80 ns, and 600 to 850 ns in the engine with 2,300 ns in all (BenchmarkReceived,
	// BenchmarkSent). EndCost is what it costs to end a stream, with all that follows: 40 us.
	FPDUCost   = 512
	RecordCost = 8 << 10
	EndCost    = 128 << 10

	// ReadMost is how much one read takes, at most, beyond the rest of an FPDU whose length is
	// known, and ReadLeast what it may take in any case. ReadLeast was not measured.
	ReadMost  = 256 << 10
	ReadLeast = 1 << 10

	// ReadAhead is read beyond the rest of the last FPDU of a turn: the header of the next one.
	ReadAhead = 512

	// RestMost is how long a read is, at most, that may be no more than the end of a turn (see
	// Dense.Spent). Not measured.
	RestMost = 4 << 10

	// DenseFirst is Dense before anything was received: FPDUs without payload.
	DenseFirst = 5
)
