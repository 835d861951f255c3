// Calls that wait for signals. A thread of the library may take a signal before the thread that waits for it, and sends
// it again (signals.c). The kernel then ends the call that waits with EINTR.
#define _GNU_SOURCE
#include "preload.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int take(const sigset_t *set, siginfo_t *info, const struct timespec *timeout)
{
	REAL(sigtimedwait);
	int got = real(set, info, timeout);
	if (got > 0 && info)
		as_sent(info);
	return got;
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// forget closes a descriptor, unless a handler has forked and this is the child, which has closed it.
static void forget(void *fd)
{
	if (!hidden(*(int *)fd))
		return;
	hide(*(int *)fd, 0);
	syscall(SYS_close, *(int *)fd);
}

// await_signal waits for a signal of a set at a descriptor, on which only a handler ends the wait with EINTR. It waits
// until a time of now, or without a limit if that is negative.
static int await_signal(int fd, const sigset_t *set, siginfo_t *info, int64_t until)
{
	static const struct timespec at_once;
	for (;;) {
		int64_t left = until < 0 ? 0 : until - now();
		struct timespec timeout = {left / 1000000000, left % 1000000000};
		struct pollfd p = {.fd = fd, .events = POLLIN};
		int ready = left < 0 ? 0 : ppoll(&p, 1, until < 0 ? NULL : &timeout, NULL);
		if (ready < 0)
			return -1;
		int got = take(set, info, &at_once);
		if (got >= 0 || errno != EAGAIN || !ready)
			return got;
	}
}

static int wait_for(const sigset_t *set, siginfo_t *info, const struct timespec *timeout)
{
	static const struct timespec at_once;
	struct timespec limit = {0};
	if (timeout && copy_in(&limit, timeout, sizeof limit) < 0)
		return -1;
	if (limit.tv_sec < 0 || limit.tv_nsec < 0 || limit.tv_nsec >= 1000000000)
		return take(set, info, timeout);
	int got = take(set, info, &at_once); // which also finds out whether the program has the set
	if (got >= 0 || errno != EAGAIN || !taken_first(set) || (timeout && !limit.tv_sec && !limit.tv_nsec))
		return got >= 0 || errno != EAGAIN ? got : take(set, info, timeout);
	int fd = (int)syscall(SYS_signalfd4, -1, set, sizeof(uint64_t), O_CLOEXEC | O_NONBLOCK);
	if (fd >= 0 && fd <= STDERR_FILENO) { // where the program may write all the same
		int low = fd;
		fd = (int)syscall(SYS_fcntl, low, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		syscall(SYS_close, low);
	}
	if (fd < 0)
		return take(set, info, timeout);
	hide(fd, 1);
	if (!hidden(fd)) { // not in the table
		syscall(SYS_close, fd);
		return take(set, info, timeout);
	}
	// Longer than 100 years is without a limit.
	int64_t until = !timeout || limit.tv_sec >= 3000000000 ? -1 : now() + limit.tv_sec * 1000000000ll + limit.tv_nsec;
	int saved;
	pthread_cleanup_push(forget, &fd);
	got = await_signal(fd, set, info, until);
	saved = errno;
	pthread_cleanup_pop(1);
	errno = saved;
	return got;
}

PUBLIC int sigtimedwait(const sigset_t *set, siginfo_t *info, const struct timespec *timeout)
{
	return wait_for(set, info, timeout);
}

PUBLIC int sigwaitinfo(const sigset_t *set, siginfo_t *info) { return wait_for(set, info, NULL); }
