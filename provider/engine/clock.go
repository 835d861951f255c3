package engine

import (
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// epoch is the zero of all times that the engine measures.
var epoch = time.Now()

// sinceEpoch returns the time since epoch. While schedules are explored it stands still, so that
// what a schedule does to posts does not depend on how long its steps take.
func sinceEpoch() time.Duration {
	if sched.Explored {
		return time.Second
	}
	return time.Since(epoch)
}

// hasPassed reports whether limit has passed since then. A limit of 0 or less never passes.
func hasPassed(now, then time.Time, limit time.Duration) bool {
	return limit > 0 && now.Sub(then) >= limit
}
