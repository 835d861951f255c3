// Package pin pins processes to CPUs.
package pin

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Self pins every thread of this process to one CPU, and therefore later ones too. It does not
// change GOMAXPROCS.
func Self(cpu int) error {
	set, err := only(cpu)
	if err != nil {
		return err
	}
	// A thread that is not pinned yet may start another, so the list is read until it contains no
	// new one.
	done := make(map[int]bool)
	for {
		tids, err := threads()
		if err != nil {
			return err
		}
		before := len(done)
		for _, tid := range tids {
			if done[tid] {
				continue
			}
			if err := unix.SchedSetaffinity(tid, set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("pinning to CPU %d: %w", cpu, err)
			}
			done[tid] = true
		}
		if len(done) == before {
			return nil
		}
	}
}

// CPUs returns the CPUs on which the calling thread may run, in ascending order. They are also the
// process's, unless Self or another program has changed that.
func CPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("reading the CPU affinity: %w", err)
	}
	var list []int
	for cpu := range len(set) * strconv.IntSize {
		if set.IsSet(cpu) {
			list = append(list, cpu)
		}
	}
	return list, nil
}

// only returns the set of one CPU.
func only(cpu int) (*unix.CPUSet, error) {
	var set unix.CPUSet
	if cpu < 0 || cpu >= len(set)*strconv.IntSize {
		return nil, fmt.Errorf("there is no CPU %d", cpu)
	}
	set.Set(cpu)
	return &set, nil
}

// threads lists the threads of this process.
func threads() ([]int, error) {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil, err
	}
	tids := make([]int, len(entries))
	for i, e := range entries {
		if tids[i], err = strconv.Atoi(e.Name()); err != nil {
			return nil, err
		}
	}
	return tids, nil
}
