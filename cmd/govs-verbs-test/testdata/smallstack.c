// Threads with the smallest possible stacks list the device, open it, and write commands to it.
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <limits.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>

static void *list(void *with_device)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	if (!devices || !*devices)
		return "no device";
	struct ibv_context *context = ibv_open_device(*devices);
	if (!context)
		return "it can't be opened";
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	static char memory[4096];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_wc wc;
	if (!pd || !cq || !mr || ibv_poll_cq(cq, 1, &wc) != 0)
		return "a command failed";
	struct rdma_event_channel *cm = rdma_create_event_channel();
	struct rdma_cm_id *id;
	if (!cm || rdma_create_id(cm, &id, NULL, RDMA_PS_TCP))
		return "rdma_cm failed";
	rdma_destroy_id(id);
	rdma_destroy_event_channel(cm);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	ibv_free_device_list(devices);
	(void)with_device;
	return NULL;
}

int main(void)
{
	pthread_attr_t attr;
	int wrong = 0;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN > 16384 ? (size_t)PTHREAD_STACK_MIN : 16384);
	for (int i = 0; i < 3; i++) {
		pthread_t thread;
		void *got;
		if (pthread_create(&thread, &attr, list, NULL) != 0 || pthread_join(thread, &got) != 0)
			return 1;
		if (got)
			printf("%s\n", (char *)got), wrong = 1;
	}
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
