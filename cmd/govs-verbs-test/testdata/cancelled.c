// Where a thread can be cancelled with the kernel's device, it can be with this one, and nowhere else.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "want.h"

static struct ibv_context *device;
static int cm, netlink;
static struct {
	struct ib_uverbs_cmd_hdr header;
	struct ib_uverbs_post_send body;
} doorbell;
static char command[8]; // of no meaning

static void opens(void) { (void)!open("/dev/infiniband/rdma_cm", O_RDWR); }
static void opens_at(void) { (void)!openat(AT_FDCWD, "/dev/infiniband/uverbs0", O_RDWR); }
static void closes(void) { close(dup(cm)); }
static void commands(void) { (void)!write(cm, command, sizeof command); }
static void vector(void) { (void)!writev(cm, &(struct iovec){command, sizeof command}, 1); }
static void rings(void) { (void)!write(device->cmd_fd, &doorbell, sizeof doorbell); }
static void asks(void) { send(netlink, command, sizeof command, 0); }
static void asks_to(void) { sendto(netlink, command, sizeof command, 0, NULL, 0); }

static void asks_more(void)
{
	struct iovec v = {command, sizeof command};
	sendmsg(netlink, &(struct msghdr){.msg_iov = &v, .msg_iovlen = 1}, 0);
}

static void makes(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct ibv_cq *cq = ibv_create_cq(device, 1, NULL, NULL, 0);
	struct ibv_wc wc;
	want("a CQ without a completion", ibv_poll_cq(cq, 1, &wc), 0);
	want("destroying", ibv_destroy_cq(cq) + ibv_dealloc_pd(pd), 0);
}

static int returned;

static void *cancelled(void *call)
{
	pthread_cancel(pthread_self());
	((void (*)(void))call)();
	returned = 1;
	return NULL;
}

static void try(const char *what, void (*call)(void), int returns)
{
	pthread_t thread;
	returned = 0;
	want(what, pthread_create(&thread, NULL, cancelled, (void *)call), 0);
	pthread_join(thread, NULL);
	want(what, returned, returns);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	device = list && *list ? ibv_open_device(*list) : NULL;
	cm = open("/dev/infiniband/rdma_cm", O_RDWR);
	netlink = socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA);
	if (!device || cm < 0 || netlink < 0) {
		perror("the device");
		return 1;
	}
	try("open", opens, 0);
	try("openat", opens_at, 0);
	try("close", closes, 0);
	try("a command of rdma_cm", commands, 0);
	try("writev", vector, 0);
	try("a doorbell", rings, 0);
	try("send", asks, 0);
	try("sendto", asks_to, 0);
	try("sendmsg", asks_more, 0);
	try("making objects", makes, 1);
	want("the device after that", ibv_close_device(device), 0);
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
