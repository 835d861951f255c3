// The numbers 0, 1 and 2 are the program's. The library has no descriptor there, although the program has closed them.
// libc puts another file there in daemon, login_tty and forkpty. If these were the device, or a parent's, they are the
// file after that.
#define _GNU_SOURCE
#include "peer.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

static int wrong, result; // a descriptor

static void want(const char *what, const char *of, long got, long expected)
{
	if (got == expected)
		return;
	dprintf(result, "%s of %s: %ld, want %ld: %s\n", what, of, got, expected, strerror(errno));
	wrong = 1;
}

// is_device reports whether a descriptor is the device, which refuses an unknown command.
static int is_device(int fd)
{
	const unsigned unknown[] = {99, 0};
	return write(fd, unknown, sizeof unknown) < 0 && errno == EINVAL;
}

static void are_closed(const char *after)
{
	for (int fd = 0; fd < 3; fd++)
		want("a descriptor", after, fcntl(fd, F_GETFD), -1);
}

static void close_all(void)
{
	for (int fd = 0; fd < 3; fd++)
		close(fd);
}

// connects makes a connection within the program, while its numbers are closed.
static void connects(void)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
	struct rdma_cm_id *listener, *client;
	must("binding", channel && rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0 &&
				rdma_bind_addr(listener, (struct sockaddr *)&addr) == 0);
	close_all();
	must("listening", rdma_listen(listener, 1) == 0);
	are_closed("listening");
	addr.sin_port = rdma_get_src_port(listener);
	must("resolving", rdma_create_id(channel, &client, NULL, RDMA_PS_TCP) == 0 &&
				  rdma_resolve_addr(client, NULL, (struct sockaddr *)&addr, 5000) == 0);
	next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	must("a route", rdma_resolve_route(client, 5000) == 0);
	next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	struct ibv_cq *cq = ibv_create_cq(client->verbs, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	must("a QP", rdma_create_qp(client, ibv_alloc_pd(client->verbs), &attr) == 0);
	must("connecting", rdma_connect(client, &param) == 0);
	struct rdma_cm_id *server = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	are_closed("connecting");
	must("rejecting", rdma_reject(server, NULL, 0) == 0);
	next(channel, RDMA_CM_EVENT_REJECTED);
	are_closed("rejecting");
}

// leaves_numbers: the library starts in these children.
static void leaves_numbers(void)
{
	for (int open_before = 0; open_before < 2; open_before++) {
		int status = -1;
		pid_t child = fork();
		if (child == 0) {
			if (open_before)
				connects();
			else {
				close_all();
				int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
				want("the first number", "the program", fd, 0);
				close(fd);
				are_closed("the start");
			}
			_exit(wrong);
		}
		want("the child", "closed numbers", waitpid(child, &status, 0) == child && status == 0, 1);
	}
}

static void are_files(const char *of)
{
	for (int fd = 0; fd < 3; fd++)
		want("writing a file", of, write(fd, "text", 4), 4);
}

// devices puts the device at 0, 1 and 2.
static int devices(void)
{
	int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	for (int to = 0; to < 3; to++)
		want("dup2", "the device", dup2(fd, to), to);
	return fd;
}

// becomes_daemon leaves the parent's device at these numbers if it keeps the files.
static void becomes_daemon(int keeps)
{
	int ends[2];
	char got[8] = "";
	want("pipe", "the test", pipe(ends), 0);
	pid_t child = fork();
	if (child == 0) {
		want("daemon", "a child", daemon(1, keeps), 0); // whose parent ends
		if (keeps)
			want("the parent's device", "daemon", write(1, "text", 4) < 0 ? errno : 0, EIO);
		else
			are_files("daemon");
		_exit(write(ends[1], wrong ? "wrong" : "right", 5) != 5);
	}
	close(ends[1]);
	want("reading", "the child", read(ends[0], got, 5), 5);
	want("the verdict", "the child", strcmp(got, "right"), 0);
	waitpid(child, NULL, 0);
	close(ends[0]);
}

static void logs_in(void)
{
	int terminal, ours, status = -1;
	pid_t child = fork();
	if (child == 0) {
		want("openpty", "the test", openpty(&terminal, &ours, NULL, NULL, NULL), 0);
		int fd = devices();
		setsid();
		want("login_tty", "no terminal", login_tty(fd) < 0 ? errno : 0, ENOTTY);
		want("it is the device", "that", is_device(1), 1);
		want("login_tty", "a terminal", login_tty(ours), 0);
		are_files("login_tty");
		want("it is the device", "another number", is_device(fd), 1);
		_exit(wrong);
	}
	want("the child", "login_tty", waitpid(child, &status, 0) == child && status == 0, 1);
	child = forkpty(&terminal, NULL, NULL, NULL);
	if (child == 0) {
		are_files("forkpty");
		_exit(wrong);
	}
	want("the child", "forkpty", waitpid(child, &status, 0) == child && status == 0, 1);
}

int main(void)
{
	result = fcntl(1, F_DUPFD_CLOEXEC, 100);
	leaves_numbers();
	int fd = devices();
	becomes_daemon(0);
	becomes_daemon(1);
	logs_in();
	want("it is the device", "the parent", is_device(0) && is_device(fd), 1);
	dprintf(result, wrong ? "wrong\n" : "as it must be\n");
	return wrong;
}
