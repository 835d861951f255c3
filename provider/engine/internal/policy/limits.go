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
