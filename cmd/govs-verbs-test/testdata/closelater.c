// A signal handler closes many descriptors of the device. It can't call the library, so the objects end at the next
// call of a thread, even if the handler's thread has ended. Then nothing of them is left.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { count = 40 };
static int channels[count];

static int opened(void)
{
	int n = 0;
	DIR *all = opendir("/proc/self/fd");
	while (all && readdir(all))
		n++;
	closedir(all);
	return n;
}

static int channel(void)
{
	int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	perror("rdma_cm");
	exit(1);
}

static void on_signal(int sig)
{
	(void)sig;
	for (int i = 0; i < count; i++)
		close(channels[i]);
}

static void *raises(void *unused)
{
	stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
	sigaltstack(&stack, NULL);
	raise(SIGUSR1);
	return unused;
}

int main(void)
{
	struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
	int held = channel();
	sigaction(SIGUSR1, &act, NULL);
	int before = opened();
	for (int ends = 0; ends < 2; ends++) {
		pthread_t thread;
		for (int i = 0; i < count; i++)
			channels[i] = channel();
		if (!ends)
			raises(NULL);
		else if (pthread_create(&thread, NULL, raises, NULL) != 0 || pthread_join(thread, NULL) != 0)
			return 1;
		close(channel());
		int after = opened();
		if (after != before) {
			printf("%d descriptors are open, before there were %d\n", after, before);
			return 1;
		}
	}
	close(held);
	puts("as it must be");
	return 0;
}
