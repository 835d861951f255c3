//go:build linux && cgo

// A program may unmap what it has registered, while a peer writes there or its own Sends read from it. The kernel has
// pinned the pages; the engine would stop the process. What is missing is replaced by pages that nobody else sees, when
// the engine comes there.
#define _GNU_SOURCE
#include "faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

long govs_bridge_replaced(uint64_t start, uint64_t end); // of main.go

struct govs_region govs_regions[govs_region_count];
_Atomic int govs_region_used;

static struct sigaction runtime;
static uintptr_t low, high; // of this library
static uintptr_t page;

// here reports whether an address is in this library.
static int here(uintptr_t at) { return at >= low && at < high; }

static uintptr_t program_counter(const ucontext_t *context)
{
#if defined(__x86_64__)
	return (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
	return (uintptr_t)context->uc_mcontext.pc;
#else
	(void)context;
	return 0; // no fault is of this library
#endif
}

// How many regions have bytes in the ranges of 2 MiB of a number modulo chunks, so that programs with many regions
// unmap other memory without a look at each.
enum { chunk_shift = 21, chunks = 4096 };
static _Atomic int in_chunk[chunks];

// count adds by to the chunks of a range, and reports whether any had regions.
static int count(uintptr_t start, uintptr_t end, int by)
{
	int any = 0;
	for (uintptr_t at = start >> chunk_shift, n = 0; at <= (end - 1) >> chunk_shift && n < chunks; at++, n++)
		any |= by ? atomic_fetch_add(&in_chunk[at % chunks], by) : atomic_load(&in_chunk[at % chunks]);
	return any;
}

void govs_set_region(int i, uintptr_t start, uintptr_t end)
{
	struct govs_region *r = &govs_regions[i];
	uintptr_t was = atomic_load(&r->start);
	if (i >= atomic_load(&govs_region_used))
		atomic_store(&govs_region_used, i + 1);
	atomic_store(&r->start, 0); // so that no half of it counts
	if (was)
		count(was, atomic_load(&r->end), -1);
	if (start)
		count(start, end, 1);
	atomic_store(&r->end, end);
	atomic_store(&r->start, start);
}

int govs_overlap(uintptr_t start, uintptr_t end)
{
	if (start >= end || !count(start, end, 0))
		return 0;
	for (int i = 0, n = atomic_load(&govs_region_used); i < n; i++) {
		uintptr_t first = atomic_load(&govs_regions[i].start);
		if (first && first < end && start < atomic_load(&govs_regions[i].end))
			return 1;
	}
	return 0;
}

// What the program has unmapped of regions stays reserved, so that nothing that it maps later is there, where a peer
// writes. It is without rights: the program's own accesses fail.
static struct {
	_Atomic uintptr_t start, end; // both 0: nothing
	_Atomic int made;             // the pages have no rights, and whoever sets made to 0 may unmap them
} reserved[1024];
enum { reserved_count = sizeof reserved / sizeof *reserved };
static _Atomic int pieces; // that are in use, or soon are

// reserved_to returns up to where memory is reserved from at on, or 0.
static uintptr_t reserved_to(uintptr_t at)
{
	for (int i = 0; i < reserved_count; i++) {
		uintptr_t end = atomic_load(&reserved[i].end);
		if (at < end && at >= atomic_load(&reserved[i].start))
			return end;
	}
	return 0;
}

// govs_held reports whether a region has bytes from start to before end, or some of its pages are still reserved:
// another thread that has ended the region will unmap these, and must have done so before the program maps something
// there.
static int govs_held(uintptr_t start, uintptr_t end)
{
	if (govs_overlap(start, end))
		return 1;
	for (int i = 0; i < reserved_count && atomic_load(&pieces); i++) {
		uintptr_t first = atomic_load(&reserved[i].start), stop = atomic_load(&reserved[i].end);
		if (first && first < end && (start < stop || !stop)) // no end: just now
			return 1;
	}
	return 0;
}

static void give_place(int i)
{
	atomic_store(&reserved[i].start, 0);
	atomic_fetch_sub(&pieces, 1);
}

// unreserve unmaps what was reserved for regions that are gone. It looks again after it has set made back, because
// another thread that has ended a region meanwhile could not unmap then.
static void unreserve(int i)
{
	uintptr_t start, end;
	do {
		int made = 1;
		if (!atomic_compare_exchange_strong(&reserved[i].made, &made, 0))
			return;
		start = atomic_load(&reserved[i].start);
		end = atomic_load(&reserved[i].end);
		if (!govs_overlap(start, end)) {
			atomic_store(&reserved[i].end, 0); // before the program can map something there
			syscall(SYS_munmap, start, end - start);
			give_place(i);
			return;
		}
		atomic_store(&reserved[i].made, 1);
	} while (!govs_overlap(start, end));
}

void govs_unreserve(void)
{
	for (int i = 0; i < reserved_count && atomic_load(&pieces); i++)
		unreserve(i);
}

// find_part finds the first pages of one region in a range.
static int find_part(uintptr_t *start, uintptr_t *end)
{
	uintptr_t first = *end, stop = 0;
	for (int i = 0, n = atomic_load(&govs_region_used); i < n; i++) {
		uintptr_t from = atomic_load(&govs_regions[i].start);
		uintptr_t to = (atomic_load(&govs_regions[i].end) + page - 1) & ~(page - 1);
		if (!from || (from & ~(page - 1)) >= first || to <= *start)
			continue;
		first = (from & ~(page - 1)) > *start ? from & ~(page - 1) : *start;
		stop = to < *end ? to : *end;
	}
	*start = first;
	*end = stop;
	return stop != 0;
}

// keep reserves pages of a region. on_fault finds them before they lose their rights, because the engine may be writing
// there.
static long keep(uintptr_t start, uintptr_t end)
{
	atomic_fetch_add(&pieces, 1);
	for (int i = 0; i < reserved_count; i++) {
		uintptr_t none = 0;
		if (!atomic_compare_exchange_strong(&reserved[i].start, &none, start))
			continue;
		atomic_store(&reserved[i].end, end);
		if (syscall(SYS_mmap, start, end - start, PROT_NONE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == -1) {
			long failed = -errno;
			atomic_store(&reserved[i].end, 0);
			give_place(i);
			return failed;
		}
		atomic_store(&reserved[i].made, 1);
		unreserve(i); // the region may have gone since
		return 0;
	}
	atomic_fetch_sub(&pieces, 1);
	return -ENOMEM;
}

// reserved_from returns where memory is reserved first in a range, its end if none is.
static uintptr_t reserved_from(uintptr_t start, uintptr_t end)
{
	for (int i = 0; i < reserved_count; i++) {
		uintptr_t first = atomic_load(&reserved[i].start);
		if (first > start && first < end)
			end = first;
	}
	return end;
}

// govs_reserve takes the place of munmap for memory of regions: it reserves their pages, and unmaps the others, because
// with the region only its pages are unmapped. A huge page can't be divided (EINVAL): all of it is reserved. It returns
// 0 for other memory, and a negative errno. It may run in a signal handler.
static long govs_reserve(uintptr_t start, uintptr_t end)
{
	if (start & (page - 1) || !govs_overlap(start, end))
		return 0;
	int saved = errno;
	long failed = 0;
	while (start < end && !failed) {
		uintptr_t at = start, stop = end, already;
		if (!find_part(&at, &stop))
			at = stop = end;
		if (at > start && syscall(SYS_munmap, start, at - start) != 0)
			failed = -errno;
		else if (start = at, (already = reserved_to(at)))
			stop = already;
		else if (at < stop)
			failed = keep(at, stop);
		if (failed == -EINVAL)
			failed = keep(start, stop = reserved_from(start, end));
		start = stop;
	}
	errno = saved;
	return failed ? failed : 1;
}

// replaced ends the regions of a range, and all regions for which a piece in the range is reserved, because the piece
// is unmapped with them.
static long replaced(uintptr_t start, uintptr_t end)
{
	uintptr_t low = start, high = end;
	for (int i = 0; i < reserved_count; i++) {
		uintptr_t first = atomic_load(&reserved[i].start), stop = atomic_load(&reserved[i].end);
		if (!first || first >= end || stop <= start)
			continue;
		low = first < low ? first : low;
		high = stop > high ? stop : high;
	}
	return govs_bridge_replaced(low, high);
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)info->si_addr;
	uintptr_t want = at & ~(page - 1);
	int ours = here(program_counter(context)) && govs_overlap(at, at + 1);
	if (ours && info->si_code == SEGV_ACCERR && reserved_to(at)) {
		int saved = errno;
		long failed = syscall(SYS_mprotect, want, page, PROT_READ | PROT_WRITE);
		errno = saved;
		if (!failed)
			return;
	}
	if (ours && info->si_code == SEGV_MAPERR) {
		int saved = errno;
		long got = syscall(SYS_mmap, want, page, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		int there = got == (long)want || errno == EEXIST; // somebody else was quicker
		errno = saved;
		if (there)
			return;
	}
	runtime.sa_sigaction(sig, info, context);
}

static int find(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)size;
	(void)unused;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + p->p_vaddr, self = (uintptr_t)on_fault;
		if (p->p_type == PT_LOAD && p->p_flags & PF_X && self >= start && self < start + p->p_memsz) {
			low = start;
			high = start + p->p_memsz;
			return 1;
		}
	}
	return 0;
}

void govs_watch_faults(void)
{
	if (page)
		return; // this is another start, after one that has failed
	page = (uintptr_t)sysconf(_SC_PAGESIZE);
	// The functions of mappings.c in libgovs-preload.so, which a program of tests does not have.
	void (*watch)(void *, void *, void *) = (void (*)(void *, void *, void *))dlsym(RTLD_DEFAULT, "govs_watch_mappings");
	if (watch)
		watch((void *)govs_held, (void *)govs_reserve, (void *)replaced);
	if (!dl_iterate_phdr(find, NULL) || sigaction(SIGSEGV, NULL, &runtime) != 0 || !(runtime.sa_flags & SA_SIGINFO))
		return;
	struct sigaction act = runtime;
	act.sa_sigaction = on_fault;
	sigaction(SIGSEGV, &act, NULL);
}
