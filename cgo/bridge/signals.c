// Signals are the program's. The library's runtime of Go needs a stack of its own for handlers, wants signals on its
// threads, takes SIGPIPE, and raises the limit of descriptors; here is what keeps that from the program.
#define _GNU_SOURCE
#include "preload.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

static int (*next_sigaction)(int, const struct sigaction *, struct sigaction *);

static int set_action(int sig, const struct sigaction *act, struct sigaction *old)
{
	if (!next_sigaction)
		*(void **)&next_sigaction = dlsym(RTLD_NEXT, "sigaction");
	return next_sigaction(sig, act, old);
}

static int is_function(const struct sigaction *act)
{
	return act->sa_handler != SIG_DFL && act->sa_handler != SIG_IGN;
}

// While a thread is in the library it runs on the stack of a goroutine, which has no room for a handler: that
// overwrites what lies below. With SA_ONSTACK the handler runs on the stack that the runtime has for it. A thread
// that has no such stack runs it where it is, as without the flag.
PUBLIC int sigaction(int sig, const struct sigaction *act, struct sigaction *old)
{
	if (!act || !is_function(act))
		return set_action(sig, act, old);
	struct sigaction own = *act;
	own.sa_flags |= SA_ONSTACK;
	return set_action(sig, &own, old);
}

// on_stack adds the flag to a handler that libc has set.
static void on_stack(int sig)
{
	struct sigaction act;
	if (set_action(sig, NULL, &act) == 0 && is_function(&act) && !(act.sa_flags & SA_ONSTACK)) {
		act.sa_flags |= SA_ONSTACK;
		set_action(sig, &act, NULL);
	}
}

#define SIGNAL(name)                                                                                         \
	__sighandler_t name(int sig, __sighandler_t handler);                                                \
	PUBLIC __sighandler_t name(int sig, __sighandler_t handler)                                          \
	{                                                                                                    \
		REAL(name);                                                                                  \
		__sighandler_t before = real(sig, handler);                                                  \
		on_stack(sig);                                                                               \
		return before;                                                                               \
	}
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" // of sigset
SIGNAL(signal)
SIGNAL(ssignal)
SIGNAL(bsd_signal)
SIGNAL(sysv_signal)
SIGNAL(__sysv_signal)
SIGNAL(sigset)

// ---- the start of the library

struct before_library {
	sigset_t mask;
	struct sigaction pipe;
	struct rlimit files;
};

// The library's threads inherit that all signals are blocked, so that a signal of the process goes to a thread of
// the program, or waits for its sigwait. There is one start at a time.
struct before_library *before_library(void)
{
	static struct before_library before;
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before.mask);
	set_action(SIGPIPE, NULL, &before.pipe);
	getrlimit(RLIMIT_NOFILE, &before.files);
	return &before;
}

void after_library(struct before_library *before)
{
	struct rlimit files;
	set_action(SIGPIPE, &before->pipe, NULL); // the engine asks for no SIGPIPE
	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != before->files.rlim_cur)
		setrlimit(RLIMIT_NOFILE, &before->files);
	pthread_sigmask(SIG_SETMASK, &before->mask, NULL);
}

// ---- calls of the library

static __thread struct {
	volatile sig_atomic_t inside;
	int known; // to the runtime
	sigset_t mask;
	uintptr_t low, size; // of the thread's stack
	uintptr_t frame;     // of the call that is inside
} thread __attribute__((tls_model("initial-exec")));

static void find_stack(void)
{
	pthread_attr_t attr;
	void *low;
	size_t size;
	if (pthread_getattr_np(pthread_self(), &attr) != 0)
		return; // alternate asks each time
	if (pthread_attr_getstack(&attr, &low, &size) == 0) {
		thread.low = (uintptr_t)low;
		thread.size = size;
	}
	pthread_attr_destroy(&attr);
}

// alternate reports whether this is a handler on the stack for handlers. The library's code would leave that stack for
// a goroutine's, so that the next signal would begin at its top again, over what is there; and the runtime would ask
// libc for the bounds of the new stack, which allocates.
static int alternate(void)
{
	stack_t stack;
	thread.frame = (uintptr_t)__builtin_frame_address(0);
	if (thread.frame - thread.low < thread.size)
		return 0;
	return sigaltstack(NULL, &stack) == 0 && stack.ss_flags & SS_ONSTACK;
}

int enter_library(void)
{
	if (thread.inside)
		return 0;
	thread.inside = 1;
	if (!thread.known) {
		find_stack();
		pthread_sigmask(SIG_SETMASK, NULL, &thread.mask);
	}
	if (!alternate())
		return 1;
	thread.inside = 0;
	return 0;
}

int in_frames(uint64_t addr, uint64_t n)
{
	uint64_t high = thread.low + thread.size;
	return thread.inside && thread.frame - thread.low < thread.size && addr >= thread.frame && addr < high &&
	       n <= high - addr;
}

// With the first call of a thread the runtime unblocks signals there, and here what was is restored.
void leave_library(void)
{
	if (!thread.known) {
		pthread_sigmask(SIG_SETMASK, &thread.mask, NULL);
		thread.known = 1;
	}
	thread.inside = 0;
}

void forget_thread(void) { thread.inside = thread.known = 0; }
