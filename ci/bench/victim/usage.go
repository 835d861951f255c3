package victim

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is how much CPU time a process has had, and how long it has waited for a CPU.
type Usage struct {
	Time   time.Duration // in which it was used
	CPU    time.Duration
	Waited time.Duration // of all threads, ready to run and without a CPU
}

func (u Usage) since(before Usage) Usage {
	return Usage{u.Time - before.Time, u.CPU - before.CPU, u.Waited - before.Waited}
}

// usage returns the usage of this process so far. Time is monotonic's.
func usage() (u Usage, err error) {
	u.Time = monotonic()
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return u, err
	}
	u.CPU = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return u, err
	}
	for _, t := range tasks {
		text, err := os.ReadFile("/proc/self/task/" + t.Name() + "/schedstat")
		if err != nil {
			continue // the thread has ended, or the kernel has no such file and Waited stays 0
		}
		var ran, waited, slices int64
		if _, err := fmt.Fscan(strings.NewReader(string(text)), &ran, &waited, &slices); err == nil {
			u.Waited += time.Duration(waited)
		}
	}
	return u, nil
}

// monotonic returns a time that all processes of the machine share.
func monotonic() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // can't fail: the arguments are right
	return time.Duration(t.Nano())
}
