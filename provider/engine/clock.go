//go:build !schedules

package engine

import "time"

// sinceEpoch is the time.
func sinceEpoch() time.Duration { return time.Since(epoch) }
