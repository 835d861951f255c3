//go:build linux && cgo

// The runtime's threads begin here, because the library is linked with a pthread_create of its own (main.go).
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

// govs_thread_begins is preload's (signals.c), and not there in a program that is linked with this package.
extern void govs_thread_begins(void) __attribute__((weak));

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

struct beginning {
	void *(*run)(void *);
	void *arg;
};

static void *begins(void *p)
{
	const struct beginning b = *(struct beginning *)p;
	free(p);
	if (govs_thread_begins)
		govs_thread_begins();
	return b.run(b.arg);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	struct beginning *b = malloc(sizeof *b);
	if (!b)
		return EAGAIN;
	*b = (struct beginning){run, arg};
	int failed = __real_pthread_create(thread, attr, begins, b);
	if (failed)
		free(b);
	return failed;
}
