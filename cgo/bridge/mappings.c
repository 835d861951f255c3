// Memory that goes away while it is registered. The kernel pins the pages of a region, so that nothing that a program
// maps at the region's addresses later has to do with it. The engine has addresses only. So what is unmapped of a
// region stays reserved until the region is deregistered, and a region whose addresses the program insists on
// (MAP_FIXED), or whose memory it moves, ends.
//
// What is called here are system calls, and not the next definitions: allocators call these functions before anything
// can be looked up.
#define _GNU_SOURCE
#include "preload.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef long on_range(uintptr_t start, uintptr_t end);

static int (*_Atomic overlap)(uintptr_t start, uintptr_t end); // NULL: nothing was registered
static on_range *_Atomic reserve, *_Atomic replaced;

// forget_mappings is for a child, which has no regions until it loads a library of its own.
void forget_mappings(void) { atomic_store(&overlap, NULL); }

// govs_watch_mappings is called by the library: overlap reports whether a region has memory in a range, reserve keeps
// the addresses of a range that is unmapped, and replaced ends the regions of one.
PUBLIC void govs_watch_mappings(void *has, void *keep, void *end)
{
	atomic_store(&reserve, (on_range *)keep);
	atomic_store(&replaced, (on_range *)end);
	atomic_store(&overlap, (int (*)(uintptr_t, uintptr_t))has);
}

// registered reports whether a region has memory in the pages of a range: the kernel maps and unmaps whole ones.
static int registered(uintptr_t start, size_t n)
{
	int (*has)(uintptr_t, uintptr_t) = atomic_load(&overlap);
	if (!has)
		return 0;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	return has(start & ~(page - 1), (start + n + page - 1) & ~(page - 1));
}

// end ends the regions of a range. -1 with errno: that is not possible, as in a signal handler.
static int end(uintptr_t start, size_t n)
{
	if (!registered(start, n))
		return 0;
	if (!enter_library()) {
		errno = EDEADLK;
		return -1;
	}
	long failed = atomic_load(&replaced)(start, start + n);
	leave_library();
	if (failed)
		errno = (int)-failed;
	return failed ? -1 : 0;
}

PUBLIC int munmap(void *at, size_t n)
{
	uintptr_t start = (uintptr_t)at;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), stop = (start + n + page - 1) & ~(page - 1);
	long kept = registered(start, n) ? atomic_load(&reserve)(start, stop) : 0;
	if (kept < 0)
		errno = (int)-kept;
	return kept ? (kept < 0 ? -1 : 0) : (int)syscall(SYS_munmap, at, n);
}

PUBLIC void *mmap(void *at, size_t n, int rights, int flags, int fd, off_t offset)
{
	if (flags & MAP_FIXED && end((uintptr_t)at, n))
		return MAP_FAILED;
	return (void *)syscall(SYS_mmap, at, n, rights, flags, fd, offset);
}

PUBLIC void *mmap64(void *at, size_t n, int rights, int flags, int fd, off64_t offset)
{
	return mmap(at, n, rights, flags, fd, (off_t)offset);
}

PUBLIC void *mremap(void *at, size_t n, size_t want, int flags, ...)
{
	uintptr_t start = (uintptr_t)at;
	void *to = NULL;
	if (flags & MREMAP_FIXED) {
		va_list rest;
		va_start(rest, flags);
		to = va_arg(rest, void *);
		va_end(rest);
		if (end((uintptr_t)to, want))
			return MAP_FAILED;
	}
	if (registered(start, n)) {
		if (!(flags & ~MREMAP_MAYMOVE)) {
			// In place nothing goes away but the end.
			size_t page = (size_t)sysconf(_SC_PAGESIZE), left = (want + page - 1) & ~(page - 1);
			if (want && left < n)
				return munmap((char *)at + left, n - left) ? MAP_FAILED : at;
			void *got = (void *)syscall(SYS_mremap, at, n, want, 0, NULL);
			if (got != MAP_FAILED || !(flags & MREMAP_MAYMOVE))
				return got;
		}
		if (end(start, n))
			return MAP_FAILED;
	}
	return (void *)syscall(SYS_mremap, at, n, want, flags, to);
}
