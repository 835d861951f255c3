// changing ADDR PORT writes memory to a peer, both in this program, while a thread changes that memory.
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call) do { if (call) { perror(#call); exit(1); } } while (0)
#define SIZE (1 << 20)

static char from[SIZE], to[SIZE];
static struct rdma_cm_id *listener, *server;

static void *change(void *unused)
{
	for (unsigned n = 0;; n++)
		((volatile char *)from)[n * 4096 % SIZE] = n;
	return unused;
}

static void *serve(void *unused)
{
	OK(rdma_get_request(listener, &server));
	OK(rdma_accept(server, NULL));
	return unused;
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *addr;
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 0 }, .sq_sig_all = 1 }, again = attr;
	struct rdma_cm_id *client;
	pthread_t thread;

	if (argc != 3)
		return 2;
	OK(rdma_getaddrinfo(argv[1], argv[2], &hints, &addr));
	OK(rdma_create_ep(&listener, addr, NULL, &attr));
	OK(rdma_listen(listener, 1));
	OK(pthread_create(&thread, NULL, serve, NULL));
	hints.ai_flags = 0;
	OK(rdma_getaddrinfo(argv[1], argv[2], &hints, &addr));
	OK(rdma_create_ep(&client, addr, NULL, &again));
	OK(rdma_connect(client, NULL));
	OK(pthread_join(thread, NULL));
	struct ibv_mr *source = rdma_reg_msgs(client, from, SIZE), *sink = rdma_reg_write(server, to, SIZE);
	OK(!source || !sink);
	OK(pthread_create(&thread, NULL, change, NULL));
	for (int i = 0; i < 100; i++) {
		struct ibv_wc wc;

		OK(rdma_post_write(client, NULL, from, SIZE, source, 0, (uintptr_t)to, sink->rkey));
		OK(rdma_get_send_comp(client, &wc) < 0);
		if (wc.status) {
			printf("write %d: %s\n", i, ibv_wc_status_str(wc.status));
			return 1;
		}
	}
	puts("100 writes");
	return 0;
}
