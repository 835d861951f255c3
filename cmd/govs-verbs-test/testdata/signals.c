// The library must not change the program's signals and its limit of descriptors, and handlers must have a stack
// whatever the thread is doing.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "want.h"

static pthread_t first;
static char *low, *high; // of the stack of the first thread
static volatile long handled, elsewhere, strangers, nested, refused;
static struct ibv_context *device;

// on_alarm is called on the first thread, even in the middle of calls of the library.
static void on_alarm(int sig)
{
	char here;
	stack_t stack;
	int saved = errno;

	(void)sig;
	handled++;
	sigaltstack(NULL, &stack);
	if (!pthread_equal(pthread_self(), first))
		strangers++;
	else if ((&here < low || &here >= high) && !(stack.ss_flags & SS_ONSTACK))
		elsewhere++;
	// A call of the library within a call of the library.
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_dealloc_pd body;
	} none = {{IB_USER_VERBS_CMD_DEALLOC_PD, 3, 0}, {12345}};
	if (write(device->cmd_fd, &none, sizeof none) >= 0 || (errno != ENOENT && errno != EDEADLK))
		refused++;
	nested += errno == EDEADLK;
	errno = saved;
}

static struct ibv_cq *polled;

// A program may poll in a handler, and on siw that leaves errno, because it is no system call.
static void on_user(int sig)
{
	struct ibv_wc wc;
	(void)sig;
	errno = 0;
	want("polling in a handler", ibv_poll_cq(polled, 1, &wc) + ibv_req_notify_cq(polled, 0), 0);
	want("errno after that", errno, 0);
}

static long blocked(int sig)
{
	sigset_t mask;
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	return sigismember(&mask, sig);
}

// A thread's first call leaves its signals blocked.
static void *another(void *unused)
{
	sigset_t some;
	sigemptyset(&some);
	sigaddset(&some, SIGCHLD);
	sigaddset(&some, SIGPROF);
	pthread_sigmask(SIG_BLOCK, &some, NULL);
	struct ibv_pd *pd = ibv_alloc_pd(device);
	want("allocating in another thread", pd != NULL, 1);
	want("SIGCHLD is blocked", blocked(SIGCHLD), 1);
	want("SIGPROF is blocked", blocked(SIGPROF), 1);
	want("SIGTERM is blocked", blocked(SIGTERM), 0);
	ibv_dealloc_pd(pd);
	return unused;
}

// Threads that open a device while the library is being loaded wait for that. Their signals stay blocked, too.
static void *opens(void *barrier)
{
	sigset_t chld;
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	pthread_sigmask(SIG_BLOCK, &chld, NULL);
	pthread_barrier_wait(barrier);
	int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	want("opening in several threads", fd >= 0, 1);
	want("SIGCHLD is blocked in each", blocked(SIGCHLD), 1);
	close(fd);
	return NULL;
}

static void open_at_once(void)
{
	pthread_t threads[4];
	pthread_barrier_t barrier;
	pthread_barrier_init(&barrier, NULL, 4);
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, opens, &barrier);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
}

static void run(int seconds)
{
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct ibv_cq *cq = ibv_create_cq(device, 16, NULL, NULL, 0);
	struct ibv_wc wc;
	time_t end = time(NULL) + seconds;
	while (time(NULL) <= end && !elsewhere) {
		struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .cap = {16, 16, 1, 1, 0}, .qp_type = IBV_QPT_RC};
		struct ibv_qp *qp = ibv_create_qp(pd, &attr);
		want("a queue pair", qp != NULL, 1);
		for (int i = 0; i < 100; i++)
			ibv_poll_cq(cq, 1, &wc);
		want("destroying it", ibv_destroy_qp(qp), 0);
	}
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
}

int main(void)
{
	pthread_attr_t attr;
	size_t size;
	first = pthread_self();
	pthread_getattr_np(first, &attr);
	pthread_attr_getstack(&attr, (void **)&low, &size);
	high = low + size;

	struct rlimit files, after;
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = 200;
	setrlimit(RLIMIT_NOFILE, &files);
	getrlimit(RLIMIT_FSIZE, &files);
	files.rlim_cur = 1 << 20;
	setrlimit(RLIMIT_FSIZE, &files);
	signal(SIGPIPE, SIG_DFL);
	open_at_once();

	struct ibv_device **list = ibv_get_device_list(NULL);
	if (!list || !*list || !(device = ibv_open_device(*list))) {
		perror("opening the device");
		return 1;
	}
	getrlimit(RLIMIT_NOFILE, &after);
	want("the limit of descriptors", (long)after.rlim_cur, 200);
	getrlimit(RLIMIT_FSIZE, &after);
	want("the limit of files' size", (long)after.rlim_cur, 1 << 20);
	struct sigaction pipe;
	sigaction(SIGPIPE, NULL, &pipe);
	want("SIGPIPE has a handler", pipe.sa_handler != SIG_DFL, 0);

	// A signal that all threads of the program block waits for sigwait.
	sigset_t user, before;
	sigemptyset(&user);
	sigaddset(&user, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &user, &before);
	want("SIGTERM is blocked", sigismember(&before, SIGTERM), 0);
	struct timespec patience = {10, 0};
	fflush(stdout);
	kill(getpid(), SIGUSR1);
	want("waiting for a signal", sigtimedwait(&user, NULL, &patience), SIGUSR1);

	pthread_t thread;
	pthread_create(&thread, NULL, another, NULL);
	pthread_join(thread, NULL);

	polled = ibv_create_cq(device, 16, NULL, NULL, 0);
	signal(SIGUSR2, on_user);
	raise(SIGUSR2);

	struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
	struct sigaction alarm = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
	signal(SIGALRM, on_alarm);
	setitimer(ITIMER_REAL, &often, NULL);
	run(1);
	sigaction(SIGALRM, &alarm, NULL);
	run(1);
	setitimer(ITIMER_REAL, &never, NULL);
	want("the handler ran", handled > 0, 1);
	want("some of them in a call of the library", nested > 0, 1);
	want("on a stack that is not the thread's", elsewhere, 0);
	want("on another thread", strangers, 0);
	want("refused otherwise than with ENOENT or EDEADLK", refused, 0);
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
