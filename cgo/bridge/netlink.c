// A socket of NETLINK_RDMA is one of NETLINK_USERSOCK, which the library answers.
#define _GNU_SOURCE
#include "preload.h"

#include <errno.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

PUBLIC int socket(int domain, int type, int protocol)
{
	REAL(socket);
	if (domain != AF_NETLINK || protocol != NETLINK_RDMA)
		return real(domain, type, protocol);
	int fd = real(domain, type, NETLINK_USERSOCK);
	if (fd >= 0)
		adopt_netlink(fd);
	return fd;
}

enum {
	netlink_room = 8192,         // for answers
	netlink_longest = 128 << 10, // request
};

// deliver sends the answers, each after its length, as packets from a second socket. As with the kernel, what the
// program's socket has no room for is lost.
static int deliver(uint32_t port, const unsigned char *answers, long n)
{
	struct sockaddr_nl to = {.nl_family = AF_NETLINK, .nl_pid = port};
	int from = (int)syscall(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_USERSOCK);
	if (from < 0)
		return -1;
	for (long at = 0; at < n;) {
		uint32_t size;
		memcpy(&size, answers + at, sizeof size);
		at += (long)sizeof size;
		if (syscall(SYS_sendto, from, answers + at, (size_t)size, MSG_DONTWAIT, &to, (socklen_t)sizeof to) < 0)
			break;
		at += (long)size;
	}
	syscall(SYS_close, from);
	return 0;
}

// address_of asks for the address of a socket, which the kernel binds when it sends first.
static int address_of(int fd, struct sockaddr_nl *self)
{
	socklen_t length = sizeof *self;
	int failed = getsockname(fd, (struct sockaddr *)self, &length);
	if (failed || self->nl_pid)
		return failed;
	*self = (struct sockaddr_nl){.nl_family = AF_NETLINK};
	(void)bind(fd, (struct sockaddr *)self, sizeof *self); // EINVAL: another thread has
	return getsockname(fd, (struct sockaddr *)self, &length);
}

// Its buffers are not on the stack, which may be small.
ssize_t ask(int fd, const void *request, size_t n)
{
	pthread_testcancel();
	struct library *lib = load();
	struct sockaddr_nl self;
	if (n == 0 || n > netlink_longest) {
		errno = n ? EMSGSIZE : ENODATA;
		return -1;
	}
	if (!lib || address_of(fd, &self) < 0 || !(lib = begin_call())) {
		errno = ECONNREFUSED;
		return -1;
	}
	unsigned char *answers = malloc(netlink_room);
	long got = answers ? lib->netlink(request, n, self.nl_pid, answers, netlink_room) : -ENOBUFS;
	end_call(lib);
	if (got >= 0 && deliver(self.nl_pid, answers, got) < 0)
		got = -errno;
	free(answers);
	return got < 0 ? result(got) : (ssize_t)n;
}

int copy_in(void *to, const void *from, size_t n)
{
	struct iovec own = {to, n}, its = {(void *)from, n};
	ssize_t got = n ? process_vm_readv((pid_t)syscall(SYS_gettid), &own, 1, &its, 1, 0) : 0;
	if (got >= 0 && (size_t)got == n)
		return 0;
	if (got < 0 && (errno == ENOSYS || errno == EPERM)) { // a container forbids the call
		memcpy(to, from, n);
		return 0;
	}
	errno = EFAULT;
	return -1;
}

// gather collects a message in room. It returns its length.
static ssize_t gather(const struct msghdr *message, unsigned char *room)
{
	struct msghdr m;
	struct iovec v;
	size_t n = 0;
	if (copy_in(&m, message, sizeof m) < 0)
		return -1;
	for (size_t i = 0; i < m.msg_iovlen; i++, n += v.iov_len) {
		if (i == most_vectors) {
			errno = EMSGSIZE;
			return -1;
		}
		if (copy_in(&v, m.msg_iov + i, sizeof v) < 0)
			return -1;
		if (v.iov_len > netlink_longest - n) {
			errno = EMSGSIZE;
			return -1;
		}
		if (copy_in(room + n, v.iov_base, v.iov_len) < 0)
			return -1;
	}
	return (ssize_t)n;
}

PUBLIC ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	REAL(sendmsg);
	if (kind_of(fd) != NETLINK)
		return real(fd, message, flags);
	unsigned char *request = malloc(netlink_longest);
	if (!request) {
		errno = ENOBUFS;
		return -1;
	}
	ssize_t n = gather(message, request);
	pthread_cleanup_push(free, request); // the thread may be cancelled
	if (n >= 0)
		n = ask(fd, request, (size_t)n);
	pthread_cleanup_pop(0);
	int saved = errno;
	free(request);
	errno = saved;
	return n;
}

PUBLIC ssize_t sendto(int fd, const void *buf, size_t n, int flags, const struct sockaddr *to, socklen_t length)
{
	REAL(sendto);
	return kind_of(fd) == NETLINK ? ask(fd, buf, n) : real(fd, buf, n, flags, to, length);
}

PUBLIC ssize_t send(int fd, const void *buf, size_t n, int flags)
{
	REAL(send);
	return kind_of(fd) == NETLINK ? ask(fd, buf, n) : real(fd, buf, n, flags);
}
