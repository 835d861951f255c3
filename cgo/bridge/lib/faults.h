#ifndef GOVS_FAULTS_H
#define GOVS_FAULTS_H

#include <stdatomic.h>
#include <stdint.h>

// A region is memory that the program has registered, from start to before end. Both are 0 where there is none.
struct govs_region {
	_Atomic uintptr_t start, end;
};

enum { govs_region_count = 1 << 20 }; // as many as the device has, or more
extern struct govs_region govs_regions[govs_region_count];

// govs_watch_faults takes SIGSEGV from the runtime, which gets what is not for a region.
void govs_watch_faults(void);

extern _Atomic int govs_region_used; // no place from here on was used

// govs_set_region changes a place. The caller has a lock.
void govs_set_region(int i, uintptr_t start, uintptr_t end);

// govs_overlap reports whether a region has bytes from start to before end.
int govs_overlap(uintptr_t start, uintptr_t end);

// govs_unreserve unmaps what govs_reserve has reserved for regions that are gone.
void govs_unreserve(void);

static inline uintptr_t govs_region_start(int i) { return atomic_load(&govs_regions[i].start); }

#endif
