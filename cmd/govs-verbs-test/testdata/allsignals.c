// The action of each signal is the program's, whether it was set before the device was opened or after, and faults of
// the program are its own.
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int wrong;

static void want(const char *what, int sig, long got, long expected)
{
	if (got == expected)
		return;
	printf("%s, signal %d: %ld, want %ld\n", what, sig, got, expected);
	wrong = 1;
}

static struct ibv_context *device;

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	if (!list || !*list || !(device = ibv_open_device(*list))) {
		perror("opening the device");
		exit(1);
	}
}

static volatile int came[NSIG], value[NSIG];

static void plain(int sig) { came[sig]++; }

static void detailed(int sig, siginfo_t *info, void *context)
{
	(void)context;
	came[sig]++;
	value[sig] = info->si_value.sival_int;
}

static void set(int sig, int with_info)
{
	struct sigaction act = {.sa_flags = SA_SIGINFO};
	act.sa_sigaction = detailed;
	sigaddset(&act.sa_mask, SIGUSR1);
	if (!with_info)
		signal(sig, plain);
	else
		sigaction(sig, &act, NULL);
}

static int skipped(int sig) { return sig == SIGKILL || sig == SIGSTOP || (sig > SIGSYS && sig < SIGRTMIN); }

static void check(const char *what, int sig, int with_info)
{
	struct sigaction now;
	int before = came[sig];
	sigaction(sig, NULL, &now);
	want(what, sig, with_info ? now.sa_sigaction == detailed : now.sa_handler == plain, 1);
	want("its mask", sig, sigismember(&now.sa_mask, SIGUSR1), with_info || sig == SIGUSR1);
	sigqueue(getpid(), sig, (union sigval){.sival_int = sig + 1000});
	want("the handler was called", sig, came[sig], before + 1);
	if (with_info)
		want("with the value", sig, value[sig], sig + 1000);
}

// Handlers that were set before the first open, and others after it.
static void handlers(void)
{
	for (int sig = 1; sig < NSIG; sig++)
		if (!skipped(sig))
			set(sig, sig % 2);
	open_device();
	for (int round = 0; round < 2; round++)
		for (int sig = 1; sig < NSIG; sig++)
			if (!skipped(sig))
				check("before the open", sig, sig % 2);
	for (int sig = 1; sig < NSIG; sig++)
		if (!skipped(sig))
			set(sig, sig % 2 == 0);
	for (int sig = 1; sig < NSIG; sig++)
		if (!skipped(sig))
			check("after the open", sig, sig % 2 == 0);
}

static void defaults(void)
{
	struct sigaction now;
	open_device();
	for (int sig = 1; sig < NSIG; sig++)
		if (!skipped(sig)) {
			sigaction(sig, NULL, &now);
			want("the default action", sig, now.sa_handler == SIG_DFL, 1);
		}
	// signal returns the handler that was set before.
	want("the former action", SIGSEGV, signal(SIGSEGV, plain) == SIG_DFL, 1);
	want("the former action", SIGSEGV, signal(SIGSEGV, SIG_IGN) == plain, 1);
	want("the former action", SIGSEGV, signal(SIGSEGV, SIG_DFL) == SIG_IGN, 1);
}

static sigjmp_buf back;
static volatile int faults;

static void on_fault(int sig)
{
	(void)sig;
	faults++;
	siglongjmp(back, 1);
}

static void fault(void)
{
	static char *volatile nowhere = (char *)8;
	if (sigsetjmp(back, 1) == 0)
		*nowhere = 1;
}

static void own_faults(void)
{
	signal(SIGSEGV, on_fault);
	open_device();
	for (int i = 0; i < 3; i++)
		fault();
	want("faults with a handler from before", SIGSEGV, faults, 3);
	struct sigaction act = {.sa_handler = on_fault, .sa_flags = SA_RESETHAND};
	sigaction(SIGSEGV, &act, NULL);
	fault();
	want("a fault with one that was set since", SIGSEGV, faults, 4);
	sigaction(SIGSEGV, NULL, &act);
	want("a handler for one fault", SIGSEGV, act.sa_handler == SIG_DFL, 1);
}

static void crash(void)
{
	open_device();
	faults = *(volatile int *)8;
}

static void bus_error(void)
{
	open_device();
	faults = *(volatile int *)mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fileno(tmpfile()), 0);
}

static void sent(void)
{
	open_device();
	kill(getpid(), SIGSEGV);
}

// The runtime preempts goroutines for garbage collections, and a goroutine that computes.
static void *poll_queue(void *unused)
{
	struct ibv_cq *cq = ibv_create_cq(device, 16, NULL, NULL, 0);
	struct ibv_wc wc;
	for (int i = 0; i < 300000; i++)
		ibv_poll_cq(cq, 1, &wc);
	return unused;
}

static void preemption(void)
{
	signal(SIGURG, plain);
	open_device();
	signal(SIGURG, plain);
	pthread_t thread;
	pthread_create(&thread, NULL, poll_queue, NULL);
	struct ibv_pd *pd = ibv_alloc_pd(device);
	for (int i = 0; i < 3000; i++) {
		struct ibv_cq *cq = ibv_create_cq(device, 4096, NULL, NULL, 0);
		struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .cap = {4096, 4096, 4, 4, 0}, .qp_type = IBV_QPT_RC};
		struct ibv_qp *qp = ibv_create_qp(pd, &attr);
		if (!qp)
			break;
		ibv_destroy_qp(qp);
		ibv_destroy_cq(cq);
	}
	pthread_join(thread, NULL);
	want("signals that nobody has sent", SIGURG, came[SIGURG], 0);
}

static const struct {
	const char *name;
	void (*run)(void);
	int ends; // the signal that ends the child
} parts[] = {{"handlers", handlers, 0}, {"defaults", defaults, 0}, {"own faults", own_faults, 0},
	     {"crash", crash, SIGSEGV}, {"bus error", bus_error, SIGBUS}, {"sent", sent, SIGSEGV},
	     {"preemption", preemption, 0}};

int main(void)
{
	signal(SIGHUP, SIG_DFL); // under nohup the program would ignore it
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		int status;
		fflush(stdout);
		pid_t child = fork();
		if (child == 0) {
			parts[i].run();
			fflush(stdout);
			_exit(wrong);
		}
		waitpid(child, &status, 0);
		if (status != 0 && (!WIFSIGNALED(status) || WTERMSIG(status) != parts[i].ends)) {
			printf("%s: status %#x\n", parts[i].name, status);
			wrong = 1;
		} else if (parts[i].ends && status == 0) {
			printf("%s: it goes on\n", parts[i].name);
			wrong = 1;
		}
	}
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
