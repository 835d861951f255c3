package policy

import "time"

// Leased reports whether goroutines that poll a lane hold its lease at the time now, where the last
// of LeasePolls or more Polls in a row began or ended at the time polled. Zero is that there are
// not so many since a goroutine was last about to sleep.
func Leased(polled, now time.Duration) bool { return polled != 0 && now-polled < LeaseTime }

// Looks is how many looks one at some streams counts as that has moved so many bytes. After
// SomeMost of them all streams are looked at: that is a Poll, which renews the lease. So it is
// renewed after TurnLong bytes, too, which may take as long as hundreds of looks that find
// nothing.
func Looks(moved int) uint64 { return 1 + uint64(moved/(TurnLong/SomeMost)) }
