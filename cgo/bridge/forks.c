// Children for which libc calls none of the functions of pthread_atfork.
#define _GNU_SOURCE
#include "preload.h"

#include <sched.h>
#include <stdarg.h>
#include <unistd.h>

PUBLIC pid_t _Fork(void)
{
	REAL(_Fork);
	pid_t pid = real();
	if (pid == 0)
		after_fork();
	return pid;
}

struct child {
	int (*run)(void *);
	void *arg;
	int flags;
};

static int run_child(void *p)
{
	struct child child = *(struct child *)p;
	if (child.flags & CLONE_FILES)
		forget_parent();
	else
		after_fork();
	_exit(child.run(child.arg)); // libc would end this thread only, and not those of a library that was loaded here
}

PUBLIC int clone(int (*run)(void *), void *stack, int flags, void *arg, ...)
{
	REAL(clone);
	va_list args;
	va_start(args, arg);
	pid_t *parent = va_arg(args, pid_t *);
	void *tls = va_arg(args, void *);
	pid_t *child = va_arg(args, pid_t *);
	va_end(args);
	if (!run || flags & CLONE_VM) // a thread, or a child that is in its parent's memory
		return real(run, stack, flags, arg, parent, tls, child);
	struct child own = {run, arg, flags}; // which the child has a copy of
	return real(run_child, stack, flags, &own, parent, tls, child);
}
