// Calls that the kernel's devices refuse. The descriptor of uverbs is a file in memory, and that of rdma_cm a socket,
// which would not.
#define _GNU_SOURCE
#include "preload.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <rdma/ib_user_verbs.h>

static ssize_t refuse(int with)
{
	errno = with;
	return -1;
}

// refused returns the errno with which a call on a descriptor fails, or 0 if libc is to make the call. For a parent's
// descriptor it is EIO, because the child must not change or wait at the parent's files.
static int refused(int fd, int with)
{
	enum kind kind = kind_of(fd);
	return kind == DEAD ? EIO : kind == UVERBS || kind == CM ? with : 0;
}

// An event for which there is no room stays, and the end of the events is an error: the device was closed.
PUBLIC ssize_t read(int fd, void *to, size_t n)
{
	REAL(read);
	int with = refused(fd, EINVAL);
	ssize_t got = 0;
	if (with)
		return refuse(with);
	if (kind_of(fd) != EVENTS)
		return real(fd, to, n);
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
	int with = refused(fd, EINVAL);
	return with ? refuse(with) : real(fd, v, count);
}

// writev is a command for each vector, as with the kernel.
PUBLIC ssize_t writev(int fd, const struct iovec *v, int count)
{
	REAL(writev);
	enum kind kind = kind_of(fd);
	if (kind == NONE)
		return real(fd, v, count);
	if (count < 0 || count > most_vectors)
		return refuse(EINVAL);
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
		int with = refused(fd, ESPIPE);                                                              \
		return with ? refuse(with) : real(fd, buf, n, at);                                           \
	}
AT(pread, off_t, void *, size_t)
AT(pread64, off64_t, void *, size_t)
AT(pwrite, off_t, const void *, size_t)
AT(pwrite64, off64_t, const void *, size_t)
AT(preadv, off_t, const struct iovec *, int)
AT(preadv64, off64_t, const struct iovec *, int)
AT(pwritev, off_t, const struct iovec *, int)
AT(pwritev64, off64_t, const struct iovec *, int)

// What fortified programs call instead.
#define AT_CHK(name, type, plain)                                                                            \
	ssize_t name(int fd, void *buf, size_t n, type at, size_t room);                                     \
	PUBLIC ssize_t name(int fd, void *buf, size_t n, type at, size_t room)                               \
	{                                                                                                    \
		REAL(name);                                                                                  \
		return n <= room && kind_of(fd) != NONE ? plain(fd, buf, n, at) : real(fd, buf, n, at, room); \
	}
AT_CHK(__pread_chk, off_t, pread)
AT_CHK(__pread64_chk, off64_t, pread64)

#define SEEK(name, type)                                                                                     \
	PUBLIC type name(int fd, type at, int whence)                                                        \
	{                                                                                                    \
		REAL(name);                                                                                  \
		int with = refused(fd, ESPIPE);                                                              \
		return with ? refuse(with) : real(fd, at, whence);                                           \
	}
SEEK(lseek, off_t)
SEEK(lseek64, off64_t)
