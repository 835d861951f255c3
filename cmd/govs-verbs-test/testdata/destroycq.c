// Destroys a CQ that a QP uses, which is refused, and checks what is left of the CQ. The arguments "poll" and "arm" use
// it once more.
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void must(const char *what, int is)
{
	if (is)
		return;
	printf("%s: not so (%s)\n", what, strerror(errno));
	exit(1);
}

// The queue that was mapped last. The libraries call the functions below instead of libc's.
static char *queue;
static size_t octets;

void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
	void *at = (void *)syscall(SYS_mmap, addr, length, prot, flags, fd, offset);
	if (at != MAP_FAILED && flags & MAP_SHARED && fd >= 0) {
		queue = at;
		octets = length;
	}
	return at;
}

static int mapped(void *at)
{
	unsigned char in;
	return mincore(at, 1, &in) == 0;
}

static void faulted(int signal, siginfo_t *info, void *context)
{
	static const char in[] = "a fault in the queue\n", elsewhere[] = "a fault elsewhere\n";
	char *at = info->si_addr;
	(void)signal;
	(void)context;
	if (at >= queue && at < queue + octets)
		_exit(write(1, in, sizeof in - 1) > 0 ? 11 : 1);
	_exit(write(1, elsewhere, sizeof elsewhere - 1) > 0 ? 12 : 1);
}

int main(int argc, char **argv)
{
	const char *then = argc > 1 ? argv[1] : "";
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *device = list && *list ? ibv_open_device(*list) : NULL;
	must("a device", device != NULL);
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct ibv_cq *other = ibv_create_cq(device, 64, NULL, NULL, 0), *cq = ibv_create_cq(device, 64, NULL, NULL, 0);
	must("objects", pd && other && cq);
	char *of_cq = queue;
	size_t n = octets;
	must("the CQ has a queue", of_cq && mapped(of_cq));
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = other, .cap = {16, 16, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	must("a QP", qp != NULL);
	struct ibv_wc wc;
	must("the CQ is empty", ibv_poll_cq(cq, 1, &wc) == 0);

	must("destroying the CQ is EBUSY", ibv_destroy_cq(cq) == EBUSY);
	must("its queue is unmapped", !mapped(of_cq));
	queue = of_cq;
	octets = n;
	struct sigaction action = {.sa_sigaction = faulted, .sa_flags = SA_SIGINFO};
	must("a handler", sigaction(SIGSEGV, &action, NULL) == 0);
	if (!strcmp(then, "poll"))
		return ibv_poll_cq(cq, 1, &wc);
	if (!strcmp(then, "arm"))
		return ibv_req_notify_cq(cq, 0);

	// The next attempt unmaps what has been mapped there since.
	char *own = mmap(of_cq, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	must("memory in its place", own == of_cq);
	own[0] = 1;
	must("destroying it again is EBUSY", ibv_destroy_cq(cq) == EBUSY);
	must("the memory in its place is gone", !mapped(own));

	must("the other CQ is there", ibv_poll_cq(other, 1, &wc) == 0);
	must("destroying the QP", ibv_destroy_qp(qp) == 0);
	must("destroying the CQs", ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(other) == 0);
	must("the end", ibv_dealloc_pd(pd) == 0 && ibv_close_device(device) == 0);
	puts("as it must be");
	return 0;
}
