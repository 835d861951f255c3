// Limits of the process that the runtime of the library needs or changes.
#define _GNU_SOURCE
#include "preload.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

// Go's runtime reserves 1.1 GiB for its tables at once. Besides there are its heap, the stacks of its threads, and what
// malloc reserves for each of them.
int addresses(void)
{
	const size_t n = (size_t)1792 << 20;
	void *at = (void *)syscall(SYS_mmap, NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at != MAP_FAILED)
		syscall(SYS_munmap, at, n);
	return at != MAP_FAILED;
}

// The runtime raises the limit of descriptors when it starts, and after_library sets the program's one again. Between
// these no other thread sets a limit, which would be lost.
#define SETRLIMIT(name, type)                                                                                \
	PUBLIC int name(__rlimit_resource_t resource, const struct type *limit)                              \
	{                                                                                                    \
		REAL(name);                                                                                  \
		await_start();                                                                               \
		int failed = real(resource, limit);                                                          \
		allow_start();                                                                               \
		return failed;                                                                               \
	}
SETRLIMIT(setrlimit, rlimit)
SETRLIMIT(setrlimit64, rlimit64)

#define PRLIMIT(name, type)                                                                                  \
	PUBLIC int name(pid_t pid, enum __rlimit_resource resource, const struct type *limit, struct type *was) \
	{                                                                                                    \
		REAL(name);                                                                                  \
		await_start();                                                                               \
		int failed = real(pid, resource, limit, was);                                                \
		allow_start();                                                                               \
		return failed;                                                                               \
	}
PRLIMIT(prlimit, rlimit)
PRLIMIT(prlimit64, rlimit64)
