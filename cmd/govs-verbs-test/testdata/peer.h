// Functions for programs that are their own peer over rdma_cm.
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void must(const char *what, int is)
{
	if (is)
		return;
	printf("%s: %s\n", what, strerror(errno));
	exit(1);
}

static struct rdma_cm_id *next(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	must("an event", rdma_get_cm_event(channel, &event) == 0);
	must(rdma_event_str(event->event), event->event == type);
	struct rdma_cm_id *id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

__attribute__((unused)) static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {.cap = {64, 64, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	must("a QP", rdma_create_qp(id, NULL, &attr) == 0);
}

__attribute__((unused)) static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 10;
	int n;
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		must("a completion", time(NULL) < end);
	must("polling", n == 1);
	return wc;
}
