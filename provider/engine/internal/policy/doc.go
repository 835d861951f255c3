// Package policy decides when the engine does things, in pure functions: they take counts and
// times, and return decisions. Nothing here has a lock, a socket or a clock. Times are relative to
// an epoch of the caller's. TestTraces of package engine feeds it recorded programs and checks its
// decisions.
//
// # Deferral of posts
//
// Each post that transmits is a system call, and over loopback a packet of its own; a short message
// costs a small part of that. A program that keeps a number of work requests outstanding posts as
// many again as have completed, most often one by one. So a post may be deferred until the next
// ones, and the last of these transmits all. In the same way a driver of an RNIC could ring the
// doorbell only for the last of them.
//
// A post is deferred only for a program in the middle of a run. Such a program has taken
// completions less than [RunTime] ago, and has not found its CQ empty twice since. (A program that
// takes all completions, finds the CQ empty, and then posts, finds it empty once.)
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
// The posts expected are as many signalled work requests as have completed and not been posted
// again; and as many posts as the program made before it took completions, because some programs
// have few of their work requests signalled. While a QP is late, or its program is in no run, each
// post is transmitted in the call that posts it.
//
// # Who serves a stream
//
// Each event loop of a device has one epoll instance and one progress goroutine. A goroutine that
// polls a loop serves its streams. The progress goroutine serves the streams of a program that
// sleeps, or that is the target of one-sided operations and does not know of them. Beside a program
// that polls, it would take a CPU from the program or from the peer, and serve what the program
// would have served. So a program that polls has a lease ([Leased]), for as long as it goes on:
//
//	                 LeasePolls Polls in a row            each Poll, as it begins and as it ends
//	progress goroutine -----------------------> program ------------------------+
//	        ^                                    |  |  ^                        |
//	        |      LeaseTime over since the last |  |  +------------------------+
//	        +------------------------------------+  |
//	        |      a CQ is armed, or a goroutine    |
//	        +------ is about to sleep --------------+
//
// A Poll asks all streams of the loop; the last polls of a program whose CQ is armed, and which is
// about to sleep, do not count. A program with few QPs polls their streams, and all streams after
// as many polls or bytes as [Polls] says. A program keeps the lease even if it polls rarely because
// each of its Polls moves a MiB, or because it answers 64 messages after each. Its Polls are long,
// and the time between them is short. A program that pauses for LeaseTime, or that sleeps between
// events, has no lease.
//
// # How much at once
//
// A turn is what a stream does before other streams have their turns, and a budget is how much it
// may move in that turn. [BudgetOfPoll], [BudgetOfPost], [BudgetOfShort] and [BudgetOfLong] decide
// that, from how many streams there are and what is left. One call sends a [Batch]. Its size
// follows what the socket takes:
//
//	      full: twice what it took before            WholeBatches, one after the other
//	slow <------------------------------- usual -----------------------------------------> long
//	from BatchSlow on                     BatchOctets                                 BatchMost
//	----------------------------------------> <-------------------------------------------
//	  twice as much after each batch of that          taken in part (a full socket is slow)
//	  length, or WholeBatches
//
// [NotSent] bounds how many short records a socket may hold that TCP can't send yet, by the average
// length of the records.
//
// Short FPDUs cost more than their bytes, so a read takes fewer of them: a budget is divided by the
// cost of a byte in the reads before. [CostShift] has the logarithm of that cost.
//
//	             a read whose FPDUs were shorter, but not the end of a turn
//	       -----------------------------------------------------------------> the shift of
//	shift                                                                     those FPDUs
//	       -----------------------------------------------------------------> less by one, or
//	             a full read whose FPDUs were longer                          the FPDUs' shift
package policy
