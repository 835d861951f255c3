// A program ends, forks or destroys its queue pair while its threads post and poll. Both ends of the connection are its
// own.
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MESSAGE (32 << 10)
#define SENDS 64

static char from[MESSAGE], to[MESSAGE];
static struct rdma_cm_id *listener, *server, *client;
static struct ibv_mr *source, *sink;
static atomic_int stop;
static atomic_long done, flushed, odd;

static void must(const char *what, int is)
{
	if (is)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	_exit(1);
}

static struct rdma_addrinfo *address(const char *port, int flags)
{
	struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *found = NULL;
	must("the address", rdma_getaddrinfo("127.0.0.1", port, &hints, &found) == 0);
	return found;
}

static void *serve(void *unused)
{
	must("a request", rdma_get_request(listener, &server) == 0);
	sink = rdma_reg_write(server, to, sizeof to);
	must("the sink", sink != NULL);
	must("accepting", rdma_accept(server, NULL) == 0);
	return unused;
}

static void *post(void *unused)
{
	while (!stop)
		if (rdma_post_write(client, NULL, from, MESSAGE, source, IBV_SEND_SIGNALED, (uintptr_t)to, sink->rkey))
			usleep(10); // the queue is full, or its QP is in error
	return unused;
}

static void *reap(void *unused)
{
	struct ibv_wc wc[4];
	while (!stop) {
		int n = ibv_poll_cq(client->send_cq, 4, wc);
		if (n < 0)
			odd++;
		for (int i = 0; i < n; i++)
			if (wc[i].status == IBV_WC_SUCCESS)
				done++;
			else if (wc[i].status == IBV_WC_WR_FLUSH_ERR)
				flushed++;
			else
				odd++;
	}
	return unused;
}

// progresses waits until the counter has changed.
static void progresses(const char *when)
{
	long was = done;
	for (int i = 0; i < 100000 && done <= was + 10; i++)
		usleep(1000);
	errno = ETIMEDOUT;
	must(when, done > was + 10);
}

// endless posts a list of Writes whose last element points to its first. The queue takes as many as it has room for,
// and all of these complete.
static void endless(void)
{
	struct ibv_sge sge = {(uintptr_t)from, 16, source->lkey};
	struct ibv_send_wr list[2] = {{.next = &list[1], .sg_list = &sge, .num_sge = 1}, {.next = &list[0], .sg_list = &sge, .num_sge = 1}};
	struct ibv_send_wr *bad = NULL;
	struct ibv_wc wc;
	int got = 0;
	for (int i = 0; i < 2; i++) {
		list[i].opcode = IBV_WR_RDMA_WRITE;
		list[i].send_flags = IBV_SEND_SIGNALED;
		list[i].wr.rdma.remote_addr = (uintptr_t)to;
		list[i].wr.rdma.rkey = sink->rkey;
	}
	// siw's library reports where it stopped, and returns the result of the doorbell.
	must("a list of Writes without an end", ibv_post_send(client->qp, list, &bad) == 0);
	must("which stopped at its beginning", bad == &list[0]);
	for (int i = 0; i < 100000 && got < SENDS; i++, usleep(got < SENDS ? 1000 : 0))
		while (ibv_poll_cq(client->send_cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS)
			got++;
	usleep(10000);
	must("as many Writes as there is room for", got == SENDS && ibv_poll_cq(client->send_cq, 1, &wc) == 0);
}

static void forks(void)
{
	for (int i = 0; i < 10; i++) {
		pid_t child = fork();
		if (child == 0) {
			alarm(120);
			struct ibv_pd *pd = ibv_alloc_pd(client->verbs);
			if (pd || errno != EIO)
				_exit(3);
			if (i % 2)
				exit(0); // runs the handlers of atexit, and destructors
			_exit(0);
		}
		int status = -1;
		must("a child", waitpid(child, &status, 0) == child && status == 0);
		progresses("after a child");
	}
}

int main(int argc, char **argv)
{
	const char *how = argc > 2 ? argv[2] : "exit";
	pthread_t accepting, threads[4];
	struct ibv_qp_init_attr attr = {.cap = {SENDS, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC}, same = attr;
	alarm(240);
	must("listening at", rdma_create_ep(&listener, address(argv[1], RAI_PASSIVE), NULL, &attr) == 0);
	must("listening", rdma_listen(listener, 1) == 0);
	must("a thread", pthread_create(&accepting, NULL, serve, NULL) == 0);
	must("an id", rdma_create_ep(&client, address(argv[1], 0), NULL, &same) == 0);
	source = rdma_reg_msgs(client, from, sizeof from);
	must("the source", source != NULL);
	must("connecting", rdma_connect(client, NULL) == 0);
	pthread_join(accepting, NULL);
	endless();
	for (int i = 0; i < 4; i++)
		must("a thread", pthread_create(&threads[i], NULL, i < 2 ? post : reap, NULL) == 0);
	progresses("at first");
	if (strcmp(how, "exit") == 0)
		exit(0);
	if (strcmp(how, "_exit") == 0)
		_exit(0);
	if (strcmp(how, "abort") == 0)
		abort();
	if (strcmp(how, "fork") == 0)
		forks();
	if (strcmp(how, "error") == 0) {
		struct ibv_qp_attr to_error = {.qp_state = IBV_QPS_ERR};
		must("the QP's end", ibv_modify_qp(client->qp, &to_error, IBV_QP_STATE) == 0);
		for (int i = 0; i < 100000 && flushed == 0; i++)
			usleep(1000);
		must("what was flushed", flushed > 0);
	}
	if (strcmp(how, "peer") == 0) { // the other end is destroyed while this one writes to it
		rdma_destroy_ep(server);
		for (int i = 0; i < 100000 && flushed == 0; i++)
			usleep(1000);
		must("what was flushed", flushed > 0);
		odd = 0; // the completion of a Write may report a failure
	}
	stop = 1;
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	must("completions", odd == 0);
	rdma_destroy_ep(client);
	puts("as it must be");
	return 0;
}
