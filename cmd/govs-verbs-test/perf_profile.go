package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
)

// profile starts the requested profiles, and returns a function that ends and writes them.
func (f *perfFlags) profile() (stop func() error, err error) {
	var cpu, mem *os.File
	discard := func() { // without errors, because the files are not kept
		for _, file := range []*os.File{cpu, mem} {
			if file != nil {
				_ = file.Close()
			}
		}
	}
	if f.CPUProfile != "" {
		if cpu, err = os.Create(f.CPUProfile); err != nil {
			return nil, unable(fmt.Errorf("--cpuprofile: %w", err))
		}
	}
	if f.MemProfile != "" {
		if mem, err = os.Create(f.MemProfile); err != nil {
			discard()
			return nil, unable(fmt.Errorf("--memprofile: %w", err))
		}
		runtime.MemProfileRate = 1 // every allocation
	}
	if cpu != nil {
		if err := pprof.StartCPUProfile(cpu); err != nil {
			discard()
			return nil, err
		}
	}
	return func() error {
		var errs []error
		if cpu != nil {
			pprof.StopCPUProfile()
			errs = append(errs, cpu.Close())
		}
		if mem != nil {
			errs = append(errs, pprof.Lookup("allocs").WriteTo(mem, 0), mem.Close())
		}
		return errors.Join(errs...)
	}, nil
}
