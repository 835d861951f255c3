// What rdma-unit-test asks of a device about bad handles and lists, through libibverbs: an errno, and the program goes
// on.
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong;

static void want(const char *what, int got, int expected)
{
	if (got < 0)
		got = -got;
	if (got == expected)
		return;
	printf("%s: %s, want %s\n", what, strerror(got), strerror(expected));
	wrong = 1;
}

// refused checks a call that returns an object.
static void refused(const char *what, void *object, int expected)
{
	want(what, object ? 0 : errno, expected);
}

// A handle without an object.
#define GARBLED(object, call)                                                                                \
	do {                                                                                                 \
		uint32_t handle = (object)->handle;                                                          \
		(object)->handle = handle ^ 0x5a5a5a;                                                        \
		call;                                                                                        \
		(object)->handle = handle;                                                                   \
	} while (0)

int main(void)
{
	static char memory[4096];
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *device = list && *list ? ibv_open_device(*list) : NULL;
	if (!device)
		return 2;
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(device);
	struct ibv_cq *cq = ibv_create_cq(device, 64, NULL, channel, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_srq_init_attr shared = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &shared);
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {16, 16, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp_init_attr with = init;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_srq_attr limit = {.srq_limit = 1};
	if (!pd || !channel || !cq || !mr || !srq || !qp)
		return 3;
	with.srq = srq;
	// Objects that others need.
	want("a PD with others", ibv_dealloc_pd(pd), EBUSY);
	want("a channel with a CQ", ibv_destroy_comp_channel(channel), EBUSY);

	GARBLED(pd, want("PD", ibv_dealloc_pd(pd), ENOENT));
	GARBLED(pd, refused("QP with PD", ibv_create_qp(pd, &init), ENOENT));
	GARBLED(pd, refused("SRQ with PD", ibv_create_srq(pd, &shared), ENOENT));
	GARBLED(pd, refused("MR with PD", ibv_reg_mr(pd, memory, 16, 0), ENOENT));
	GARBLED(cq, refused("QP with CQ", ibv_create_qp(pd, &init), ENOENT));
	GARBLED(srq, refused("QP with SRQ", ibv_create_qp(pd, &with), ENOENT));
	GARBLED(mr, want("MR", ibv_dereg_mr(mr), ENOENT));
	GARBLED(qp, want("modifying a QP", ibv_modify_qp(qp, &attr, IBV_QP_STATE), ENOENT));
	GARBLED(qp, want("querying a QP", ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), ENOENT));
	GARBLED(srq, want("modifying an SRQ", ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), ENOENT));
	want("querying an SRQ, which siw's library can't", ibv_query_srq(srq, &limit), EOPNOTSUPP);
	GARBLED(cq, {
		struct ibv_wc wc; // the queue is in memory
		want("polling a CQ", ibv_poll_cq(cq, 1, &wc), 0);
		want("arming a CQ", ibv_req_notify_cq(cq, 0), 0);
	});

	// Lists whose last element points to the first: the queue takes as many as it has room for.
	struct ibv_sge sge = {(uintptr_t)memory, 16, mr->lkey};
	struct ibv_recv_wr recv[2] = {{.next = &recv[1], .sg_list = &sge, .num_sge = 1}, {.next = &recv[0], .sg_list = &sge, .num_sge = 1}};
	struct ibv_recv_wr *bad_recv = NULL;
	want("a list of receives without an end", ibv_post_recv(qp, recv, &bad_recv), ENOMEM);
	want("which ends where there is no room", bad_recv == &recv[0], 1);
	want("the same for an SRQ", ibv_post_srq_recv(srq, recv, &bad_recv), ENOMEM);
	struct ibv_send_wr send[2] = {{.next = &send[1], .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND},
				      {.next = &send[0], .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}};
	struct ibv_send_wr *bad_send = NULL;
	errno = 0;
	want("a list of Sends without an end, or a connection", ibv_post_send(qp, send, &bad_send) ? errno : 0, ENOTCONN);

	// Sizes.
	struct ibv_device_attr dev;
	want("the device", ibv_query_device(device, &dev), 0);
	errno = 0;
	refused("a CQ of 0", ibv_create_cq(device, 0, NULL, NULL, 0), EINVAL);
	refused("a CQ of less", ibv_create_cq(device, -1, NULL, NULL, 0), EINVAL);
	refused("a CQ of too many", ibv_create_cq(device, dev.max_cqe + 1, NULL, NULL, 0), EINVAL);
	refused("a vector that is none", ibv_create_cq(device, 1, NULL, NULL, device->num_comp_vectors), EINVAL);
	refused("a vector below 0", ibv_create_cq(device, 1, NULL, NULL, -1), EINVAL);
	struct ibv_srq_init_attr large = {.attr = {.max_wr = (uint32_t)dev.max_srq_wr + 1, .max_sge = 1}};
	refused("an SRQ of too many", ibv_create_srq(pd, &large), EINVAL);
	want("a larger limit than there is room", ibv_modify_srq(srq, &(struct ibv_srq_attr){.srq_limit = 17}, IBV_SRQ_LIMIT), EINVAL);

	attr.qp_state = IBV_QPS_ERR;
	want("the QP's end", ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	int flushed = 0;
	for (struct ibv_wc wc; ibv_poll_cq(cq, 1, &wc) == 1;)
		flushed += wc.status == IBV_WC_WR_FLUSH_ERR && wc.opcode & IBV_WC_RECV;
	want("receives that were flushed", flushed, 16);
	want("QP", ibv_destroy_qp(qp), 0);
	want("SRQ", ibv_destroy_srq(srq), 0);
	want("CQ", ibv_destroy_cq(cq), 0);
	want("channel", ibv_destroy_comp_channel(channel), 0);
	want("MR", ibv_dereg_mr(mr), 0);
	want("PD", ibv_dealloc_pd(pd), 0);
	want("device", ibv_close_device(device), 0);
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
