// Package policy decides when the engine does things, in pure functions: they take counts and
// times, and return decisions. Nothing here has a lock, a socket or a clock. Times are those since
// an epoch of the caller's. TestTraces of package engine plays recorded programs to it, and says
// what it decides.
//
// # Deferral of posts
//
// Each post that transmits is a system call, and over loopback a packet of its own; a short message
// costs a small part of that. A program that keeps a number of work requests outstanding posts as
// many again as have completed, most often one by one. So a post may wait for the next ones, and
// the last of these transmits all. The driver of an RNIC would ring the doorbell for the last of
// them only.
//
// A post waits only for a program in the middle of a run: one that has taken completions less than
// [RunTime] ago, and has not found its CQ empty twice since. (Once is a program that takes all,
// finds the CQ empty, and posts then.)
//
//	        completions taken            twice empty, or RunTime over
//	idle ------------------------> run --------------------------------> idle
//	                              |  ^
//	a post, others are expected   |  |  the last that is expected, MostOctets,
//	                              v  |  an empty or an armed CQ, a full queue, WaitMost over
//	                             waits
//	                              |
//	WaitMost over, twice within   v
//	LatePause                    late --- LatePause over ---> idle
//
// Expected are as many signalled work requests as have completed, without those that were posted
// again; and as many posts as the program made before it took completions, because some programs
// have few of their work requests reported. While a QP is late, or its program is in no run, each
// post leaves in the call that posts it.
//
// # Who serves a stream
//
// Each lane of a device has one epoll instance and one progress goroutine. Whoever polls a lane
// serves its streams. The progress goroutine serves those of a program that sleeps, or is the
// target of one-sided operations and knows nothing of them; beside a program that polls it would
// take a CPU from the program or from the peer, and serve what the program would have served. So a
// program that polls has a lease ([Leased]), for as long as it goes on:
//
//	                 LeasePolls Polls in a row            each Poll, as it begins and as it ends
//	progress goroutine -----------------------> program ------------------------+
//	        ^                                    |  |  ^                        |
//	        |      LeaseTime over since the last |  |  +------------------------+
//	        +------------------------------------+  |
//	        |      a CQ is armed, or a goroutine    |
//	        +------ is about to sleep --------------+
//
// A Poll is a look at all streams of the lane, but for the looks of a program whose CQ is armed,
// which is about to sleep. A program with few QPs looks at their streams, and at all after as many
// looks or bytes as [Looks] says. One that polls rarely, because each Poll moves a MiB or because
// it answers 64 messages after each, keeps the lease: its Polls are long, and the time between them
// is short. One that pauses for LeaseTime, or that sleeps between events, has none.
//
// # How much at once
//
// A turn is what a stream moves before others have theirs. [TurnOfLook], [TurnOfPost],
// [TurnOfShort] and [TurnOfLong] say how long it is, from how many streams there are and what is
// left. What goes out in one call is a [Batch]. It follows what the socket takes:
//
//	      full: twice what it took before            WholeBatches, one after the other
//	slow <------------------------------- usual -----------------------------------------> long
//	from BatchSlow on                     BatchOctets                                 BatchMost
//	----------------------------------------> <-------------------------------------------
//	  twice as much after each batch of that          taken in part (a full socket is slow)
//	  length, or WholeBatches
//
// How many short records a socket may hold that TCP can't send yet is bounded by [Unsent], from
// how long records are on average.
//
// Short FPDUs cost more than their bytes, so a read takes fewer of them: a turn is divided by what
// a byte has cost in the reads before. [Dense] has the logarithm of that.
//
//	             a read whose FPDUs were shorter, but not the end of a turn
//	       -----------------------------------------------------------------> as dense as
//	dense                                                                     those FPDUs
//	       -----------------------------------------------------------------> less by one, or as
//	             a full read whose FPDUs were longer                          dense as the FPDUs
package policy
