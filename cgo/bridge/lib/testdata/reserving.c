// Other threads may act at the moment at which a program unmaps memory of a region. So this program includes faults.c,
// and calls a function before and after the system call that takes the pages away.
#define _GNU_SOURCE
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

#define syscall(number, ...) (calls(number), called(number, syscall(number, __VA_ARGS__)))
#include "../faults.c"
#undef syscall

#include <stdio.h>
#include <stdlib.h>

long govs_bridge_replaced(uint64_t start, uint64_t end)
{
	(void)start;
	(void)end;
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

int main(void)
{
	struct sigaction act = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
	sigaction(SIGSEGV, &act, NULL);
	govs_watch_faults();
	unmap("the engine writes before", engine_writes, NULL);
	unmap("the engine writes at once", NULL, engine_writes);
	unmap("the region ends before", deregister, NULL);
	unmap("the region ends at once", NULL, deregister);
	puts("as it must be");
	return 0;
}
