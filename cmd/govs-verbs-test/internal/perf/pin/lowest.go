package pin

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Lowest gives every thread of this process, and thereby those to come, the scheduler's
// lowest policy, SCHED_IDLE: the process runs when no other wants the CPU. An unprivileged
// process may not be able to undo that.
func Lowest() error {
	attr := unix.SchedAttr{Policy: unix.SCHED_IDLE}
	return eachThread(func(tid int) error {
		if err := unix.SchedSetAttr(tid, &attr, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("giving thread %d the policy SCHED_IDLE: %w", tid, err)
		}
		return nil
	})
}
