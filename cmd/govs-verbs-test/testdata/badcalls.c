// Calls that a program may make by mistake. Each must fail with the kernel's errno, and must not end the program.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_cm.h>

static int wrong;

static void want(const char *what, long got, int error)
{
	int is = got < 0 ? errno : 0;
	if (is == error)
		return;
	printf("%s: %s, want %s\n", what, strerror(is), strerror(error));
	wrong = 1;
}

struct command {
	struct ib_uverbs_cmd_hdr header;
	uint64_t response;
	uint64_t rest[16];
};

static struct command make(unsigned number, unsigned octets, unsigned answer, void *response)
{
	struct command c = {.response = (uintptr_t)response};
	c.header.command = number;
	c.header.in_words = (uint16_t)(octets / 4);
	c.header.out_words = (uint16_t)(answer / 4);
	return c;
}

// use_parents uses the parent's objects in a child.
static int use_parents(void *fd)
{
	uint64_t answer[4];
	struct command pd = make(IB_USER_VERBS_CMD_ALLOC_PD, 16, 4, answer);
	struct iovec v = {answer, 8};
	want("a parent's device", write(*(int *)fd, &pd, 16), EIO);
	want("reading a parent's device", read(*(int *)fd, answer, 8), EIO);
	want("readv of a parent's device", readv(*(int *)fd, &v, 1), EIO);
	want("pread of a parent's device", pread(*(int *)fd, answer, 8, 0), EIO);
	want("pwrite to a parent's device", pwrite(*(int *)fd, answer, 8, 0), EIO);
	want("lseek of a parent's device", lseek(*(int *)fd, 8, SEEK_SET), EIO);
	want("opening the device", open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC), 0);
	fflush(stdout);
	return wrong;
}

// A call with a bad pointer fails with an errno: no signal handler of the program is called.
static void on_fault(int sig)
{
	(void)!write(1, "a handler was called\n", 21);
	_exit(128 + sig);
}

// addresses returns how many bytes of addresses the process has.
static rlim_t addresses(void)
{
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%lu", &pages) != 1)
		perror("statm"), exit(1);
	fclose(file);
	return pages * (unsigned long)sysconf(_SC_PAGESIZE);
}

int main(void)
{
	int fd = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC), cm = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || cm < 0) {
		perror("open");
		return 1;
	}
	signal(SIGSEGV, on_fault);
	signal(SIGBUS, on_fault);
	char *none = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t answer[64];
	struct command c = make(IB_USER_VERBS_CMD_GET_CONTEXT, 16, 16, answer);

	want("a command at NULL", write(fd, NULL, 16), EFAULT);
	want("a command in the first page", write(fd, (void *)8, 16), EFAULT);
	want("a command without rights", write(fd, none, 16), EFAULT);
	want("no octets", write(fd, &c, 0), EINVAL);
	want("seven octets", write(fd, &c, 7), EINVAL);
	want("another length than the header says", write(fd, &c, 12), EINVAL);
	struct command early = make(IB_USER_VERBS_CMD_ALLOC_PD, 16, 4, answer);
	want("a command before GET_CONTEXT", write(fd, &early, 16), EINVAL);
	struct command bad = make(IB_USER_VERBS_CMD_GET_CONTEXT, 16, 16, none);
	want("an answer to memory without rights", write(fd, &bad, 16), EFAULT);
	want("GET_CONTEXT", write(fd, &c, 16), 0);
	want("a second GET_CONTEXT", write(fd, &c, 16), EINVAL);
	struct command unknown = make(60, 16, 4, answer);
	char *readable = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct command domain = make(IB_USER_VERBS_CMD_ALLOC_PD, 16, 4, answer);
	want("ALLOC_PD", write(fd, &domain, 16), 0);
	for (int access = 0; access < 2; access++) { // 1 is IB_ACCESS_LOCAL_WRITE
		struct command reg = make(IB_USER_VERBS_CMD_REG_MR, 56, 32, answer + 1);
		uint64_t fields[] = {(uintptr_t)readable, 4096, (uintptr_t)readable, (uint32_t)answer[0] | (uint64_t)access << 32};
		memcpy(reg.rest, fields, sizeof fields);
		want("registering memory that can be read only", write(fd, &reg, 56), access ? EFAULT : 0);
	}
	struct command *copy = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap((char *)copy + 4096, 4096);
	memcpy((char *)copy + 4080, &domain, 16);
	want("a command at the end of a page", write(fd, (char *)copy + 4080, 16), 0);
	memcpy((char *)copy + 4088, &domain, 8);
	want("a command that ends beyond it", write(fd, (char *)copy + 4088, 16), EFAULT);
	want("an unknown command", write(fd, &unknown, 16), EOPNOTSUPP);
	want("mapping nothing", mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 4096) == MAP_FAILED ? -1 : 0, EINVAL);

	// A command of 1 GiB, of which the library has no copy: there is no memory for one.
	const size_t much = 1 << 30;
	char *long_one = mmap(NULL, much, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct rlimit before, little = {addresses() + (200 << 20), RLIM_INFINITY};
	getrlimit(RLIMIT_AS, &before);
	little.rlim_max = before.rlim_max;
	want("a limit", setrlimit(RLIMIT_AS, &little), 0);
	want("a command of 1 GiB", write(fd, long_one, much), EINVAL);
	want("no limit", setrlimit(RLIMIT_AS, &before), 0);
	munmap(long_one, much);

	struct rdma_ucm_cmd_hdr event = {.cmd = RDMA_USER_CM_CMD_GET_EVENT, .in = 8, .out = 336};
	struct {
		struct rdma_ucm_cmd_hdr header;
		uint64_t response;
	} get = {event, (uintptr_t)answer};
	want("GET_EVENT without an event", write(cm, &get, sizeof get), EAGAIN);
	want("rdma_cm's command at NULL", write(cm, NULL, 16), EFAULT);
	get.header.cmd = 99;
	want("an unknown command of rdma_cm", write(cm, &get, sizeof get), EINVAL);
	struct pollfd p = {.fd = cm, .events = POLLIN};
	want("polling rdma_cm", poll(&p, 1, 0) == 0 ? 0 : -1, 0);

	// A duplicate is the same device, which exists until the last duplicate is closed.
	int other = dup(fd);
	close(fd);
	struct command pd = make(IB_USER_VERBS_CMD_ALLOC_PD, 16, 4, answer);
	want("a command to a duplicate", write(other, &pd, 16), 0);
	struct stat st;
	want("fstat", fstat(other, &st), 0);
	if (!S_ISCHR(st.st_mode)) {
		printf("the device is no character device\n");
		wrong = 1;
	}

	// The child can't use the parent's device, but can open it itself.
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		want("a parent's device", write(other, &pd, 16), EIO);
		int own = open("/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);
		want("opening the device in a child", own, 0);
		want("GET_CONTEXT in a child", write(own, &c, 16), 0);
		fflush(stdout);
		_exit(wrong);
	}
	int status = -1;
	waitpid(child, &status, 0);
	want("the child", WIFEXITED(status) ? 0 : -1, 0);
	// Nor can a child use it for which libc calls no fork handlers.
	for (int i = 0; i < 2; i++) {
		fflush(stdout);
		child = i ? clone(use_parents, malloc(1 << 18) + (1 << 18), SIGCHLD, &other) : _Fork();
		if (child == 0)
			_exit(use_parents(&other));
		waitpid(child, &status, 0);
		want(i ? "the child of clone" : "the child of _Fork", status == 0 ? 0 : -1, 0);
	}
	want("a command after the child", write(other, &pd, 16), 0);
	close(other);
	want("a closed descriptor", write(other, &pd, 16), EBADF);
	wrong |= status != 0;
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
