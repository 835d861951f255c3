//go:build schedules

package engine

import "time"

// sinceEpoch stands still, so that what a schedule does to posts does not depend on how long its
// steps take.
func sinceEpoch() time.Duration { return time.Second }
