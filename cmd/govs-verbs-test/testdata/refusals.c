// Writes commands to the device that siw refuses, and some that it takes, so that both are recorded
// (exec_record_test.go). The recordings have the answers: the program prints nothing, and fails only
// if it can't open the device or make the objects that commands are about.
#include <fcntl.h>
#include <linux/types.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_cm.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// The memory that commands name is at a fixed address, so that they are the same bytes each time.
static unsigned char *const memory = (unsigned char *)0x10000000;
enum { ANSWER = 0, REGION = 4096, SIZE = 3 * 4096 };

static int device, cm;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t answer(void) { return (uint64_t)(uintptr_t)(memory + ANSWER); }

// send writes a command with a body of n bytes, and returns whether it was taken.
static int send_to(int fd, uint32_t number, const void *body, size_t n, unsigned out_words)
{
	unsigned char buf[1024];
	struct ib_uverbs_cmd_hdr h = {.command = number, .in_words = (__u16)((sizeof h + n) / 4),
		.out_words = (__u16)out_words};
	memcpy(buf, &h, sizeof h);
	memcpy(buf + sizeof h, body, n);
	return write(fd, buf, sizeof h + n) >= 0;
}

// COMMAND writes a command with the given struct. Its answer has room for that many bytes, and for
// what siw adds.
#define COMMAND(number, body, out) send_to(device, IB_USER_VERBS_CMD_##number, &(body), sizeof(body), (out) / 4)

static void extended(uint32_t number, const void *body, size_t n, unsigned out_words)
{
	unsigned char buf[1024];
	struct ib_uverbs_cmd_hdr h = {.command = number | IB_USER_VERBS_CMD_FLAG_EXTENDED,
		.in_words = (__u16)(n / 8), .out_words = (__u16)out_words};
	struct ib_uverbs_ex_cmd_hdr x = {.response = out_words ? answer() : 0};
	memcpy(buf, &h, sizeof h);
	memcpy(buf + sizeof h, &x, sizeof x);
	memcpy(buf + sizeof h + sizeof x, body, n);
	if (write(device, buf, sizeof h + sizeof x + n) < 0)
		return; // most commands
}

// sweep writes each command, and numbers that are no command, filled with zeros: too short and long
// enough, with room for an answer and without.
static void sweep(void)
{
	static const size_t sizes[] = {0, 16, 256};
	unsigned char body[256] = {0};
	uint64_t at = answer();
	memcpy(body, &at, sizeof at);
	for (uint32_t number = 1; number <= 42; number++)
		for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
			for (unsigned out = 0; out <= 64; out += 64)
				send_to(device, number, body, sizes[i], out);
	memset(body, 0, sizeof body);
	for (uint32_t number = 0; number <= 68; number++)
		for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
			for (unsigned out = 0; out <= 32; out += 32)
				extended(number, body, sizes[i], out);
	send_to(device, 0x100, body, 16, 0);
	send_to(device, 0x40000001, body, 16, 8);
}

// The objects.
static uint32_t pd, mr, channel, cq, qp, srq;

static uint32_t word(int i) { return ((uint32_t *)(memory + ANSWER))[i]; }

static struct ib_uverbs_create_qp qp_like(void)
{
	return (struct ib_uverbs_create_qp){.response = answer(), .user_handle = 1, .pd_handle = pd,
		.send_cq_handle = cq, .recv_cq_handle = cq, .max_send_wr = 4, .max_recv_wr = 4,
		.max_send_sge = 1, .max_recv_sge = 1, .qp_type = 2};
}

struct reg_mr {
	struct ib_uverbs_reg_mr cmd;
	uint8_t key, reserved[7];
};

static struct reg_mr mr_like(void)
{
	uint64_t at = (uint64_t)(uintptr_t)(memory + REGION);
	return (struct reg_mr){.cmd = {.response = answer(), .start = at, .length = 4096, .hca_va = at,
		.pd_handle = pd, .access_flags = 7}};
}

static void make(void)
{
	struct ib_uverbs_alloc_pd p = {.response = answer()};
	if (!COMMAND(ALLOC_PD, p, 4))
		die("ALLOC_PD");
	pd = word(0);
	struct reg_mr m = mr_like();
	if (!COMMAND(REG_MR, m, 12 + 8))
		die("REG_MR");
	mr = word(0);
	struct ib_uverbs_create_comp_channel ch = {.response = answer()};
	if (!COMMAND(CREATE_COMP_CHANNEL, ch, 4))
		die("CREATE_COMP_CHANNEL");
	channel = word(0);
	struct ib_uverbs_create_cq c = {.response = answer(), .user_handle = 2, .cqe = 16, .comp_channel = -1};
	if (!COMMAND(CREATE_CQ, c, 8 + 16))
		die("CREATE_CQ");
	cq = word(0);
	struct ib_uverbs_create_srq s = {.response = answer(), .user_handle = 3, .pd_handle = pd, .max_wr = 4,
		.max_sge = 1};
	if (!COMMAND(CREATE_SRQ, s, 16 + 16))
		die("CREATE_SRQ");
	srq = word(0);
	struct ib_uverbs_create_qp q = qp_like();
	if (!COMMAND(CREATE_QP, q, 32 + 32))
		die("CREATE_QP");
	qp = word(0);
}

// absent writes commands for which siw has no function, about objects that exist.
static void absent(void)
{
	struct ib_uverbs_rereg_mr rereg = {.response = answer(), .mr_handle = mr, .flags = 4, .access_flags = 1};
	COMMAND(REREG_MR, rereg, 8);
	struct ib_uverbs_alloc_mw mw = {.response = answer(), .pd_handle = pd, .mw_type = 1};
	COMMAND(ALLOC_MW, mw, 8);
	struct ib_uverbs_dealloc_mw demw = {.mw_handle = mr};
	COMMAND(DEALLOC_MW, demw, 0);
	struct ib_uverbs_resize_cq resize = {.response = answer(), .cq_handle = cq, .cqe = 32};
	COMMAND(RESIZE_CQ, resize, 8);
	struct ib_uverbs_poll_cq poll = {.response = answer(), .cq_handle = cq, .ne = 1};
	COMMAND(POLL_CQ, poll, 8 + 48);
	for (uint32_t solicited = 0; solicited < 2; solicited++) {
		struct ib_uverbs_req_notify_cq notify = {.cq_handle = cq, .solicited_only = solicited};
		COMMAND(REQ_NOTIFY_CQ, notify, 0);
	}
	struct ib_uverbs_attach_mcast attach = {.gid = {0xff, 0x12}, .qp_handle = qp, .mlid = 0xc001};
	COMMAND(ATTACH_MCAST, attach, 0);
	COMMAND(DETACH_MCAST, attach, 0);
	struct ib_uverbs_create_ah ah = {.response = answer(), .pd_handle = pd, .attr = {.port_num = 1}};
	COMMAND(CREATE_AH, ah, 4);
	struct ib_uverbs_destroy_ah deah = {.ah_handle = mr};
	COMMAND(DESTROY_AH, deah, 0);
	struct ib_uverbs_open_xrcd xrcd = {.response = answer(), .fd = (__u32)-1, .oflags = O_CREAT};
	COMMAND(OPEN_XRCD, xrcd, 4);
	struct ib_uverbs_close_xrcd dexrcd = {.xrcd_handle = pd};
	COMMAND(CLOSE_XRCD, dexrcd, 0);
	struct ib_uverbs_create_xsrq xsrq = {.response = answer(), .pd_handle = pd, .max_wr = 4, .max_sge = 1,
		.srq_type = 1, .cq_handle = cq};
	COMMAND(CREATE_XSRQ, xsrq, 16);
	struct ib_uverbs_open_qp open_qp = {.response = answer(), .pd_handle = pd, .qpn = 1, .qp_type = 10};
	COMMAND(OPEN_QP, open_qp, 32);
	struct ib_uverbs_post_recv recv = {.response = answer(), .qp_handle = qp, .wqe_size = 16};
	COMMAND(POST_RECV, recv, 4);
	struct ib_uverbs_post_srq_recv srecv = {.response = answer(), .srq_handle = srq, .wqe_size = 16};
	COMMAND(POST_SRQ_RECV, srecv, 4);
	struct ib_uverbs_post_send send = {.response = answer(), .qp_handle = qp, .wqe_size = 56};
	COMMAND(POST_SEND, send, 4);
	COMMAND(POST_SEND, send, 8);
	send.wqe_size = 55;
	COMMAND(POST_SEND, send, 4);

	struct {
		struct ib_uverbs_create_flow cmd;
		struct ib_uverbs_flow_spec_eth spec;
	} flow = {.cmd = {.qp_handle = qp, .flow_attr = {.num_of_specs = 1, .size = sizeof flow.spec, .port = 1}},
		.spec = {.type = 0x20, .size = sizeof flow.spec}};
	extended(50, &flow, sizeof flow / 8 * 8, 1);
	struct ib_uverbs_destroy_flow deflow = {.flow_handle = qp};
	extended(51, &deflow, sizeof deflow, 0);
	struct ib_uverbs_ex_create_wq wq = {.pd_handle = pd, .cq_handle = cq, .max_wr = 4, .max_sge = 1};
	extended(52, &wq, sizeof wq / 8 * 8, 3);
	struct ib_uverbs_ex_modify_cq moderate = {.cq_handle = cq, .attr_mask = 1, .attr = {1, 1}};
	extended(66, &moderate, sizeof moderate / 8 * 8, 0);
}

// wrong writes commands that siw has, with something wrong in them.
static void wrong(void)
{
	static const uint8_t types[] = {0, 1, 3, 4, 8, 9, 10, 255};
	struct ib_uverbs_create_qp q;
	for (size_t i = 0; i < sizeof types; i++) {
		q = qp_like();
		q.qp_type = types[i];
		COMMAND(CREATE_QP, q, 32 + 32);
	}
#define WRONG_QP(field, value) (q = qp_like(), q.field = (value), COMMAND(CREATE_QP, q, 32 + 32))
	WRONG_QP(pd_handle, 1000);
	WRONG_QP(pd_handle, cq);
	WRONG_QP(send_cq_handle, 1000);
	WRONG_QP(recv_cq_handle, pd);
	WRONG_QP(max_send_wr, 0);
	WRONG_QP(max_send_wr, 32769);
	WRONG_QP(max_recv_wr, 32769);
	WRONG_QP(max_send_sge, 7);
	WRONG_QP(max_recv_sge, 7);
	WRONG_QP(max_inline_data, 81);
	q = qp_like();
	COMMAND(CREATE_QP, q, 32); // no room for what siw adds
	q.is_srq = 1;
	q.srq_handle = 1000;
	COMMAND(CREATE_QP, q, 32 + 32);

	struct reg_mr m;
#define WRONG_MR(field, value) (m = mr_like(), m.cmd.field = (value), COMMAND(REG_MR, m, 12 + 8))
	WRONG_MR(length, 0);
	WRONG_MR(start, 0x20000000);
	WRONG_MR(hca_va, 1);
	WRONG_MR(pd_handle, 1000);
	WRONG_MR(pd_handle, mr);
	WRONG_MR(access_flags, 2);  // REMOTE_WRITE without LOCAL_WRITE
	WRONG_MR(access_flags, 8);  // REMOTE_ATOMIC
	WRONG_MR(access_flags, 64); // ON_DEMAND
	WRONG_MR(access_flags, 1u << 31);
	m = mr_like();
	COMMAND(REG_MR, m, 12);
	send_to(device, IB_USER_VERBS_CMD_REG_MR, &m.cmd, sizeof m.cmd, 5);

	struct ib_uverbs_create_cq c, like = {.response = answer(), .user_handle = 4, .cqe = 16, .comp_channel = -1};
#define WRONG_CQ(field, value) (c = like, c.field = (value), COMMAND(CREATE_CQ, c, 8 + 16))
	WRONG_CQ(cqe, 0);
	WRONG_CQ(cqe, 3276801);
	WRONG_CQ(comp_vector, 2);
	WRONG_CQ(comp_channel, device);
	WRONG_CQ(comp_channel, 1000);
	COMMAND(CREATE_CQ, like, 8);

	struct ib_uverbs_create_srq s, slike = {.response = answer(), .pd_handle = pd, .max_wr = 4, .max_sge = 1};
#define WRONG_SRQ(field, value) (s = slike, s.field = (value), COMMAND(CREATE_SRQ, s, 16 + 16))
	WRONG_SRQ(max_wr, 0);
	WRONG_SRQ(max_wr, 1024001);
	WRONG_SRQ(max_sge, 7);
	WRONG_SRQ(srq_limit, 5);
	WRONG_SRQ(pd_handle, 1000);
	COMMAND(CREATE_SRQ, slike, 16);

	// Handles without an object, and handles of objects of another kind.
	for (int i = 0; i < 2; i++) {
		uint32_t none = i ? pd : 1000;
		struct ib_uverbs_modify_qp mqp = {.qp_handle = none, .attr_mask = 1};
		COMMAND(MODIFY_QP, mqp, 0);
		struct ib_uverbs_query_qp qqp = {.response = answer(), .qp_handle = none};
		COMMAND(QUERY_QP, qqp, 128);
		struct ib_uverbs_post_send ring = {.response = answer(), .qp_handle = none, .wqe_size = 56};
		COMMAND(POST_SEND, ring, 4);
		struct ib_uverbs_modify_srq msrq = {.srq_handle = none, .attr_mask = 2};
		COMMAND(MODIFY_SRQ, msrq, 0);
		struct ib_uverbs_query_srq qsrq = {.response = answer(), .srq_handle = none};
		COMMAND(QUERY_SRQ, qsrq, 16);
		struct ib_uverbs_create_xsrq x = {.response = answer(), .pd_handle = pd, .max_wr = 4, .max_sge = 1,
			.xrcd_handle = none, .cq_handle = none};
		for (x.srq_type = 1; x.srq_type < 4; x.srq_type++)
			COMMAND(CREATE_XSRQ, x, 16 + 16);
	}
	struct ib_uverbs_create_xsrq x = {.response = answer(), .pd_handle = pd, .max_wr = 4, .max_sge = 1,
		.srq_type = 2, .cq_handle = cq};
	COMMAND(CREATE_XSRQ, x, 16 + 16);
	x.srq_type = 0;
	if (COMMAND(CREATE_XSRQ, x, 16 + 16)) { // the type that CREATE_SRQ makes
		struct ib_uverbs_destroy_srq d = {.response = answer(), .srq_handle = word(0)};
		COMMAND(DESTROY_SRQ, d, 4);
	}
	struct ib_uverbs_ex_modify_qp mqp = {.base = {.qp_handle = qp, .attr_mask = 1}};
	extended(IB_USER_VERBS_CMD_MODIFY_QP, &mqp, sizeof mqp, 1);
	for (int bit = 20; bit < 32; bit++) {
		mqp.base.attr_mask = 1u << bit;
		extended(IB_USER_VERBS_CMD_MODIFY_QP, &mqp, sizeof mqp, 1);
	}

	for (uint32_t limit = 0; limit < 6; limit++)
		for (uint32_t mask = 1; mask < 8; mask++) {
			struct ib_uverbs_modify_srq modify = {.srq_handle = srq, .attr_mask = mask, .max_wr = 8,
				.srq_limit = limit};
			COMMAND(MODIFY_SRQ, modify, 0);
		}

	for (uint8_t state = 0; state < 8; state++) {
		struct ib_uverbs_modify_qp modify = {.qp_handle = qp, .attr_mask = 1, .qp_state = state};
		COMMAND(MODIFY_QP, modify, 0);
		struct ib_uverbs_query_qp query = {.response = answer(), .qp_handle = qp, .attr_mask = 1};
		COMMAND(QUERY_QP, query, 128);
	}
	for (int bit = 1; bit < 32; bit++) {
		struct ib_uverbs_modify_qp modify = {.qp_handle = qp, .attr_mask = 1u << bit};
		COMMAND(MODIFY_QP, modify, 0);
	}
	for (uint8_t port = 0; port < 3; port++) {
		struct ib_uverbs_query_port query = {.response = answer(), .port_num = port};
		COMMAND(QUERY_PORT, query, 40);
	}
}

// unmake destroys the objects: too early, twice, and as if they were of another kind.
static void unmake(void)
{
	struct ib_uverbs_dealloc_pd p = {.pd_handle = pd};
	struct ib_uverbs_dereg_mr m = {.mr_handle = mr};
	struct ib_uverbs_destroy_cq c = {.response = answer(), .cq_handle = cq};
	struct ib_uverbs_destroy_qp q = {.response = answer(), .qp_handle = qp};
	struct ib_uverbs_destroy_srq s = {.response = answer(), .srq_handle = srq};
	COMMAND(DEALLOC_PD, p, 0);
	COMMAND(DESTROY_CQ, c, 8);
	for (int i = 0; i < 2; i++) {
		COMMAND(DESTROY_QP, q, 4);
		COMMAND(DESTROY_SRQ, s, 4);
		COMMAND(DEREG_MR, m, 0);
		COMMAND(DESTROY_CQ, c, 8);
		COMMAND(DEALLOC_PD, p, 0);
	}
}

// sweep_cm writes each command of rdma_cm with zeros in it, where there is no id, and some about an
// id in its first state.
static void sweep_cm(void)
{
	static const uint16_t sizes[] = {0, 8, 24, 144, 320};
	unsigned char buf[512];
	for (uint32_t number = 0; number <= 24; number++)
		for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
			struct rdma_ucm_cmd_hdr h = {.cmd = number, .in = sizes[i]};
			memset(buf, 0, sizeof buf);
			memcpy(buf, &h, sizeof h);
			if (write(cm, buf, sizeof h + h.in) < 0)
				continue;
		}
}

int main(void)
{
	if (mmap(memory, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != memory)
		die("mmap");
	device = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);
	cm = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (device < 0 || cm < 0)
		die("/dev/infiniband");
	sweep(); // nothing may come before GET_CONTEXT
	struct ib_uverbs_get_context context = {.response = answer()};
	COMMAND(GET_CONTEXT, context, 8); // no room for what siw adds
	if (!COMMAND(GET_CONTEXT, context, 8 + 8))
		die("GET_CONTEXT");
	COMMAND(GET_CONTEXT, context, 8 + 8);
	sweep();
	make();
	absent();
	wrong();
	unmake();
	sweep_cm();
	return 0;
}
