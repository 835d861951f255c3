// A program that unmaps its registered memory while its peer, in the same process, writes there, and while its own
// Sends read from it. With the kernel's device, which pins the pages, nothing fails, and nobody sees the bytes.
#define _GNU_SOURCE
#include "peer.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

enum { size = 1 << 20 };

static char *map(void)
{
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must("memory", memory != MAP_FAILED);
	return memory;
}

// post posts a work request of n bytes.
static void post(struct rdma_cm_id *id, enum ibv_wr_opcode op, struct ibv_mr *from, size_t n, struct ibv_mr *to)
{
	struct ibv_sge sge = {(uintptr_t)from->addr, (uint32_t)n, from->lkey};
	struct ibv_send_wr wr = {.opcode = op, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad;
	if (to) {
		wr.wr.rdma.remote_addr = (uintptr_t)to->addr;
		wr.wr.rdma.rkey = to->rkey;
	}
	must("posting", ibv_post_send(id->qp, &wr, &bad) == 0);
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = {.sin_family = AF_INET};
	struct rdma_event_channel *at = rdma_create_event_channel(), *from = rdma_create_event_channel();
	struct rdma_cm_id *listener, *client, *server;
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
	const char *way = argc > 1 ? argv[1] : "";
	sigset_t all;

	sigfillset(&all);
	if (!strcmp(way, "blocked")) // some threads block all signals and leave them to others
		sigprocmask(SIG_SETMASK, &all, NULL);
	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	must("channels", at && from);
	must("listening", rdma_create_id(at, &listener, NULL, RDMA_PS_TCP) == 0 && rdma_bind_addr(listener, (struct sockaddr *)&addr) == 0 &&
				  rdma_listen(listener, 1) == 0);
	addr.sin_port = rdma_get_src_port(listener);
	must("resolving", rdma_create_id(from, &client, NULL, RDMA_PS_TCP) == 0 && rdma_resolve_addr(client, NULL, (struct sockaddr *)&addr, 5000) == 0);
	next(from, RDMA_CM_EVENT_ADDR_RESOLVED);
	must("a route", rdma_resolve_route(client, 5000) == 0);
	next(from, RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_qp(client);
	must("connecting", rdma_connect(client, &param) == 0);
	server = next(at, RDMA_CM_EVENT_CONNECT_REQUEST);
	make_qp(server);
	char *target = map(), *source = map(), *own = map();
	struct ibv_mr *target_mr = ibv_reg_mr(server->pd, target, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	struct ibv_mr *source_mr = ibv_reg_mr(client->pd, source, size, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *own_mr = ibv_reg_mr(client->pd, own, size, IBV_ACCESS_LOCAL_WRITE);
	must("regions", target_mr && source_mr && own_mr);
	struct ibv_sge sge = {(uintptr_t)target, size, target_mr->lkey};
	struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad;
	for (int i = 0; i < 16; i++)
		must("receives", ibv_post_recv(server->qp, &recv, &bad) == 0);
	must("accepting", rdma_accept(server, &param) == 0);
	next(at, RDMA_CM_EVENT_ESTABLISHED);
	next(from, RDMA_CM_EVENT_ESTABLISHED);
	for (size_t n = 1; n <= size; n *= 32) {
		post(client, IBV_WR_RDMA_WRITE, source_mr, n, target_mr);
		must("a Write", completion(client->send_cq).status == IBV_WC_SUCCESS);
	}
	// After a Read the Writes are placed. One that came later would make its page accessible.
	post(client, IBV_WR_RDMA_READ, source_mr, 1, target_mr);
	must("a Read", completion(client->send_cq).status == IBV_WC_SUCCESS);
	must("unmapping", munmap(target, size) == 0);
	if (!strcmp(way, "blocked"))
		sigprocmask(SIG_BLOCK, &all, NULL);
	if (!strcmp(way, "touch")) // an access by the program itself ends it
		*(volatile char *)target = 1;
	for (size_t n = 1; n <= size; n *= 32) {
		post(client, IBV_WR_RDMA_WRITE, source_mr, n, target_mr);
		must("a Write to what is not there", completion(client->send_cq).status == IBV_WC_SUCCESS);
		post(client, IBV_WR_SEND, source_mr, n, NULL);
		must("a Send to what is not there", completion(client->send_cq).status == IBV_WC_SUCCESS);
		must("its receive", completion(server->recv_cq).status == IBV_WC_SUCCESS);
		post(client, IBV_WR_RDMA_READ, source_mr, n, target_mr);
		must("a Read of what is not there", completion(client->send_cq).status == IBV_WC_SUCCESS);
	}
	must("unmapping", munmap(own, size) == 0);
	for (size_t n = 1; n <= size; n *= 32) {
		post(client, IBV_WR_SEND, own_mr, n, NULL);
		must("a Send of what is not there", completion(client->send_cq).status == IBV_WC_SUCCESS);
		must("its receive", completion(server->recv_cq).status == IBV_WC_SUCCESS);
	}
	must("deregistering", ibv_dereg_mr(target_mr) == 0 && ibv_dereg_mr(source_mr) == 0 && ibv_dereg_mr(own_mr) == 0);
	puts("as it must be");
	return 0;
}
