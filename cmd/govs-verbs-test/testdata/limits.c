// The library may raise the limit of files' size while it opens the device. A limit that another thread sets meanwhile
// is not lost, and a child has the program's limit, with which it can open the device.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int opens, stop, wrong;

static void *opens_devices(void *unused)
{
	while (!stop) {
		int fd = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);
		if (fd < 0)
			perror("opening"), wrong = 1;
		close(fd);
		opens++;
	}
	return unused;
}

static rlim_t limit(void)
{
	struct rlimit now;
	getrlimit(RLIMIT_FSIZE, &now);
	return now.rlim_cur;
}

static struct rlimit high; // which is what the library sets

static void set(rlim_t to)
{
	struct rlimit limit = {to, high.rlim_max};
	if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
		perror("setrlimit"), wrong = 1;
}

// another_open waits until an open that was going on has ended.
static void another_open(void)
{
	for (int before = opens; opens < before + 2 && !wrong;)
		usleep(10);
}

int main(void)
{
	const rlim_t low = 1 << 20;
	pthread_t thread;
	getrlimit(RLIMIT_FSIZE, &high);
	set(low);
	pthread_create(&thread, NULL, opens_devices, NULL);
	another_open();
	for (int i = 0; i < 40 && !wrong; i++) {
		set(high.rlim_max);
		another_open();
		if (limit() != high.rlim_max)
			printf("round %d: the limit is %lu, and was removed\n", i, (unsigned long)limit()), wrong = 1;
		set(low);
		for (int k = 0; k < 4; k++) {
			int status = -1;
			pid_t child = fork();
			if (child == 0)
				_exit(limit() != low);
			if (waitpid(child, &status, 0) != child || status != 0)
				printf("round %d: a child has another limit\n", i), wrong = 1;
		}
	}
	stop = 1;
	pthread_join(thread, NULL);
	int status = -1;
	pid_t child = fork();
	if (child == 0)
		_exit(open("/dev/infiniband/uverbs0", O_RDWR) < 0 || limit() != low);
	if (waitpid(child, &status, 0) != child || status != 0)
		printf("a child that opens the device: status %#x\n", status), wrong = 1;
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
