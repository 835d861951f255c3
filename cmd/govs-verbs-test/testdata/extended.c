// Has a word that peers may change with atomic operations, and takes one message. Prints the word and what the message
// was, or that the connection ended before it came.
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(const char *what, int failed)
{
	if (failed) {
		perror(what);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	static struct {
		uint64_t word;
		char message[64];
	} memory = {.word = 40};
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argc > 1 ? argv[1] : "0"))};
	struct rdma_cm_id *listener, *id;
	struct ibv_qp_init_attr attr = {.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1};

	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	must("id", rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP));
	must("bind", rdma_bind_addr(listener, (struct sockaddr *)&addr));
	must("listen", rdma_listen(listener, 1));
	must("request", rdma_get_request(listener, &id));
	must("QP", rdma_create_qp(id, NULL, &attr));
	struct ibv_mr *mr = ibv_reg_mr(id->pd, &memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	must("MR", !mr);
	must("receive", rdma_post_recv(id, NULL, memory.message, sizeof memory.message, mr));
	struct {
		uint64_t addr;
		uint32_t rkey;
	} where = {(uintptr_t)&memory.word, mr->rkey};
	struct rdma_conn_param param = {.private_data = &where, .private_data_len = sizeof where, .responder_resources = 4,
		.initiator_depth = 4};
	must("accept", rdma_accept(id, &param));
	struct ibv_wc wc;
	must("completion", rdma_get_recv_comp(id, &wc) != 1);
	if (wc.status == IBV_WC_SUCCESS)
		printf("a message of %u bytes; the word is %llu\n", wc.byte_len,
			(unsigned long long)memory.word);
	else
		printf("ended: %s; the word is %llu\n", ibv_wc_status_str(wc.status), (unsigned long long)memory.word);
	rdma_disconnect(id);
	rdma_destroy_ep(id);
	ibv_dereg_mr(mr);
	rdma_destroy_ep(listener);
	return 0;
}
