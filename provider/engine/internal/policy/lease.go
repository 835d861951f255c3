package policy

import "time"

// Leased reports whether goroutines that poll a loop hold its lease at the time now. polled is when
// the last of LeasePolls or more consecutive Polls began or ended. It is 0 if there were fewer
// since a goroutine was last about to sleep.
func Leased(polled, now time.Duration) bool { return polled != 0 && now-polled < LeaseTime }

// Polls returns how many polls a poll of some streams counts as if it has moved so many bytes.
// After SomeMost of them, a program polls all streams: that is a Poll of the poller, which renews
// the lease. So BudgetLong bytes renew it, too, which may take as long as hundreds of polls that
// find nothing.
func Polls(moved int) uint64 { return 1 + uint64(moved/(BudgetLong/SomeMost)) }
