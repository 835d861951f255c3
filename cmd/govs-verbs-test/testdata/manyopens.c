// A device is opened many times, and closed in any order, with and without objects of its own; threads make and destroy
// objects of all kinds at once; and descriptors are waited for with select and epoll.
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

#define OPENS 60
#define THREADS 8

static struct ibv_device **list;
static struct ibv_context *shared;

static void must(const char *what, int is)
{
	if (is)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	_exit(1);
}

struct objects {
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char memory[4096];
};

static void make(struct ibv_context *device, struct objects *o)
{
	must("a PD", (o->pd = ibv_alloc_pd(device)) != NULL);
	must("a channel", (o->channel = ibv_create_comp_channel(device)) != NULL);
	must("a CQ", (o->cq = ibv_create_cq(device, 16, NULL, o->channel, 0)) != NULL);
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = 8, .max_sge = 1}};
	must("an SRQ", (o->srq = ibv_create_srq(o->pd, &srq)) != NULL);
	struct ibv_qp_init_attr qp = {.send_cq = o->cq, .recv_cq = o->cq, .srq = o->srq, .cap = {4, 0, 1, 0, 0}, .qp_type = IBV_QPT_RC};
	must("a QP", (o->qp = ibv_create_qp(o->pd, &qp)) != NULL);
	must("an MR", (o->mr = ibv_reg_mr(o->pd, o->memory, sizeof o->memory, IBV_ACCESS_LOCAL_WRITE)) != NULL);
}

static void destroy(struct objects *o)
{
	must("the MR", ibv_dereg_mr(o->mr) == 0);
	must("the QP", ibv_destroy_qp(o->qp) == 0);
	must("the SRQ", ibv_destroy_srq(o->srq) == 0);
	must("the CQ", ibv_destroy_cq(o->cq) == 0);
	must("the channel", ibv_destroy_comp_channel(o->channel) == 0);
	must("the PD", ibv_dealloc_pd(o->pd) == 0);
}

static void *busy(void *unused)
{
	for (int i = 0; i < 30; i++) {
		struct objects o;
		struct ibv_context *own = i % 3 ? shared : ibv_open_device(*list);
		must("opening in a thread", own != NULL);
		make(own, &o);
		destroy(&o);
		if (own != shared)
			must("closing in a thread", ibv_close_device(own) == 0);
	}
	return unused;
}

// ready waits for a descriptor with select and with epoll.
static int ready(int fd, int milliseconds)
{
	struct timeval time = {milliseconds / 1000, milliseconds % 1000 * 1000};
	struct epoll_event event = {.events = EPOLLIN};
	fd_set set;
	FD_ZERO(&set);
	FD_SET(fd, &set);
	int epoll = epoll_create1(0), by_select = select(fd + 1, &set, NULL, NULL, &time);
	must("epoll", epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	int by_epoll = epoll_wait(epoll, &event, 1, by_select ? 1000 : 0);
	close(epoll);
	errno = EPROTO;
	must("select and epoll agree", by_select == by_epoll);
	return by_select;
}

// wait_for_events waits for a completion, of a flushed receive, and for an event of rdma_cm by their descriptors.
static void wait_for_events(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(shared);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(shared);
	struct ibv_cq *cq = ibv_create_cq(shared, 4, NULL, channel, 0), *which;
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_sge sge = {0, 0, 0}; // no message comes
	struct ibv_recv_wr recv = {.wr_id = 7, .sg_list = &sge, .num_sge = 1}, *bad;
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
	void *context;
	must("a QP", qp != NULL);
	must("arming", ibv_req_notify_cq(cq, 0) == 0);
	must("no completion yet", !ready(channel->fd, 20));
	must("a receive", ibv_post_recv(qp, &recv, &bad) == 0);
	must("its QP's end", ibv_modify_qp(qp, &error, IBV_QP_STATE) == 0);
	must("a completion", ready(channel->fd, 5000));
	must("the event", ibv_get_cq_event(channel, &which, &context) == 0 && which == cq);
	ibv_ack_cq_events(cq, 1);
	must("no more completions", !ready(channel->fd, 20));
	must("the QP", ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);

	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *to;
	must("an id", events && rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
	must("no event yet", !ready(events->fd, 20));
	must("an address", rdma_getaddrinfo("127.0.0.1", "1", &hints, &to) == 0);
	must("resolving", rdma_resolve_addr(id, NULL, to->ai_dst_addr, 1000) == 0);
	must("an event", ready(events->fd, 5000));
}

int main(void)
{
	static struct ibv_context *opened[OPENS];
	static struct objects objects[OPENS];
	pthread_t threads[THREADS];
	alarm(240);
	list = ibv_get_device_list(NULL);
	must("a device", list && *list);
	for (int i = 0; i < OPENS; i++) {
		must("opening", (opened[i] = ibv_open_device(*list)) != NULL);
		make(opened[i], &objects[i]);
	}
	// 7 and OPENS have no common divisor. Two of three are closed with their objects.
	for (int i = 0, at = 0; i < OPENS; i++, at = (at + 7) % OPENS) {
		if (at % 3 == 0)
			destroy(&objects[at]);
		must("closing", ibv_close_device(opened[at]) == 0);
	}
	must("opening once more", (shared = ibv_open_device(*list)) != NULL);
	for (int i = 0; i < THREADS; i++)
		must("a thread", pthread_create(&threads[i], NULL, busy, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	wait_for_events();
	puts("as it must be");
	return 0;
}
