// Children of a program whose threads are in calls of the library. Children of fork open the device themselves; others
// are made by vfork, posix_spawn, system and popen. None hangs, and none ends anything of its parent's.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static int wrong;

static void want(const char *what, int is)
{
	if (is)
		return;
	printf("%s: %s\n", what, strerror(errno));
	wrong = 1;
}

static struct ibv_device **list;
static struct ibv_context *device;
static atomic_int stop;

static int use(struct ibv_context *c)
{
	struct ibv_pd *pd = ibv_alloc_pd(c);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(c);
	struct ibv_cq *cq = channel ? ibv_create_cq(c, 8, NULL, channel, 0) : NULL;
	struct ibv_wc wc;
	if (!pd || !cq)
		return 0;
	for (int i = 0; i < 10; i++)
		ibv_poll_cq(cq, 1, &wc);
	ibv_req_notify_cq(cq, 0);
	return ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0 && ibv_dealloc_pd(pd) == 0;
}

static void *busy(void *unused)
{
	while (!stop)
		if (!use(device))
			wrong = 1;
	return unused;
}

static int ended(pid_t child)
{
	int status = -1;
	return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int nothing(void *unused)
{
	(void)unused;
	return 0;
}

int main(void)
{
	static char stack[1 << 16];
	pthread_t threads[3];
	list = ibv_get_device_list(NULL);
	device = list && *list ? ibv_open_device(*list) : NULL;
	want("the device", device != NULL);
	if (!device)
		return 1;
	for (int i = 0; i < 3; i++)
		pthread_create(&threads[i], NULL, busy, NULL);
	for (int i = 0; i < 12; i++) {
		fflush(stdout);
		pid_t child = fork();
		if (child == 0) {
			alarm(120);
			errno = 0;
			want("the parent's device", !ibv_alloc_pd(device) && errno == EIO);
			struct ibv_context *own = ibv_open_device(*list);
			want("the device in a child", own && use(own));
			pid_t grandchild = fork();
			if (grandchild == 0) {
				own = ibv_open_device(*list);
				want("the device in a grandchild", own && use(own));
				fflush(stdout);
				_exit(wrong);
			}
			want("the grandchild", ended(grandchild));
			want("the device in a child after that", own && use(own) && ibv_close_device(own) == 0);
			fflush(stdout);
			_exit(wrong);
		}
		want("a child", ended(child));
		child = vfork();
		if (child == 0) {
			close(device->cmd_fd);
			dup2(1, device->async_fd);
			execl("/bin/true", "true", (char *)NULL);
			_exit(1);
		}
		want("a child of vfork", ended(child));
		child = clone(nothing, stack + sizeof stack, CLONE_FILES | SIGCHLD, NULL);
		want("a child that has its parent's descriptors", ended(child));
		char *args[] = {"true", NULL};
		posix_spawn_file_actions_t actions;
		posix_spawn_file_actions_init(&actions);
		posix_spawn_file_actions_addclose(&actions, device->cmd_fd);
		want("posix_spawn", posix_spawnp(&child, "true", &actions, NULL, args, environ) == 0 && ended(child));
		want("system", system("exit 7") == 7 << 8);
		FILE *pipe = popen("ls /sys/class/infiniband", "r");
		char name[16] = "";
		want("popen", pipe && fgets(name, sizeof name, pipe) && strcmp(name, "siw0\n") == 0 && pclose(pipe) == 0);
	}
	want("the device after that", use(device));
	stop = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	want("closing the device", ibv_close_device(device) == 0);
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
