package load

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A Meter measures the cost of a stretch of a run for the process.
type Meter struct {
	began     time.Time
	mallocs   uint64
	user, sys time.Duration
}

// StartMeter begins a stretch. It stops the world briefly.
func StartMeter() Meter {
	var m Meter
	m.mallocs = mallocs()
	m.user, m.sys = cpuTime()
	m.began = time.Now()
	return m
}

// Stop ends the stretch, which had ops operations. The time ends when Stop is called.
func (m Meter) Stop(ops uint64) (time.Duration, Usage) {
	elapsed := time.Since(m.began)
	user, sys := cpuTime()
	return elapsed, Usage{
		AllocsPerOp: float64(mallocs()-m.mallocs) / float64(max(ops, 1)),
		User:        user - m.user,
		Sys:         sys - m.sys,
	}
}

func mallocs() uint64 {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.Mallocs
}

func cpuTime() (user, sys time.Duration) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, 0 // impossible, because the arguments are valid
	}
	return time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())
}
