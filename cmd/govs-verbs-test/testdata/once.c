// A program that makes objects of each kind, on one port, and ends without closing them.
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void must(const char *what, int is)
{
	if (is)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

int main(int argc, char **argv)
{
	static char memory[8192];
	struct sockaddr_in addr = {.sin_family = AF_INET};
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener;

	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	addr.sin_port = htons((unsigned short)(argc > 1 ? atoi(argv[1]) : 0));
	must("an event channel", channel != NULL);
	must("a listener", rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	must("its address", rdma_bind_addr(listener, (struct sockaddr *)&addr) == 0);
	must("listening", rdma_listen(listener, 1) == 0);
	struct ibv_context *device = listener->verbs;
	struct ibv_comp_channel *events = ibv_create_comp_channel(device);
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct ibv_cq *cq = ibv_create_cq(device, 1 << 12, NULL, events, 0);
	must("a PD and a CQ", pd && cq);
	struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .cap = {64, 64, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	must("a QP", ibv_create_qp(pd, &attr) != NULL);
	must("an MR", ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE) != NULL);
	_exit(0);
}
