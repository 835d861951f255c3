// A library of LD_PRELOAD that comes after exec's, as a sanitizer's does, sees the program's mappings. With HOOKS this
// is that library, otherwise the program.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef HOOKS
int mapped, unmapped, moved, protected;

#define NEXT(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

void *mmap(void *at, size_t n, int rights, int flags, int fd, off_t offset)
{
	NEXT(mmap);
	mapped++;
	return real(at, n, rights, flags, fd, offset);
}

int munmap(void *at, size_t n)
{
	NEXT(munmap);
	unmapped++;
	return real(at, n);
}

void *mremap(void *at, size_t n, size_t want, int flags, ...)
{
	NEXT(mremap);
	moved++;
	return real(at, n, want, flags);
}

int mprotect(void *at, size_t n, int rights)
{
	NEXT(mprotect);
	protected++;
	return real(at, n, rights);
}
#else
#include "want.h"

extern int mapped __attribute__((weak)), unmapped __attribute__((weak)), moved __attribute__((weak)),
	protected __attribute__((weak));

int main(void)
{
	size_t n = (size_t)sysconf(_SC_PAGESIZE);
	int before = mapped;
	char *at = mmap(NULL, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	want("mapping", mapped, before + 1);
	before = protected;
	mprotect(at, n, PROT_READ | PROT_WRITE);
	want("protecting", protected, before + 1);
	before = moved;
	at = mremap(at, n, 2 * n, MREMAP_MAYMOVE);
	want("moving", moved, before + 1);
	before = unmapped;
	at[n] = 1;
	munmap(at, 2 * n);
	want("unmapping", unmapped, before + 1);
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
#endif
