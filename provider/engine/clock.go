//go:build !schedules

package engine

import "time"

// sinceEpoch returns the time since epoch.
func sinceEpoch() time.Duration { return time.Since(epoch) }
