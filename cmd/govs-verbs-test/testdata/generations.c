// A program, its child, the child of that one and so on open the device. Each closes all of its descriptors before the
// next one, which so gets the same numbers, and none leaves one open that is not the device's.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "want.h"

static int generation(int left)
{
	int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	want("the device", fd >= 0, 1);
	close(fd);
	for (fd = STDERR_FILENO + 1; fd < 256; fd++)
		want("a descriptor that is left", close(fd), -1);
	fflush(stdout);
	pid_t child = left ? fork() : -1;
	int status = 0;
	if (child == 0)
		_exit(generation(left - 1));
	if (child > 0)
		waitpid(child, &status, 0);
	want("the child", status, 0);
	fflush(stdout);
	return wrong;
}

int main(void)
{
	closefrom(STDERR_FILENO + 1);
	if (generation(4) == 0)
		puts("as it must be");
	return wrong;
}
