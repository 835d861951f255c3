// A program that closes all descriptors, or uses numbers that it believes to be free, does not close the library's own.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <rdma/rdma_user_cm.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "refuse.h"

enum { addr_resolved }; // RDMA_CM_EVENT_ADDR_RESOLVED

static int wrong;

static void want(const char *what, int is)
{
	if (is)
		return;
	printf("%s: %s\n", what, strerror(errno));
	wrong = 1;
}

// command writes a command of rdma_cm.
static int command(int fd, unsigned number, const void *body, size_t size, size_t room)
{
	struct {
		struct rdma_ucm_cmd_hdr header;
		char body[256];
	} c = {.header = {number, (__u16)size, (__u16)room}};
	memcpy(c.body, body, size);
	return write(fd, &c, sizeof c.header + size) == (ssize_t)(sizeof c.header + size);
}

static __u32 create(int fd)
{
	struct rdma_ucm_create_id_resp made = {0};
	struct rdma_ucm_create_id c = {.uid = 1, .response = (uintptr_t)&made, .ps = RDMA_PS_TCP};
	want("an id", command(fd, RDMA_USER_CM_CMD_CREATE_ID, &c, sizeof c, sizeof made));
	return made.id;
}

// use listens, and resolves an address with the help of the engine's threads. It does not use librdmacm, which would go
// on with closed descriptors.
static void use(const char *after)
{
	struct rdma_ucm_event_resp event = {0};
	struct rdma_ucm_get_event get = {(uintptr_t)&event};
	struct sockaddr_in addr = {.sin_family = AF_INET};
	int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);

	printf("after %s:\n", after);
	addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	want("rdma_cm", fd >= 0);
	struct rdma_ucm_bind_ip bind = {.id = create(fd)};
	memcpy(&bind.addr, &addr, sizeof addr);
	struct rdma_ucm_listen listen = {bind.id, 1};
	want("a listener", command(fd, RDMA_USER_CM_CMD_BIND_IP, &bind, sizeof bind, 0) && command(fd, RDMA_USER_CM_CMD_LISTEN, &listen, sizeof listen, 0));
	addr.sin_port = htons(9);
	struct rdma_ucm_resolve_ip resolve = {.id = create(fd), .timeout_ms = 2000};
	memcpy(&resolve.dst_addr, &addr, sizeof addr);
	want("resolving", command(fd, RDMA_USER_CM_CMD_RESOLVE_IP, &resolve, sizeof resolve, 0) && command(fd, RDMA_USER_CM_CMD_GET_EVENT, &get, sizeof get, sizeof event));
	want("the event", event.event == addr_resolved && event.status == 0);
	close(fd);
}

static int is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

int main(void)
{
	close(0);
	use("nothing");
	want("none of the library's has the number 0", !is_open(0));
	closefrom(3);
	use("closefrom");
	want("close_range", close_range(3, 500, 0) == 0);
	use("close_range");
	want("a range of none", close_range(9, 8, 0) < 0 && errno == EINVAL);
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	use("a loop");
	int null = open("/dev/null", O_RDONLY), busy = 0, taken = 0;
	for (int fd = 3; fd < 100; fd++) {
		if (fd == null)
			continue;
		int got = dup2(null, fd);
		want("dup2", got == fd || (got < 0 && errno == EBUSY));
		busy += got < 0;
		taken += got == fd;
	}
	want("some descriptors are the library's", busy > 0 && taken > 0);
	use("dup2");
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) { // where there is no close_range
		use("fork");
		refuse(SYS_close_range, EPERM);
		null = open("/dev/null", O_RDONLY);
		closefrom(3);
		int left = 0;
		for (int fd = 3; fd < 100; fd++)
			left += is_open(fd);
		want("the program's own is closed", !is_open(null));
		want("the library's own are not", left > 0);
		use("closefrom without close_range");
		fflush(stdout);
		_exit(wrong);
	}
	int status = -1;
	want("the child", waitpid(child, &status, 0) == child && status == 0);
	// The program's own descriptors are closed.
	closefrom(3);
	for (int fd = 3; fd < 100; fd++)
		if (is_open(fd))
			busy--;
	want("as many are open as can't be had", busy == 0);
	puts(wrong ? "wrong" : "as it must be");
	fflush(stdout);
	if (close_range(0, ~0u, 0) != 0 || is_open(1))
		return 3;
	return wrong;
}
