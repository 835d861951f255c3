// Other threads may act at the moment at which a program unmaps memory of a region. So this program includes faults.c,
// and calls a function before and after the system call that takes the pages away.
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void (*before)(void), (*after)(void), (*unmapping)(void); // NULL for nothing

static void once(void (**f)(void))
{
	void (*call)(void) = *f;
	*f = NULL;
	if (call)
		call();
}

static void calls(long number)
{
	if (number == SYS_mmap)
		once(&before);
	else if (number == SYS_munmap)
		once(&unmapping);
}

static long called(long number, long got)
{
	if (number == SYS_mmap)
		once(&after);
	return got;
}

// A huge page is unmapped as a whole, or not at all.
static uintptr_t huge, huge_end;

static int divides(long number, uintptr_t at, size_t n)
{
	if ((number != SYS_mmap && number != SYS_munmap) || at >= huge_end || at + n <= huge)
		return 0;
	if (at > huge || at + n < huge_end)
		return 1;
	huge = huge_end = 0;
	return 0;
}

#define FIRST(at, n, ...) (uintptr_t)(at), (size_t)(n)
#define syscall(number, ...)                                                                                 \
	(calls(number), divides(number, FIRST(__VA_ARGS__, 0)) ?                                             \
				(errno = EINVAL, -1) :                                                       \
				called(number, syscall(number, __VA_ARGS__)))
#include "../faults.c"
#undef syscall

#include <stdio.h>
#include <stdlib.h>

static uint64_t ended_from, ended_to;

long govs_bridge_replaced(uint64_t start, uint64_t end)
{
	ended_from = start;
	ended_to = end;
	return 0;
}

static const char *doing;
static char *memory;
enum { size = 1 << 16 };

static void fail(const char *what)
{
	printf("%s: %s\n", doing, what);
	fflush(stdout);
	_exit(1);
}

static void fault(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)info;
	(void)context;
	fail("the engine's access ends the program");
}

static void engine_writes(void) { *(volatile char *)(memory + 5000) = 1; }

static void deregister(void)
{
	govs_set_region(0, 0, 0);
	govs_unreserve();
}

// map_over does what mappings.c does before it maps something at a fixed address: that waits for who is unmapping.
static void map_over(void)
{
	if (!govs_held((uintptr_t)memory, (uintptr_t)memory + size))
		fail("pages that will be unmapped are the program's already");
}

static void unmap(const char *what, void (*first)(void), void (*then)(void))
{
	doing = what;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("mmap");
	uintptr_t start = (uintptr_t)memory;
	govs_set_region(0, start, start + size);
	before = first;
	after = then;
	if (govs_reserve(start, start + size) != 1 || before || after)
		fail("the pages are not reserved");
	if (first != deregister && then != deregister) {
		if (mmap(memory, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != MAP_FAILED)
			fail("the pages are not reserved while the region is there");
		unmapping = map_over;
		deregister();
		if (unmapping)
			fail("the pages are not unmapped with the region");
	}
	if (govs_held(start, start + size))
		fail("the pages are held without the region");
	if (mmap(memory, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != memory)
		fail("the pages stay reserved without the region");
	munmap(memory, size);
	for (int i = 0; i < reserved_count; i++)
		if (reserved[i].start || reserved[i].end)
			fail("a piece stays");
}

// divide unmaps a huge page of which a region has a part, and maps something over another part of it.
static void divide(const char *what, size_t from)
{
	doing = what;
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uintptr_t start = (uintptr_t)memory;
	huge = start;
	huge_end = start + size;
	govs_set_region(0, start + from, start + from + 100);
	if (govs_reserve(start, start + size) != 1)
		fail("it is not unmapped");
	if (mmap(memory, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != MAP_FAILED)
		fail("the pages are not reserved while the region is there");
	if (!govs_held(start + 8192, start + 12288))
		fail("a page without the region is not reserved");
	replaced(start + 8192, start + 12288);
	if (ended_from > start + from || ended_to < start + from + 100)
		fail("a mapping over a reserved page does not end the region, with which the page is unmapped");
	deregister();
	if (mmap(memory, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != memory)
		fail("the pages stay reserved without the region");
	munmap(memory, size);
}

// take maps something where govs_reserve has unmapped, as another thread may.
static void take(void)
{
	char *got = mmap(memory, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (got != memory)
		fail("what is before the huge page is not free");
	*got = 1;
}

// beside unmaps memory and the huge page after it, where a region begins.
static void beside(void)
{
	doing = "memory before a huge page";
	memory = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uintptr_t start = (uintptr_t)memory;
	huge = start + size;
	huge_end = huge + size;
	govs_set_region(0, huge, huge + 100);
	before = take;
	if (govs_reserve(start, start + 2 * size) != 1)
		fail("it is not unmapped");
	if (before)
		fail("nothing was reserved");
	if (reserved_to(start))
		fail("what another thread has mapped meanwhile is replaced");
	deregister();
	munmap(memory, size);
}

int main(void)
{
	struct sigaction act = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
	sigaction(SIGSEGV, &act, NULL);
	govs_watch_faults();
	unmap("the engine writes before", engine_writes, NULL);
	unmap("the engine writes at once", NULL, engine_writes);
	unmap("the region ends before", deregister, NULL);
	unmap("the region ends at once", NULL, deregister);
	divide("a region in a huge page", 4096);
	divide("a region that begins with a huge page", 0);
	beside();
	puts("as it must be");
	return 0;
}
