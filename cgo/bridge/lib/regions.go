//go:build linux && cgo

package main

// #include "faults.h"
import "C"

import "sync"

// regions manages govs_regions, the table in which the fault handler looks up the program's
// registered memory.
type regions struct {
	mu    sync.Mutex
	at    map[[2]uint64][]C.int // places by region; a region registered several times has several
	free  []C.int
	taken C.int // places from here on were never used
}

// add gives the region of length bytes at addr a place. It returns false if the table is full.
func (r *regions) add(addr, length uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var i C.int
	switch n := len(r.free); {
	case n > 0:
		i, r.free = r.free[n-1], r.free[:n-1]
	case r.taken < places:
		i = r.taken
		r.taken++
	default:
		return false
	}
	if r.at == nil {
		r.at = make(map[[2]uint64][]C.int)
	}
	key := [2]uint64{addr, length}
	r.at[key] = append(r.at[key], i)
	C.govs_set_region(i, C.uintptr_t(addr), C.uintptr_t(addr+length))
	return true
}

// remove undoes one add.
func (r *regions) remove(addr, length uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := [2]uint64{addr, length}
	list := r.at[key]
	if len(list) == 0 {
		return
	}
	i := list[len(list)-1]
	if r.at[key] = list[:len(list)-1]; len(list) == 1 {
		delete(r.at, key)
	}
	r.free = append(r.free, i)
	C.govs_set_region(i, 0, 0)
	C.govs_unreserve()
}

const places = C.govs_region_count

// placed returns the start addresses of the regions with places, in order of the places.
func placed() (starts []uint64) {
	for i := range C.int(places) {
		if start := uint64(C.govs_region_start(i)); start != 0 {
			starts = append(starts, start)
		}
	}
	return starts
}

//export govs_bridge_replaced
func govs_bridge_replaced(start, end C.uint64_t) C.long {
	if err := self.bridge.EndMemory(uint64(start), uint64(end)); err != nil {
		return C.long(negative(err))
	}
	return 0
}

// Release implements bridge.Program.
func (p *process) Release(addr, length uint64) { p.regions.remove(addr, length) }
