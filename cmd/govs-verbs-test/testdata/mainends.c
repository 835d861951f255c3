// The main thread ends before other threads do, with pthread_exit. From then on /proc/self shows neither the process's
// descriptors nor its memory.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "want.h"

static struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	return list && *list ? ibv_open_device(*list) : NULL;
}

static void use(const char *what, struct ibv_context *device)
{
	struct ibv_pd *pd = device ? ibv_alloc_pd(device) : NULL;
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_dealloc_pd body;
	} *none = malloc(sizeof *none); // not on the stack
	size_t large = 64 << 20;
	char *memory = malloc(large);
	want(what, pd != NULL, 1);
	if (!pd)
		return;
	none->header = (struct ib_uverbs_cmd_hdr){IB_USER_VERBS_CMD_DEALLOC_PD, sizeof *none / 4, 0};
	none->body.pd_handle = 12345;
	want("a command", write(device->cmd_fd, none, sizeof *none), -1);
	want("its errno", errno, ENOENT);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, large, IBV_ACCESS_LOCAL_WRITE);
	want("a region", mr != NULL, 1);
	want("deregistering", mr ? ibv_dereg_mr(mr) : 0, 0);
	free(memory);
}

static struct ibv_context *early;
static pthread_t first;

static void *goes_on(void *unused)
{
	char octet = 0, copy;
	struct iovec to = {&copy, 1}, from = {&octet, 1};
	pthread_join(first, NULL);
	while (process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1)
		usleep(1000);
	if (early)
		use("a device that was open", early);
	use("a device", open_device());
	int folder = open("/dev/infiniband", O_RDONLY | O_DIRECTORY), fd = openat(folder, "rdma_cm", O_RDWR | O_CLOEXEC);
	want("the device in a folder", write(fd, "", 1) < 0 ? errno : 0, EINVAL);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		use("a device in a child", open_device());
		fflush(stdout);
		_exit(wrong);
	}
	int status = -1;
	waitpid(child, &status, 0);
	want("the child", status, 0);
	puts(wrong ? "wrong" : "as it must be");
	exit(wrong);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	first = pthread_self();
	if (argc > 1 && strcmp(argv[1], "early") == 0)
		early = open_device();
	pthread_create(&thread, NULL, goes_on, NULL);
	pthread_exit(NULL);
}
