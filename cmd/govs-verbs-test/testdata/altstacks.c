// A signal handler can't command the device, wherever its stack is: within the thread's own, or one that the kernel
// disarms while the handler runs. The library's code would leave that stack, so that the next handler would overwrite
// it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
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

int main(void)
{
	struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
	sigaction(SIGUSR1, &act, NULL);
	fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		perror("rdma_cm");
		return 1;
	}
	for (int first = 0; first < 2; first++) {
		pthread_t thread;
		pthread_create(&thread, NULL, known, first ? &fd : NULL);
		pthread_join(thread, NULL);
	}
	known(&fd);
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
