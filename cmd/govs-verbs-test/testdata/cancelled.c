// Where a thread can be cancelled with the kernel's device, it can be with this one, and nowhere else.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <signal.h>
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

static void asks_all(void)
{
	struct ibv_device_attr_ex all; // the command has the length of a doorbell
	want("asking", ibv_query_device_ex(device, NULL, &all), 0);
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

// A thread that is in a call of the device almost always.
static struct ibv_cq *polled;
static int ends[2];
static volatile int begun;

static void *polls(void *unused)
{
	struct ibv_wc wc;
	for (begun = 1;; begun = 1)
		ibv_poll_cq(polled, 1, &wc);
	return unused;
}

static void *commands_always(void *unused)
{
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (begun = 1;; begun = 1)
		commands();
	return unused;
}

static void on_user(int sig)
{
	int saved = errno;
	(void)!write(ends[1], &sig, 1); // in which the thread can be cancelled
	errno = saved;
}

// Such a thread ends, and the others go on.
static void interrupted(const char *what, void *(*run)(void *))
{
	pthread_t thread;
	void *got = NULL;
	for (int i = 0; i < 10 && !wrong; i++) {
		begun = 0;
		want(what, pthread_create(&thread, NULL, run, NULL), 0);
		while (!begun)
			usleep(100);
		pthread_cancel(thread);
		int left = 30000;
		for (; left && pthread_tryjoin_np(thread, &got) != 0; left--) {
			pthread_kill(thread, SIGUSR1);
			usleep(1000);
		}
		want(what, left > 0 && got == PTHREAD_CANCELED, 1);
	}
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
	try("query_device_ex", asks_all, 1);
	polled = ibv_create_cq(device, 1, NULL, NULL, 0);
	want("a pipe", pipe2(ends, O_NONBLOCK), 0);
	signal(SIGUSR1, on_user);
	interrupted("a handler in a poll", polls);
	interrupted("at once, in a command", commands_always);
	if (wrong)
		return 1; // a thread may go on
	want("destroying", ibv_destroy_cq(polled), 0);
	makes();
	want("the device after that", ibv_close_device(device), 0);
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
