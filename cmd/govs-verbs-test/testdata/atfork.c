// A function of pthread_atfork that was registered before the device was opened closes it in the child. Its number is
// free there, and the next file that gets it is only a file.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int fd = -1;

static void in_child(void) { close(fd); }

int main(void)
{
	int status = -1;
	pthread_atfork(NULL, NULL, in_child);
	fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		perror("rdma_cm");
		return 1;
	}
	pid_t child = fork();
	if (child == 0) {
		FILE *file;
		do // numbers below it may be free, too
			file = tmpfile();
		while (file && fileno(file) < fd);
		_exit(file && fileno(file) == fd && write(fd, "text", 4) == 4 ? 0 : 1);
	}
	if (waitpid(child, &status, 0) != child || status) {
		printf("the child: status %#x\n", status);
		return 1;
	}
	puts("as it must be");
	return 0;
}
