// Makes calls with bad arguments, and prints a line for each: the errno, or the signal that ends the process. The
// arguments name a character device, an attribute in sysfs, and the protocol of a netlink socket. Without exec every
// machine has these; with exec they are the engine's device. Both must print the same.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <linux/netlink.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static const char *device, *attribute;
static int sock, file;
static char *none, *edge;          // a page without rights; the end of a page before one
static char buffer[256];
static const void *volatile bad;   // the bad pointer
static volatile int *next;         // which entry of a list is called; children have it, too

// ---- calls with a path

static long t_open(const char *p) { return open(p, O_RDONLY); }
static long t_openat(const char *p) { return openat(AT_FDCWD, p, O_RDONLY); }
static long t_openat_dir(const char *p) { return openat(file, p, O_RDONLY); }
static long t_fopen(const char *p) { return fopen(p, "r") ? 0 : -1; }
static long t_opendir(const char *p) { return opendir(p) ? 0 : -1; }
static long t_chdir(const char *p) { return chdir(p); }
static long t_stat(const char *p) { struct stat s; return stat(p, &s); }
static long t_lstat(const char *p) { struct stat s; return lstat(p, &s); }
static long t_fstatat(const char *p) { struct stat s; return fstatat(AT_FDCWD, p, &s, 0); }
static long t_fstatat_empty(const char *p) { struct stat s; return fstatat(file, p, &s, AT_EMPTY_PATH); }
static long t_statx(const char *p) { struct statx s; return statx(AT_FDCWD, p, 0, STATX_TYPE, &s); }
static long t_access(const char *p) { return access(p, R_OK); }
static long t_eaccess(const char *p) { return eaccess(p, R_OK); }
static long t_faccessat(const char *p) { return faccessat(AT_FDCWD, p, R_OK, 0); }
static long t_readlink(const char *p) { return readlink(p, buffer, sizeof buffer); }
static long t_readlinkat(const char *p) { return readlinkat(AT_FDCWD, p, buffer, sizeof buffer); }
static long t_getxattr(const char *p) { return getxattr(p, "user.none", buffer, sizeof buffer); }
static long t_listxattr(const char *p) { return listxattr(p, NULL, 0) < 0 ? -1 : 0; }
static long t_scandir(const char *p) { struct dirent **l; return scandir(p, &l, NULL, NULL) < 0 ? -1 : 0; }
static long t_realpath(const char *p) { return realpath(p, NULL) ? 0 : -1; }
static long t_canonical(const char *p) { return canonicalize_file_name(p) ? 0 : -1; }
static long t_glob(const char *p) { glob_t g = {0}; return glob(p, 0, NULL, &g); }

// ---- calls with another pointer

static long o_stat(const void *p) { return stat(device, (struct stat *)p); }
static long o_lstat(const void *p) { return lstat(device, (struct stat *)p); }
static long o_fstat(const void *p) { return fstat(file, (struct stat *)p); }
static long o_fstatat(const void *p) { return fstatat(AT_FDCWD, device, (struct stat *)p, 0); }
static long o_statx(const void *p) { return statx(AT_FDCWD, device, 0, STATX_TYPE, (struct statx *)p); }
static long o_stat_attribute(const void *p) { return stat(attribute, (struct stat *)p); }
static long o_readlink(const void *p) { return readlink(attribute, (char *)p, 16); }
static long o_getxattr_key(const void *p) { return getxattr(attribute, p, buffer, sizeof buffer); }
static long o_fcntl_lock(const void *p) { return fcntl(file, F_GETLK, p); }
static long o_write_netlink(const void *p) { return write(sock, p, 32); }
static long o_send(const void *p) { return send(sock, p, 32, 0); }
static long o_sendto(const void *p) { return sendto(sock, p, 32, 0, NULL, 0); }
static long o_sendmsg(const void *p) { return sendmsg(sock, p, 0); }
static long o_sendmsg_vectors(const void *p)
{
	struct msghdr m = {.msg_iov = (struct iovec *)p, .msg_iovlen = 2};
	return sendmsg(sock, &m, 0);
}
static long o_sendmsg_data(const void *p)
{
	struct iovec v[2] = {{buffer, 16}, {(void *)p, 16}};
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
	return sendmsg(sock, &m, 0);
}
static long o_sigaction(const void *p) { return sigaction(SIGUSR1, p, NULL); }
static long o_sigaction_old(const void *p) { return sigaction(SIGUSR1, NULL, (struct sigaction *)p); }

// ---- other bad arguments

static long a_sigaction_65(const void *p) { struct sigaction a = {0}; (void)p; return sigaction(65, &a, NULL); }
static long a_sigaction_0(const void *p) { struct sigaction a = {0}; (void)p; return sigaction(0, &a, NULL); }
static long a_sigaction_kill(const void *p) { struct sigaction a = {0}; (void)p; return sigaction(SIGKILL, &a, NULL); }
static long a_signal(const void *p) { (void)p; return signal(-1, SIG_IGN) == SIG_ERR ? -1 : 0; }
static long a_close(const void *p) { (void)p; return close(-1); }
static long a_close_high(const void *p) { (void)p; return close(1 << 20); }
static long a_close_range(const void *p) { (void)p; return close_range(9, 8, 0); }
static long a_close_range_flags(const void *p) { (void)p; return close_range(1000, 1001, 1 << 30); }
static long a_dup(const void *p) { (void)p; return dup(-1); }
static long a_dup2(const void *p) { (void)p; return dup2(file, -1); }
static long a_dup3(const void *p) { (void)p; return dup3(file, file, 0); }
static long a_dup3_flags(const void *p) { (void)p; return dup3(file, 100, 1); }
static long a_dupfd(const void *p) { (void)p; return fcntl(file, F_DUPFD, -1); }
static long a_dupfd_high(const void *p) { (void)p; return fcntl(file, F_DUPFD, 1 << 30); }
static long a_fcntl(const void *p) { (void)p; return fcntl(-1, F_GETFL); }
static long a_fcntl_command(const void *p) { (void)p; return fcntl(file, 9999); }
static long a_socket(const void *p) { (void)p; return socket(AF_NETLINK, SOCK_STREAM, NETLINK_USERSOCK); }
static long a_sendmsg_empty(const void *p) { struct msghdr m = {0}; (void)p; return sendmsg(sock, &m, 0); }
static long a_sendmsg_many(const void *p)
{
	static struct iovec v[2000];
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 2000};
	(void)p;
	return sendmsg(sock, &m, 0);
}
static long a_send_long(const void *p)
{
	static char much[8 << 20];
	(void)p;
	return send(sock, much, sizeof much, 0);
}
static long a_open_new(const void *p) { (void)p; return open(device, O_RDWR | O_CREAT | O_EXCL, 0600); }
static long a_open_folder(const void *p) { (void)p; return open(device, O_RDONLY | O_DIRECTORY); }
static long a_openat_relative(const void *p) { (void)p; return openat(-5, "infiniband", O_RDONLY); }
static long a_access_mode(const void *p) { (void)p; return access(device, 077); }
static long a_access_execute(const void *p) { (void)p; return access(device, X_OK); }
static long a_faccessat_flags(const void *p) { (void)p; return faccessat(AT_FDCWD, device, R_OK, 1 << 20); }
static long a_fstatat_flags(const void *p) { struct stat s; (void)p; return fstatat(AT_FDCWD, device, &s, 1 << 20); }
static long a_statx_flags(const void *p) { struct statx s; (void)p; return statx(AT_FDCWD, device, 1 << 20, 0, &s); }
static long a_readlink_size(const void *p) { (void)p; return readlink(attribute, buffer, 0); }
static long a_readlink_device(const void *p) { (void)p; return readlink(device, buffer, 16); }
static long a_write_attribute(const void *p) { (void)p; return open(attribute, O_WRONLY); }
static long a_below_device(const void *p)
{
	char name[PATH_MAX];
	struct stat s;
	(void)p;
	return stat(strcat(strcpy(name, device), "/x"), &s);
}

typedef long (*call)(const void *);
#define PATH(name) {#name, (call)t_##name}
#define OTHER(name) {#name, o_##name}
#define ARGUMENT(name) {#name, a_##name}
struct entry {
	const char *name;
	call f;
};
static const struct entry with_path[] = {PATH(open), PATH(openat), PATH(openat_dir), PATH(fopen), PATH(opendir), PATH(chdir),
	PATH(stat), PATH(lstat), PATH(fstatat), PATH(fstatat_empty), PATH(statx), PATH(access), PATH(eaccess), PATH(faccessat),
	PATH(readlink), PATH(readlinkat), PATH(getxattr), PATH(listxattr), PATH(scandir), PATH(glob), {NULL, NULL}};
// libc reads the path itself. It finds that there is no /dev/infiniband before it comes to the end of the path.
static const struct entry in_libc[] = {PATH(realpath), PATH(canonical), {NULL, NULL}};
static const struct entry with_other[] = {OTHER(stat), OTHER(lstat), OTHER(fstat), OTHER(fstatat), OTHER(statx),
	OTHER(stat_attribute), OTHER(readlink), OTHER(getxattr_key), OTHER(fcntl_lock), OTHER(write_netlink), OTHER(send),
	OTHER(sendto), OTHER(sendmsg), OTHER(sendmsg_vectors), OTHER(sendmsg_data), OTHER(sigaction), OTHER(sigaction_old),
	{NULL, NULL}};
static const struct entry with_argument[] = {ARGUMENT(sigaction_65), ARGUMENT(sigaction_0), ARGUMENT(sigaction_kill),
	ARGUMENT(signal), ARGUMENT(close), ARGUMENT(close_high), ARGUMENT(close_range), ARGUMENT(close_range_flags), ARGUMENT(dup),
	ARGUMENT(dup2), ARGUMENT(dup3), ARGUMENT(dup3_flags), ARGUMENT(dupfd), ARGUMENT(dupfd_high), ARGUMENT(fcntl),
	ARGUMENT(fcntl_command), ARGUMENT(socket), ARGUMENT(sendmsg_empty), ARGUMENT(sendmsg_many),
	ARGUMENT(send_long), ARGUMENT(open_new), ARGUMENT(open_folder), ARGUMENT(openat_relative), ARGUMENT(access_mode),
	ARGUMENT(access_execute), ARGUMENT(faccessat_flags), ARGUMENT(fstatat_flags), ARGUMENT(statx_flags),
	ARGUMENT(readlink_size), ARGUMENT(readlink_device), ARGUMENT(write_attribute), ARGUMENT(below_device), {NULL, NULL}};

// walk makes the calls of a list in a child. When a signal has ended the child, another one makes the calls after that.
// Each call finds the memory as it was before the first.
static void walk(const char *what, const struct entry *list, const void *argument)
{
	static char before[2 * 4096];
	memcpy(before, edge - sizeof before, sizeof before);
	for (*next = 0; list[*next].name; ++*next) {
		int status;
		fflush(stdout);
		pid_t child = fork();
		for (; child == 0 && list[*next].name; ++*next) {
			memcpy(edge - sizeof before, before, sizeof before);
			memset(buffer, 0, sizeof buffer);
			errno = 0;
			bad = argument;
			int got = list[*next].f(bad) < 0 ? errno : 0;
			printf("%s, %s: %s\n", list[*next].name, what, strerrorname_np(got));
			fflush(stdout);
		}
		if (child == 0)
			_exit(0);
		waitpid(child, &status, 0);
		if (!WIFSIGNALED(status))
			return;
		printf("%s, %s: signal %d\n", list[*next].name, what, WTERMSIG(status));
	}
}

// at_edge returns a string without a terminating zero, at the end of its memory.
static char *at_edge(const char *text)
{
	size_t n = strlen(text);
	return memcpy(edge - n, text, n);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	device = argv[1];
	attribute = argv[2];
	file = open(device, O_RDWR);
	sock = socket(AF_NETLINK, SOCK_RAW, atoi(argv[3]));
	next = mmap(NULL, sizeof *next, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	none = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	edge = (char *)mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 2 * 4096;
	mprotect(edge, 4096, PROT_NONE); // unmapped, it could be mapped by a library
	if (file < 0 || sock < 0) {
		perror("opening");
		return 1;
	}
	enum { much = 9 << 20 }; // longer than the stack
	char *endless = mmap(NULL, much + 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	const struct {
		const char *what;
		const void *at;
	} pointers[] = {{"NULL", NULL}, {"7", (void *)7}, {"8", (void *)8}, {"no rights", none}, {"the last", (void *)-1l},
		{"not canonical", (void *)(0x01ul << 56)}, {"of the kernel", (void *)(1ul << 63)},
		{"an edge", edge - 1}, {"after the edge", edge}};
	edge[-1] = '/';
	for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) {
		walk(pointers[i].what, with_path, pointers[i].at);
		walk(pointers[i].what, in_libc, pointers[i].at);
		walk(pointers[i].what, with_other, pointers[i].at);
	}
	walk("misaligned", with_other, edge - 1001);
	walk("a device without an end", with_path, at_edge(device));
	walk("an attribute without an end", with_path, at_edge(attribute));
	walk("nothing", with_path, "");
	for (int i = 0; i < 3; i++) {
		const char *const starts[] = {attribute, device, ""};
		const char *const fills[] = {"x", "/."};
		for (int k = 0; k < 2; k++) {
			size_t n = strlen(starts[i]), step = strlen(fills[k]);
			memcpy(endless, starts[i], n);
			for (size_t at = n; at + step <= much; at += step)
				memcpy(endless + at, fills[k], step);
			endless[much] = 0;
			char what[64];
			snprintf(what, sizeof what, "endless %d of %s", i, fills[k]);
			struct entry const some[] = {with_path[0], with_path[3], with_path[6], with_path[11], with_path[14], {NULL, NULL}};
			walk(what, some, endless);
			endless[5000] = 0;
			walk(what, with_path, endless);
		}
	}
	walk("", with_argument, NULL);
	return 0;
}
