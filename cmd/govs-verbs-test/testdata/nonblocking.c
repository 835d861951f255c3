// A thread asks for events of rdma_cm without waiting, and ends when another thread has closed the descriptor.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_user_cm.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void *ask(void *descriptor)
{
	struct rdma_ucm_event_resp event;
	struct {
		struct rdma_ucm_cmd_hdr header;
		struct rdma_ucm_get_event get;
	} c = {{RDMA_USER_CM_CMD_GET_EVENT, sizeof c.get, sizeof event}, {(uintptr_t)&event}};
	while (write(*(int *)descriptor, &c, sizeof c) >= 0 || errno == EAGAIN)
		;
	if (errno != EBADF)
		printf("write: %s\n", strerror(errno));
	return NULL;
}

int main(void)
{
	alarm(120);
	for (int i = 0; i < 200; i++) {
		pthread_t thread;
		int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC | O_NONBLOCK);
		if (fd < 0 || pthread_create(&thread, NULL, ask, &fd) != 0) {
			perror("rdma_cm");
			return 1;
		}
		usleep(200);
		close(fd);
		pthread_join(thread, NULL);
	}
	puts("as it must be");
	return 0;
}
