// A program that is built with _FORTIFY_SOURCE calls other functions of libc, which know how much room there is. They
// find the device, too.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "want.h"

static long failed(long got) { return got < 0 ? errno : 0; }

int main(void)
{
	char b[16], name[PATH_MAX];
	volatile size_t n = sizeof b; // which the compiler must not know
	int fd = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);
	want("open", fd >= 0, 1);
	want("read", failed(read(fd, b, n)), EINVAL);
	want("pread", failed(pread(fd, b, n, 0)), ESPIPE);
	want("pread64", failed(pread64(fd, b, n, 0)), ESPIPE);
	want("readlink of no link", failed(readlink("/sys/class/infiniband/siw0/node_type", b, n)), EINVAL);
	want("readlinkat of no link", failed(readlinkat(AT_FDCWD, "/dev/infiniband/uverbs0", b, n)), EINVAL);
	want("realpath", realpath("/dev//infiniband/./uverbs0", name) != NULL && strcmp(name, "/dev/infiniband/uverbs0") == 0, 1);
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
