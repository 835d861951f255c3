// Signals are the program's. The library's runtime of Go needs a stack of its own for handlers, wants signals on its
// threads, takes SIGPIPE, and raises the limit of descriptors; here is what keeps that from the program.
#define _GNU_SOURCE
#include "preload.h"

#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static int set_action(int sig, const struct sigaction *act, struct sigaction *old)
{
	REAL(sigaction);
	return real(sig, act, old);
}

static int is_function(const struct sigaction *act)
{
	return act->sa_handler != SIG_DFL && act->sa_handler != SIG_IGN;
}

// ---- actions

// Faults in its own code are the library's: the runtime makes panics of some, and a region that the program has
// unmapped gets pages. take has these signals, after the library was loaded, until the first fault that is not in the
// library's code, or signal that was sent: then the program's action, which is kept here, takes its place.
static struct {
	volatile sig_atomic_t taken;
	struct sigaction program, library;
} faults[NSIG];

static uintptr_t low, high; // of the library's code

static int in_code(const ucontext_t *context)
{
#if defined(__x86_64__)
	uintptr_t at = (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
	uintptr_t at = (uintptr_t)context->uc_mcontext.pc;
#else
	uintptr_t at = 0; // not known: no fault is the library's
	(void)context;
#endif
	return at >= low && at < high;
}

// give_back sets the program's action.
static void give_back(int sig)
{
	set_action(sig, &faults[sig].program, NULL);
	faults[sig].taken = 0;
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
	if (info->si_code > 0 && in_code(context)) {
		faults[sig].library.sa_sigaction(sig, info, context);
		return;
	}
	give_back(sig);
	if (info->si_code <= 0) // somebody has sent it; a fault comes again when its instruction does
		syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), sig, info);
}

// take has on_fault called for a signal, and keeps the program's action.
static void take(int sig, const struct sigaction *program)
{
	struct sigaction own = faults[sig].library;
	own.sa_sigaction = on_fault;
	faults[sig].program = *program;
	faults[sig].taken = 1;
	set_action(sig, &own, NULL);
}

// begin_change has the program's action in place while it is changed, and end_change, which gets what begin_change has
// returned, has on_fault there again.
static int begin_change(int sig)
{
	int taken = sig > 0 && sig < NSIG && faults[sig].taken && !strange();
	if (taken)
		give_back(sig);
	return taken;
}

static void end_change(int sig, int taken)
{
	struct sigaction now;
	if (taken && set_action(sig, NULL, &now) == 0)
		take(sig, &now);
}

// While a thread is in the library it runs on the stack of a goroutine, which has no room for a handler: that
// overwrites what lies below. With SA_ONSTACK the handler runs on the stack that the runtime has for it. A thread
// that has no such stack runs it where it is, as without the flag.
PUBLIC int sigaction(int sig, const struct sigaction *act, struct sigaction *old)
{
	struct sigaction own;
	if (act && is_function(act)) {
		own = *act;
		own.sa_flags |= SA_ONSTACK;
		act = &own;
	}
	int taken = begin_change(sig), failed = set_action(sig, act, old);
	end_change(sig, taken);
	return failed;
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
		int taken = begin_change(sig);                                                               \
		__sighandler_t before = real(sig, handler);                                                  \
		on_stack(sig);                                                                               \
		end_change(sig, taken);                                                                      \
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
	struct sigaction actions[NSIG];
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
	for (int sig = 1; sig < NSIG; sig++)
		if (set_action(sig, NULL, &before.actions[sig]) != 0)
			before.actions[sig].sa_handler = SIG_ERR; // libc's own
	getrlimit(RLIMIT_NOFILE, &before.files);
	return &before;
}

static int find_code(struct dl_phdr_info *info, size_t size, void *function)
{
	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + p->p_vaddr;
		if (p->p_type == PT_LOAD && p->p_flags & PF_X && (uintptr_t)function - start < p->p_memsz) {
			low = start;
			high = start + p->p_memsz;
			return 1;
		}
	}
	return 0;
}

// The engine asks for no SIGPIPE, and the runtime, which is built to send no SIGURG, needs no other signal than those
// of faults.
void after_library(struct before_library *before, void *function)
{
	struct rlimit files;
	struct sigaction now;
	int known = function && dl_iterate_phdr(find_code, function);
	for (int sig = 1; sig < NSIG; sig++) {
		const struct sigaction *program = &before->actions[sig];
		if (program->sa_handler == SIG_ERR || set_action(sig, NULL, &now) != 0 ||
		    now.sa_handler == program->sa_handler)
			continue;
		if (known && (sig == SIGSEGV || sig == SIGBUS || sig == SIGFPE)) {
			faults[sig].library = now;
			take(sig, program);
		} else
			set_action(sig, program, NULL);
	}
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
void leave_library(int called)
{
	if (called && !thread.known) {
		sigdelset(&thread.mask, SIGSEGV);
		pthread_sigmask(SIG_SETMASK, &thread.mask, NULL);
		thread.known = 1;
	}
	thread.inside = 0;
}

// A fault ends the process if the thread blocks its signal, also a fault that the library would handle, as in a region
// that the program has unmapped. So threads that have called the library don't block it.
#define SIGMASK(name)                                                                                        \
	PUBLIC int name(int how, const sigset_t *set, sigset_t *old)                                         \
	{                                                                                                    \
		REAL(name);                                                                                  \
		sigset_t own;                                                                                \
		if (set && how != SIG_UNBLOCK && thread.known) {                                             \
			own = *set;                                                                          \
			sigdelset(&own, SIGSEGV);                                                            \
			set = &own;                                                                          \
		}                                                                                            \
		return real(how, set, old);                                                                  \
	}
SIGMASK(pthread_sigmask)
SIGMASK(sigprocmask)

void forget_library(void)
{
	for (int sig = 1; sig < NSIG; sig++)
		if (faults[sig].taken)
			give_back(sig);
	thread.inside = thread.known = 0;
}
