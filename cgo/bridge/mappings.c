// Memory that goes away while it is registered. The kernel pins the pages of a region, so that nothing that a program
// maps at the region's addresses later has to do with it. The engine has addresses only. So what is unmapped of a
// region stays reserved until the region is deregistered, and a region whose addresses the program insists on
// (MAP_FIXED), or whose memory it moves, ends.
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

static int (*_Atomic held)(uintptr_t start, uintptr_t end); // NULL: nothing was registered
static on_range *_Atomic reserve, *_Atomic replaced;

// forget_mappings is for a child, which has no regions until it loads a library of its own.
void forget_mappings(void) { atomic_store(&held, NULL); }

// govs_watch_mappings is called by the library: held reports whether a region has, or just had, memory in a range,
// reserve keeps the addresses of a range that is unmapped, and replaced ends the regions of one.
PUBLIC void govs_watch_mappings(void *has, void *keep, void *end)
{
	atomic_store(&reserve, (on_range *)keep);
	atomic_store(&replaced, (on_range *)end);
	atomic_store(&held, (int (*)(uintptr_t, uintptr_t))has);
}

// The program's mappings are made and removed by the next definitions, which may be a sanitizer's. Before these are
// looked up, when allocators already call the functions below, it is the system that does it.
static void *map(void *at, size_t n, int rights, int flags, int fd, off_t offset)
{
	NEXT(mmap);
	return real ? real(at, n, rights, flags, fd, offset) : (void *)syscall(SYS_mmap, at, n, rights, flags, fd, offset);
}

static int unmap(void *at, size_t n)
{
	NEXT(munmap);
	return real ? real(at, n) : (int)syscall(SYS_munmap, at, n);
}

static void *remap(void *at, size_t n, size_t want, int flags, uintptr_t to)
{
	NEXT(mremap);
	return real ? real(at, n, want, flags, to) : (void *)syscall(SYS_mremap, at, n, want, flags, to);
}

static int protect(void *at, size_t n, int rights)
{
	NEXT(mprotect);
	return real ? real(at, n, rights) : (int)syscall(SYS_mprotect, at, n, rights);
}

static uintptr_t page(void) { return (uintptr_t)sysconf(_SC_PAGESIZE); }

// whole rounds up to whole pages, which are what the kernel maps and unmaps.
static uintptr_t whole(uintptr_t n) { return (n + page() - 1) & ~(page() - 1); }

// registered reports whether a region has, or just had, memory in the pages of a range. No call is about a range that
// begins in the middle of a page.
static int registered(uintptr_t start, size_t n)
{
	int (*has)(uintptr_t, uintptr_t) = atomic_load(&held);
	return has && n && !(start & (page() - 1)) && has(start, whole(start + n));
}

// try maps n bytes without rights, and unmaps them. It returns the errno, 0 if that is possible.
static int try(uintptr_t at, size_t n, int flags)
{
	int saved = errno, why = 0;
	void *got = (void *)syscall(SYS_mmap, at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
	if (got == MAP_FAILED)
		why = errno;
	else
		syscall(SYS_munmap, got, n);
	errno = saved;
	return why;
}

// possible reports whether the program can have memory up to the end of a range. The kernel refuses to map and to unmap
// beyond, and changes nothing. ENOMEM is also the errno if there is no room for the page that is tried.
static int possible(uintptr_t start, size_t n)
{
	return try(whole(start + n) - page(), page(), MAP_FIXED_NOREPLACE) != ENOMEM || try(0, page(), 0) == ENOMEM;
}

// permitted reports whether the kernel maps this over a range, with errno if not. It maps it elsewhere. If memory is
// missing for both mappings, it need not be for the new one alone, so that is no reason to refuse it.
static int permitted(uintptr_t start, size_t n, int rights, int flags, int fd, off_t offset)
{
	if (!possible(start, n)) {
		errno = ENOMEM;
		return 0;
	}
	void *tried = (void *)syscall(SYS_mmap, NULL, n, rights, flags & ~(MAP_FIXED | MAP_POPULATE), fd, offset);
	if (tried == MAP_FAILED)
		return errno == ENOMEM;
	syscall(SYS_munmap, tried, n);
	return 1;
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
	first_call();
	long failed = atomic_load(&replaced)(start, whole(start + n));
	leave_library(1);
	if (failed)
		errno = (int)-failed;
	return failed ? -1 : 0;
}

PUBLIC int munmap(void *at, size_t n)
{
	uintptr_t start = (uintptr_t)at;
	forget_pages();
	int ours = registered(start, n);
	if (ours && !possible(start, n)) {
		errno = EINVAL;
		return -1;
	}
	long kept = ours ? atomic_load(&reserve)(start, whole(start + n)) : 0;
	if (kept < 0)
		errno = (int)-kept;
	return kept ? (kept < 0 ? -1 : 0) : unmap(at, n);
}

PUBLIC void *mmap(void *at, size_t n, int rights, int flags, int fd, off_t offset)
{
	if ((flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) == MAP_FIXED) {
		forget_pages();
		// A call that fails must not end a region.
		uintptr_t start = (uintptr_t)at;
		if (registered(start, n) && (!permitted(start, n, rights, flags, fd, offset) || end(start, n)))
			return MAP_FAILED;
	}
	return map(at, n, rights, flags, fd, offset);
}

PUBLIC void *mmap64(void *at, size_t n, int rights, int flags, int fd, off64_t offset)
{
	return mmap(at, n, rights, flags, fd, (off_t)offset);
}

PUBLIC int mprotect(void *at, size_t n, int rights)
{
	forget_pages();
	return protect(at, n, rights);
}

// exceeds returns ENOMEM if a move to more memory exceeds RLIMIT_AS, otherwise 0. What MREMAP_FIXED replaces counts as
// free, and is not known here.
static int exceeds(size_t n, size_t want, int flags)
{
	return want <= n || flags & MREMAP_FIXED ? 0 : try(0, want - n, 0);
}

// refused returns the errno with which the kernel refuses a move, 0 if it does not.
static int refused(uintptr_t at, size_t n, size_t want, int flags, uintptr_t to)
{
	n = whole(n);
	want = whole(want);
	if (!want || (at | to) & (page() - 1) || flags & ~(MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP) ||
	    !(flags & MREMAP_MAYMOVE) || (flags & MREMAP_DONTUNMAP && n != want) ||
	    (flags & MREMAP_FIXED && to < at + n && at < to + want))
		return EINVAL;
	if (syscall(SYS_mremap, at, n, n + page(), 0, NULL) == -1) // also fails if the next page is in use
		return errno == EFAULT ? EFAULT : exceeds(n, want, flags);
	syscall(SYS_munmap, at + n, page());
	return exceeds(n, want, flags);
}

PUBLIC void *mremap(void *at, size_t n, size_t want, int flags, ...)
{
	uintptr_t start = (uintptr_t)at, to = 0;
	if (flags & MREMAP_FIXED) {
		va_list rest;
		va_start(rest, flags);
		to = (uintptr_t)va_arg(rest, void *);
		va_end(rest);
	}
	forget_pages();
	int moves = registered(start, n);
	if (moves && !(flags & ~MREMAP_MAYMOVE)) {
		// In place nothing goes away but the end.
		size_t left = whole(want);
		if (want && left < n)
			return munmap((char *)at + left, n - left) ? MAP_FAILED : at;
		void *got = remap(at, n, want, 0, 0);
		if (got != MAP_FAILED || errno != ENOMEM || !(flags & MREMAP_MAYMOVE))
			return got;
	}
	if (moves || (flags & MREMAP_FIXED && registered(to, want))) {
		int why = refused(start, n, want, flags, to);
		if (why) {
			errno = why;
			return MAP_FAILED;
		}
		if (end(start, n) || (flags & MREMAP_FIXED && end(to, want)))
			return MAP_FAILED;
	}
	return remap(at, n, want, flags, to);
}
