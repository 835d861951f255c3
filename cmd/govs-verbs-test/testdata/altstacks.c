// A signal handler can't command the device, wherever its stack is: within the thread's own, or one that the kernel
// disarms while the handler runs. The library's code would leave that stack, so that the next handler would overwrite
// it. A coroutine can, because its stack is for no handler.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif

enum { size = 1 << 16 };
static int fd, wrong;
static volatile int error;

// command writes an unknown command, and returns its errno.
static int command(void)
{
	const unsigned unknown[] = {99, 0};
	return write(fd, unknown, sizeof unknown) < 0 ? errno : 0;
}

static void on_signal(int sig)
{
	(void)sig;
	error = command();
}

static void try(const char *what, void *sp, int flags)
{
	const stack_t stack = {.ss_sp = sp, .ss_size = size, .ss_flags = flags};
	if (sigaltstack(&stack, NULL) != 0)
		perror("sigaltstack"), wrong = 1;
	error = 0;
	raise(SIGUSR1);
	if (error != EDEADLK)
		printf("in a handler %s: errno %d, want %d\n", what, error, EDEADLK), wrong = 1;
	if ((error = command()) != EINVAL)
		printf("after a handler %s: errno %d, want %d\n", what, error, EINVAL), wrong = 1;
}

// known has used the device before it gets a stack, and first after that.
static void *known(void *first)
{
	char own[size];
	if (first)
		command();
	try("within the thread's stack", own, 0);
	try("on another stack", malloc(size), 0);
	if (first)
		try("on a stack that is disarmed", malloc(size), (int)SS_AUTODISARM);
	return NULL;
}

// in_coroutine makes a command on a stack that is neither the thread's nor for handlers.
static void in_coroutine(void) { error = command(); }

// coroutines runs one after the thread has had its stack for handlers disabled.
static void *coroutines(void *unused)
{
	const stack_t none = {.ss_flags = SS_DISABLE};
	static ucontext_t caller, routine;
	command();
	sigaltstack(&none, NULL);
	getcontext(&routine);
	routine.uc_stack = (stack_t){.ss_sp = malloc(4 * size), .ss_size = 4 * size};
	routine.uc_link = &caller;
	makecontext(&routine, in_coroutine, 0);
	error = 0;
	swapcontext(&caller, &routine);
	if (error != EINVAL)
		printf("in a coroutine: errno %d, want %d\n", error, EINVAL), wrong = 1;
	return unused;
}

// of_child: a child of vfork, in the memory of this thread, has another stack.
static void *of_child(void *unused)
{
	char own[size];
	static char childs[size];
	const stack_t stack = {.ss_sp = own, .ss_size = size}, other = {.ss_sp = childs, .ss_size = size};
	const stack_t none = {.ss_flags = SS_DISABLE};
	command();
	sigaltstack(&stack, NULL);
	pid_t child = vfork();
	if (child == 0) {
		sigaltstack(&other, NULL);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	error = 0;
	raise(SIGUSR1);
	if (error != EDEADLK)
		printf("in a handler after a child of vfork: errno %d, want %d\n", error, EDEADLK), wrong = 1;
	sigaltstack(&none, NULL);
	return unused;
}

static void on_exit_signal(int sig)
{
	(void)sig;
	pthread_exit(NULL);
}

// exits ends in a handler, on the stack that the thread has got for handlers with its first command.
static void *exits(void *unused)
{
	signal(SIGUSR2, on_exit_signal);
	command();
	raise(SIGUSR2);
	return unused;
}

// leaves_stack ends where its stack for handlers was, in a function that has returned.
static void *leaves_stack(void *unused)
{
	char own[size];
	const stack_t stack = {.ss_sp = own, .ss_size = size};
	command();
	sigaltstack(&stack, NULL);
	return unused;
}

static void run(void *(*thread)(void *), void *arg)
{
	pthread_t id;
	pthread_create(&id, NULL, thread, arg);
	pthread_join(id, NULL);
}

int main(void)
{
	struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
	sigaction(SIGUSR1, &act, NULL);
	fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		perror("rdma_cm");
		return 1;
	}
	run(known, NULL);
	run(known, &fd);
	known(&fd);
	run(coroutines, NULL);
	run(of_child, NULL);
	run(exits, NULL);
	run(leaves_stack, NULL);
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
