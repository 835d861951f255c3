// Calls that the kernel's devices refuse. The descriptor of uverbs is a file in memory, and that of rdma_cm a socket,
// which would not.
#define _GNU_SOURCE
#include "preload.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <rdma/ib_user_verbs.h>

static int is_device(int fd)
{
	enum kind kind = kind_of(fd);
	return kind == UVERBS || kind == CM;
}

static ssize_t refuse(int with)
{
	errno = with;
	return -1;
}

// An event for which there is no room stays, and the end of the events is an error: the device was closed.
PUBLIC ssize_t read(int fd, void *to, size_t n)
{
	REAL(read);
	enum kind kind = kind_of(fd);
	ssize_t got = 0;
	if (kind != EVENTS)
		return kind == UVERBS || kind == CM ? refuse(EINVAL) : real(fd, to, n);
	if (n < sizeof(struct ib_uverbs_async_event_desc))
		got = recv(fd, NULL, 0, MSG_PEEK | MSG_TRUNC); // the length of the next event; it waits as read does
	if (got > (ssize_t)n)
		return refuse(EINVAL);
	if (got >= 0)
		got = real(fd, to, n);
	return got ? got : refuse(EIO);
}

ssize_t __read_chk(int fd, void *to, size_t n, size_t room);
PUBLIC ssize_t __read_chk(int fd, void *to, size_t n, size_t room)
{
	REAL(__read_chk);
	return n <= room && kind_of(fd) != NONE ? read(fd, to, n) : real(fd, to, n, room);
}

PUBLIC ssize_t readv(int fd, const struct iovec *v, int count)
{
	REAL(readv);
	return is_device(fd) ? refuse(EINVAL) : real(fd, v, count);
}

// writev is a command for each vector, as with the kernel.
PUBLIC ssize_t writev(int fd, const struct iovec *v, int count)
{
	REAL(writev);
	enum kind kind = kind_of(fd);
	if (kind == NONE)
		return real(fd, v, count);
	if (kind == NETLINK)
		return sendmsg(fd, &(struct msghdr){.msg_iov = (struct iovec *)v, .msg_iovlen = (size_t)count}, 0);
	ssize_t sum = 0;
	for (int i = 0; i < count; i++) {
		struct iovec one;
		ssize_t n = copy_in(&one, v + i, sizeof one) < 0 ? -1 : write(fd, one.iov_base, one.iov_len);
		if (n < 0)
			return sum ? sum : n;
		sum += n;
	}
	return sum;
}

// A device has no place in it.
#define AT(name, type, pointer, count)                                                                       \
	PUBLIC ssize_t name(int fd, pointer buf, count n, type at)                                           \
	{                                                                                                    \
		REAL(name);                                                                                  \
		return is_device(fd) ? refuse(ESPIPE) : real(fd, buf, n, at);                                \
	}
AT(pread, off_t, void *, size_t)
AT(pread64, off64_t, void *, size_t)
AT(pwrite, off_t, const void *, size_t)
AT(pwrite64, off64_t, const void *, size_t)
AT(preadv, off_t, const struct iovec *, int)
AT(preadv64, off64_t, const struct iovec *, int)
AT(pwritev, off_t, const struct iovec *, int)
AT(pwritev64, off64_t, const struct iovec *, int)

#define SEEK(name, type)                                                                                     \
	PUBLIC type name(int fd, type at, int whence)                                                        \
	{                                                                                                    \
		REAL(name);                                                                                  \
		return is_device(fd) ? refuse(ESPIPE) : real(fd, at, whence);                                \
	}
SEEK(lseek, off_t)
SEEK(lseek64, off64_t)
