// Makes calls on descriptors of the device that the device does not have, and polls the descriptors: the results are as
// with the kernel's device.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_netlink.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <unistd.h>

static int wrong;

static void want(const char *what, const char *of, long got, long expected)
{
	if (got == expected)
		return;
	printf("%s of %s: %ld, want %ld\n", what, of, got, expected);
	wrong = 1;
}

static long failed(long got) { return got < 0 ? errno : 0; }

static short polled(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN | POLLOUT | POLLPRI | POLLRDNORM | POLLWRNORM};
	poll(&p, 1, 0);
	return p.revents;
}

// idle checks a descriptor of events while no event is waiting.
static void idle(const char *of, int fd)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLOUT};
	struct timeval now = {0, 0};
	fd_set set;
	int ep = epoll_create1(0);
	want("poll", of, polled(fd), 0);
	FD_ZERO(&set);
	FD_SET(fd, &set);
	want("select", of, select(fd + 1, NULL, &set, NULL, &now), 0);
	want("epoll_ctl", of, epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
	want("epoll_wait", of, epoll_wait(ep, &e, 1, 0), 0);
	want("lseek", of, failed(lseek(fd, 0, SEEK_SET)), ESPIPE);
	close(ep);
}

// device checks calls that a device does not have.
static void device(const char *of, int fd)
{
	char b[64] = "c"; // an unknown command
	struct iovec v = {b, sizeof b};
	want("read", of, failed(read(fd, b, sizeof b)), EINVAL);
	want("readv", of, failed(readv(fd, &v, 1)), EINVAL);
	want("pread", of, failed(pread(fd, b, sizeof b, 0)), ESPIPE);
	want("pwrite", of, failed(pwrite(fd, b, sizeof b, 0)), ESPIPE);
	want("preadv", of, failed(preadv(fd, &v, 1, 0)), ESPIPE);
	want("pwritev", of, failed(pwritev(fd, &v, 1, 0)), ESPIPE);
	want("lseek", of, failed(lseek(fd, 0, SEEK_SET)), ESPIPE);
	want("writev", of, failed(writev(fd, &v, 1)), EINVAL);
	for (int n = -1; n <= 1025; n += 1026)
		want("writev of impossible length", of, failed(writev(fd, (struct iovec *)(uintptr_t)&v, *(volatile int *)&n)), EINVAL);
	want("close_range with unknown flags", of, failed(close_range((unsigned)fd, (unsigned)fd, 1 << 20)), EINVAL);
	want("flags", of, fcntl(fd, F_GETFL) & O_ACCMODE, O_RDWR);
}

// of_files checks requests of ioctl that every descriptor has.
static void of_files(const char *of, int fd)
{
	int on = 1;
	want("an unknown request", of, failed(ioctl(fd, 0x7777, NULL)), ENOTTY);
	want("FIOCLEX", of, failed(ioctl(fd, FIOCLEX)), 0);
	want("the flag of FIOCLEX", of, fcntl(fd, F_GETFD), FD_CLOEXEC);
	want("FIONCLEX", of, failed(ioctl(fd, FIONCLEX)), 0);
	want("the flag of FIONCLEX", of, fcntl(fd, F_GETFD), 0);
	want("FIONBIO", of, failed(ioctl(fd, FIONBIO, &on)), 0);
	want("the flag of FIONBIO", of, fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
	close(fd);
}

// events checks that an event which does not fit stays.
static void events(struct ibv_context *context)
{
	char b[64];
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, channel, 0), *of = NULL;
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = ibv_create_qp(ibv_alloc_pd(context), &init);
	struct ibv_sge nothing = {0};
	struct ibv_recv_wr recv = {.sg_list = &nothing, .num_sge = 1}, *bad;
	struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
	struct pollfd p = {.fd = channel->fd, .events = POLLIN};
	void *which;
	ibv_req_notify_cq(cq, 0);
	want("a receive", "an event", ibv_post_recv(qp, &recv, &bad), 0);
	want("flushing", "an event", ibv_modify_qp(qp, &error, IBV_QP_STATE), 0);
	want("poll", "an event", poll(&p, 1, 60000), 1);
	for (int n = 0; n < 8; n += 7)
		want("a short read", "an event", failed(read(channel->fd, b, (size_t)n)), EINVAL);
	want("write", "an event", failed(write(channel->fd, b, 8)), EBADF);
	want("poll", "an event that was not read", poll(&p, 1, 0), 1);
	want("reading", "an event", poll(&p, 1, 0) == 1 && ibv_get_cq_event(channel, &of, &which) == 0 && of == cq, 1);
	ibv_ack_cq_events(cq, of == cq);
	want("destroying", "its objects", ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_destroy_comp_channel(channel), 0);
}

// reads is a thread that waits for events until their device is closed.
static void *reads(void *fd)
{
	char b[64];
	want("read", "what was closed", failed(read(*(int *)fd, b, sizeof b)), EIO);
	return NULL;
}

// closes is a thread that is cancelled while it closes a descriptor.
static void *closes(void *fd)
{
	pthread_cancel(pthread_self());
	close(*(int *)fd);
	return NULL;
}

// cancelled checks that a descriptor is still the device's after such a thread has not closed it.
static void cancelled(int fd)
{
	pthread_t thread;
	char b[64] = "c"; // an unknown command
	pthread_create(&thread, NULL, closes, &fd);
	pthread_join(thread, NULL);
	want("fcntl", "what a cancelled thread has not closed", fcntl(fd, F_GETFD), 0);
	want("write", "what a cancelled thread has not closed", failed(write(fd, b, sizeof b)), EINVAL);
	want("close", "what a cancelled thread has not closed", close(fd), 0);
}

// unbound checks that a netlink socket without an address gets answers to its requests.
static void unbound(void)
{
	struct nlmsghdr ask = {sizeof ask, RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET), NLM_F_REQUEST | NLM_F_DUMP, 1, 0};
	struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA);
	struct pollfd p = {.fd = fd, .events = POLLIN};
	want("sendto", "netlink", sendto(fd, &ask, sizeof ask, 0, (struct sockaddr *)&kernel, sizeof kernel), sizeof ask);
	want("poll", "netlink", poll(&p, 1, 60000), 1);
	// Answers that nobody reads are lost, and nobody waits for room.
	for (int i = 0; i < 3000; i++)
		want("sendto", "netlink", sendto(fd, &ask, sizeof ask, 0, (struct sockaddr *)&kernel, sizeof kernel), sizeof ask);
	close(fd);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && *list ? ibv_open_device(*list) : NULL;
	struct rdma_event_channel *cm = rdma_create_event_channel();
	struct ibv_comp_channel *channel = context ? ibv_create_comp_channel(context) : NULL;
	if (!cm || !channel) {
		perror("opening");
		return 1;
	}
	device("uverbs", context->cmd_fd);
	device("rdma_cm", cm->fd);
	of_files("uverbs", dup(context->cmd_fd));
	cancelled(dup(context->cmd_fd));
	events(context);
	unbound();
	want("poll", "uverbs", polled(context->cmd_fd), POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM);
	idle("rdma_cm", cm->fd);
	idle("completions", channel->fd);
	idle("asynchronous events", context->async_fd);
	want("flags", "completions", fcntl(channel->fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	want("flags", "asynchronous events", fcntl(context->async_fd, F_GETFL) & O_ACCMODE, O_RDONLY);

	// The event of a resolution.
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	rdma_create_id(cm, &id, NULL, RDMA_PS_TCP);
	want("resolving", "an address", rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000), 0);
	struct pollfd p = {.fd = cm->fd, .events = POLLIN};
	poll(&p, 1, -1);
	want("poll", "rdma_cm with an event", polled(cm->fd), POLLIN | POLLRDNORM);
	want("the event", "rdma_cm", rdma_get_cm_event(cm, &event), 0);
	rdma_ack_cm_event(event);
	want("poll", "rdma_cm after it", polled(cm->fd), 0);
	pthread_t threads[2];
	int async = dup(context->async_fd);
	pthread_create(&threads[0], NULL, reads, &channel->fd);
	pthread_create(&threads[1], NULL, reads, &async);
	want("closing", "the device", ibv_close_device(context), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
