//go:build linux && cgo

// A program may unmap what it has registered, while a peer writes there or its own Sends read from it. The kernel has
// pinned the pages; the engine would stop the process. What is missing is replaced by pages that nobody else sees, when
// the engine comes there.
#define _GNU_SOURCE
#include "faults.h"

#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

struct govs_region govs_regions[govs_region_count];

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

static int registered(uintptr_t at)
{
	for (int i = 0; i < govs_region_count; i++) {
		uintptr_t start = atomic_load(&govs_regions[i].start);
		if (start && at >= start && at < atomic_load(&govs_regions[i].end))
			return 1;
	}
	return 0;
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)info->si_addr;
	if (info->si_code == SEGV_MAPERR && here(program_counter(context)) && registered(at)) {
		int saved = errno;
		uintptr_t want = at & ~(page - 1);
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
	page = (uintptr_t)sysconf(_SC_PAGESIZE);
	if (!dl_iterate_phdr(find, NULL) || sigaction(SIGSEGV, NULL, &runtime) != 0 || !(runtime.sa_flags & SA_SIGINFO))
		return;
	struct sigaction act = runtime;
	act.sa_sigaction = on_fault;
	sigaction(SIGSEGV, &act, NULL);
}
