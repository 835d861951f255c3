// Signals are the program's. The library's runtime of Go needs a stack of its own for handlers, wants signals on its
// threads, takes SIGPIPE, and raises the limit of descriptors; here is what keeps that from the program.
#define _GNU_SOURCE
#include "preload.h"

#include <errno.h>
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

// The calling thread.
static __thread struct {
	volatile sig_atomic_t inside; // a call of the library
	int cancel;                   // pthread_setcancelstate's state before the call
	int known;                    // to the runtime
	sigset_t mask;                // before its first call
	uintptr_t low, size;          // of the thread's stack
	uintptr_t frame;              // of the call that is inside
	int within;                   // the stack for handlers is a part of the thread's
	int disabled;                 // by the program, as the stack for handlers may be
	int ends;                     // the thread, whose destructors run
	volatile sig_atomic_t marked; // a mark was sent
} thread __attribute__((tls_model("initial-exec")));

// ---- actions

// An action that is taken is one of this file's, and the program's is kept here.
static struct {
	volatile sig_atomic_t taken;
	struct sigaction program, library;
} shared[NSIG];

static uintptr_t low, high; // of the library's code

static int in_library(uintptr_t at) { return at >= low && at < high; }

static int in_code(const ucontext_t *context)
{
#if defined(__x86_64__)
	return in_library((uintptr_t)context->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
	return in_library((uintptr_t)context->uc_mcontext.pc);
#else
	(void)context;
	return 0; // not known: no fault is the library's
#endif
}

static long send_self(int sig, siginfo_t *info)
{
	return syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), sig, info);
}

// give_back sets the program's action. The child of a vfork has actions of its own, but its parent's memory.
static void give_back(int sig)
{
	set_action(sig, &shared[sig].program, NULL);
	if (!strange())
		shared[sig].taken = 0;
}

// Faults in its own code are the library's: the runtime makes panics of some, and a region that the program has
// unmapped gets pages. after_library takes these signals, until the first fault that is not in the library's code, or
// signal that was sent: then the program's action takes its place.
static void on_fault(int sig, siginfo_t *info, void *context)
{
	if (info->si_code > 0 && in_code(context)) {
		shared[sig].library.sa_sigaction(sig, info, context);
		return;
	}
	give_back(sig);
	if (info->si_code > 0)
		return; // a fault comes again when its instruction does
	int saved = errno;
	if (send_self(sig, info) < 0) // which a filter of seccomp may refuse
		syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), sig);
	errno = saved;
}

// The runtime unblocks these on a thread that begins, and on one of the program's in its first call (_SigUnblock in
// sigtab_linux_generic.go). It needs none of them. 34 is SIGRTMIN, and a signal of musl's.
static const int unblocked[] = {SIGILL, SIGTRAP, SIGFPE, SIGSTKFLT, SIGCHLD, SIGPROF, 34};
enum { unblocked_count = sizeof unblocked / sizeof *unblocked };

// So these threads send themselves a mark, which they block until the runtime unblocks it, too: on_mark then blocks the
// others again, because a signal of the thread comes before those of the process. The mark is the signal that libc has
// for pthread_cancel. libc keeps it from programs, and gdb passes it on without a word.
enum { mark = 32, for_setuid = 33 };

// libc's sigaction refuses both.
struct kernel_action {
	void (*handler)(int, siginfo_t *, void *);
	unsigned long flags;
	void (*restorer)(void);
	uint64_t mask;
};

static void (*of_libc)(int, siginfo_t *, void *); // its handler of the mark, NULL before the first pthread_cancel

// on_mark has all signals of the runtime's blocked (take_mark), so that no other comes before the mask is what it must
// be. What pthread_cancel sends has the code SI_TKILL.
static void on_mark(int sig, siginfo_t *info, void *context)
{
	sigset_t *mask = &((ucontext_t *)context)->uc_sigmask;
	int first = thread.inside && !thread.known; // call of one of the program's threads
	if (thread.marked && info->si_code != SI_TKILL) {
		thread.marked = 0;
		for (int i = 0; i < unblocked_count; i++)
			if (!first || sigismember(&thread.mask, unblocked[i]))
				sigaddset(mask, unblocked[i]);
	} else if (of_libc)
		of_libc(sig, info, context);
}

static void chain(const struct kernel_action *before)
{
	of_libc = before->flags & SA_SIGINFO ? before->handler : NULL;
}

// take_mark takes the signal from libc, which sets its handler with the first pthread_cancel. It reports whether that
// is possible: it needs the flags of a handler of libc's, and libc has set one for setuid since the first thread began.
static int take_mark(void)
{
	struct kernel_action now, own;
	if (syscall(SYS_rt_sigaction, mark, NULL, &now, sizeof now.mask) != 0)
		return 0;
	if (now.handler == on_mark)
		return 1;
	if (syscall(SYS_rt_sigaction, for_setuid, NULL, &own, sizeof own.mask) != 0 || !(own.flags & SA_SIGINFO))
		return 0;
	chain(&now); // before on_mark can be called
	own.handler = on_mark;
	own.flags &= ~(unsigned long)SA_ONSTACK; // libc's handler of the mark unwinds the thread's own stack
	for (int i = 0; i < unblocked_count; i++)
		own.mask |= 1ull << (unblocked[i] - 1);
	if (syscall(SYS_rt_sigaction, mark, &own, &now, sizeof own.mask) != 0)
		return 0;
	if (now.handler != on_mark) // which another thread may have set since, or libc its own
		chain(&now);
	return 1;
}

static void send_mark(void)
{
	const uint64_t own = 1ull << (mark - 1);
	siginfo_t info = {.si_code = SI_USER}; // which comes even if RLIMIT_SIGPENDING leaves no room for more
	if (!take_mark())
		return;
	syscall(SYS_rt_sigprocmask, SIG_BLOCK, &own, NULL, sizeof own);
	thread.marked = 1;
	send_self(mark, &info);
}

PUBLIC void govs_thread_begins(void) { send_mark(); }

// share takes the signal of a fault from the program's action.
static void share(int sig)
{
	struct sigaction own = shared[sig].library;
	own.sa_sigaction = on_fault;
	set_action(sig, NULL, &shared[sig].program);
	shared[sig].taken = 1;
	set_action(sig, &own, NULL);
}

// begin_change has the program's action in place while it is changed, and end_change, which gets what begin_change has
// returned, shares the signal again.
static int begin_change(int sig)
{
	if (sig <= 0 || sig >= NSIG || strange())
		return 0;
	int taken = shared[sig].taken;
	if (taken)
		give_back(sig);
	return taken;
}

static void end_change(int sig, int again)
{
	if (again)
		share(sig);
}

// While a thread is in the library it runs on the stack of a goroutine, which has no room for a handler: that
// overwrites what lies below. With SA_ONSTACK the handler runs on the stack that the runtime has for it. A thread
// that has no such stack runs it where it is, as without the flag.
PUBLIC int sigaction(int sig, const struct sigaction *act, struct sigaction *old)
{
	struct sigaction own;
	if (!act && old && sig > 0 && sig < NSIG && shared[sig].taken && !strange()) {
		*old = shared[sig].program;
		return 0;
	}
	if (act && is_function(act)) {
		own = *act;
		own.sa_flags |= SA_ONSTACK;
		act = &own;
	}
	int again = begin_change(sig), failed = set_action(sig, act, old);
	end_change(sig, again);
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
		int again = begin_change(sig);                                                               \
		__sighandler_t before = real(sig, handler);                                                  \
		on_stack(sig);                                                                               \
		end_change(sig, again);                                                                      \
		return before;                                                                               \
	}
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" // of sigset
SIGNAL(signal)
SIGNAL(ssignal)
SIGNAL(bsd_signal)
SIGNAL(sysv_signal)
SIGNAL(__sysv_signal)
SIGNAL(sigset)

#define CHANGE(name, parameters, arguments)                                                                  \
	PUBLIC int name parameters                                                                           \
	{                                                                                                    \
		REAL(name);                                                                                  \
		int again = begin_change(sig), failed = real arguments;                                      \
		end_change(sig, again);                                                                      \
		return failed;                                                                               \
	}
CHANGE(sigignore, (int sig), (sig))
CHANGE(siginterrupt, (int sig, int interrupts), (sig, interrupts))

// ---- the start of the library

static void watch_ends(void);

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
	watch_ends(); // the constructor of a library that the program is linked with may be earlier
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
// of faults. The actions that other threads of the program have set since before_library stay.
void after_library(struct before_library *before, void *function)
{
	struct rlimit files;
	struct sigaction now;
	if (function)
		dl_iterate_phdr(find_code, function);
	for (int sig = 1; sig < NSIG; sig++) {
		const struct sigaction *program = &before->actions[sig];
		if (program->sa_handler == SIG_ERR || set_action(sig, NULL, &now) != 0 ||
		    !in_library((uintptr_t)now.sa_handler))
			continue;
		set_action(sig, program, NULL);
		if (sig == SIGSEGV || sig == SIGBUS) { // Go's own divisions raise no SIGFPE
			shared[sig].library = now;
			share(sig);
		}
	}
	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != before->files.rlim_cur)
		setrlimit(RLIMIT_NOFILE, &before->files);
	pthread_sigmask(SIG_SETMASK, &before->mask, NULL);
}

// ---- calls of the library

static int set_stack(const stack_t *stack, stack_t *old)
{
	REAL(sigaltstack);
	return real(stack, old);
}

// place_stack finds out whether a stack for handlers is within the thread's.
static void place_stack(const stack_t *stack)
{
	thread.within = !(stack->ss_flags & SS_DISABLE) && (uintptr_t)stack->ss_sp - thread.low < thread.size;
}

static void find_stack(void)
{
	pthread_attr_t attr;
	stack_t stack;
	void *low;
	size_t size;
	if (pthread_getattr_np(pthread_self(), &attr) != 0)
		return; // alternate asks each time
	if (pthread_attr_getstack(&attr, &low, &size) == 0) {
		thread.low = (uintptr_t)low;
		thread.size = size;
	}
	pthread_attr_destroy(&attr);
	if (set_stack(NULL, &stack) == 0)
		place_stack(&stack);
}

PUBLIC int sigaltstack(const stack_t *stack, stack_t *old)
{
	int failed = set_stack(stack, old);
	if (!failed && stack && !strange()) { // the child of a vfork has its parent's thread, and a stack of its own
		place_stack(stack);
		thread.disabled = stack->ss_flags & SS_DISABLE;
	}
	return failed;
}

// alternate reports whether this is a handler on the stack for handlers. The library's code would leave that stack for
// a goroutine's, so that the next signal would begin at its top again, over what is there; and the runtime would ask
// libc for the bounds of the new stack, which allocates. With SS_AUTODISARM the kernel says during a handler that there
// is no such stack, as it says of a thread that the runtime knows only if the program has disabled its stack.
static int alternate(void)
{
	stack_t stack;
	thread.frame = (uintptr_t)__builtin_frame_address(0);
	if (!thread.within && thread.frame - thread.low < thread.size)
		return 0;
	return set_stack(NULL, &stack) == 0 &&
	       (stack.ss_flags & SS_ONSTACK || (thread.known && !thread.disabled && stack.ss_flags & SS_DISABLE));
}

// A handler may interrupt the library's code with a call in which a thread can be cancelled, such as write, and libc
// can't unwind that code. So the thread can be cancelled only before the call and after it.
static void outside(void)
{
	int cancel = thread.cancel; // which a handler may change from here on
	thread.inside = 0;
	pthread_setcancelstate(cancel, NULL);
}

int enter_library(void)
{
	if (thread.inside)
		return 0;
	thread.inside = 1;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &thread.cancel);
	if (!thread.known) {
		find_stack();
		pthread_sigmask(SIG_SETMASK, NULL, &thread.mask);
	}
	if (!alternate())
		return 1;
	outside();
	return 0;
}

void first_call(void)
{
	if (!thread.known)
		send_mark();
}

int in_frames(uint64_t addr, uint64_t n)
{
	uint64_t high = thread.low + thread.size;
	return thread.inside && thread.frame - thread.low < thread.size && addr >= thread.frame && addr < high &&
	       n <= high - addr;
}

// leave_stack disables the stack for handlers of a thread that ends, if that is a part of the thread's stack whose
// function has returned. The kernel takes a thread that has come there for one in a handler, and refuses the runtime to
// change the stack, for which the runtime ends the process. Below that part it does not refuse.
__attribute__((noinline)) static void leave_stack(void)
{
	const stack_t none = {.ss_flags = SS_DISABLE};
	stack_t stack;
	if (set_stack(NULL, &stack) != 0 || !(stack.ss_flags & SS_ONSTACK))
		return;
	volatile char above[(uintptr_t)__builtin_frame_address(0) - (uintptr_t)stack.ss_sp];
	(void)above[0];
	set_stack(&none, NULL);
}

// The runtime forgets a thread that ends, in the destructor of a key of its own. So each call that another destructor
// makes after that is like a first one. This key is older than the runtime's, so that its destructor comes before.
static pthread_key_t ending;
static int watched; // there is this key

static void on_end(void *unused)
{
	(void)unused;
	leave_stack();
	thread.known = 0;
	thread.ends = 1;
}

__attribute__((constructor)) static void watch_ends(void)
{
	if (!watched)
		watched = pthread_key_create(&ending, on_end) == 0;
}

// With the first call of a thread the runtime unblocks signals there, and here what was is restored.
void leave_library(int called)
{
	if (called && !thread.known) {
		sigdelset(&thread.mask, SIGSEGV);
		pthread_sigmask(SIG_SETMASK, &thread.mask, NULL);
		thread.known = !thread.ends;
		if (thread.known && watched)
			pthread_setspecific(ending, &thread);
	}
	outside();
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

void forget_calls(void)
{
	for (int sig = 1; sig < NSIG; sig++)
		if (shared[sig].taken)
			give_back(sig);
	if (thread.inside) // the fork is a handler's
		outside();
	thread.known = 0;
}
