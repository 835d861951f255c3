// libc puts another file at the numbers 0, 1 and 2 in daemon, login_tty and forkpty. If these were the device, or a
// parent's, they are the file after that.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

static int wrong, result; // a descriptor

static void want(const char *what, const char *of, long got, long expected)
{
	if (got == expected)
		return;
	dprintf(result, "%s of %s: %ld, want %ld: %s\n", what, of, got, expected, strerror(errno));
	wrong = 1;
}

// is_device reports whether a descriptor is the device, which refuses an unknown command.
static int is_device(int fd)
{
	const unsigned unknown[] = {99, 0};
	return write(fd, unknown, sizeof unknown) < 0 && errno == EINVAL;
}

static void are_files(const char *of)
{
	for (int fd = 0; fd < 3; fd++)
		want("writing a file", of, write(fd, "text", 4), 4);
}

// devices puts the device at 0, 1 and 2.
static int devices(void)
{
	int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	for (int to = 0; to < 3; to++)
		want("dup2", "the device", dup2(fd, to), to);
	return fd;
}

// becomes_daemon leaves the parent's device at these numbers if it keeps the files.
static void becomes_daemon(int keeps)
{
	int ends[2];
	char got[8] = "";
	want("pipe", "the test", pipe(ends), 0);
	pid_t child = fork();
	if (child == 0) {
		want("daemon", "a child", daemon(1, keeps), 0); // whose parent ends
		if (keeps)
			want("the parent's device", "daemon", write(1, "text", 4) < 0 ? errno : 0, EIO);
		else
			are_files("daemon");
		_exit(write(ends[1], wrong ? "wrong" : "right", 5) != 5);
	}
	close(ends[1]);
	want("reading", "the child", read(ends[0], got, 5), 5);
	want("the verdict", "the child", strcmp(got, "right"), 0);
	waitpid(child, NULL, 0);
	close(ends[0]);
}

static void logs_in(void)
{
	int terminal, ours, status = -1;
	pid_t child = fork();
	if (child == 0) {
		want("openpty", "the test", openpty(&terminal, &ours, NULL, NULL, NULL), 0);
		int fd = devices();
		setsid();
		want("login_tty", "no terminal", login_tty(fd) < 0 ? errno : 0, ENOTTY);
		want("it is the device", "that", is_device(1), 1);
		want("login_tty", "a terminal", login_tty(ours), 0);
		are_files("login_tty");
		want("it is the device", "another number", is_device(fd), 1);
		_exit(wrong);
	}
	want("the child", "login_tty", waitpid(child, &status, 0) == child && status == 0, 1);
	child = forkpty(&terminal, NULL, NULL, NULL);
	if (child == 0) {
		are_files("forkpty");
		_exit(wrong);
	}
	want("the child", "forkpty", waitpid(child, &status, 0) == child && status == 0, 1);
}

int main(void)
{
	result = fcntl(1, F_DUPFD_CLOEXEC, 100);
	int fd = devices();
	becomes_daemon(0);
	becomes_daemon(1);
	logs_in();
	want("it is the device", "the parent", is_device(0) && is_device(fd), 1);
	dprintf(result, wrong ? "wrong\n" : "as it must be\n");
	return wrong;
}
