// Calls that take paths: all of them find the device and its files in sysfs, a bad address is an error, and a call that
// a signal handler may make needs no more stack than libc's.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static int wrong;

static void want(const char *what, int is)
{
	if (is)
		return;
	printf("%s: %s\n", what, strerror(errno));
	wrong = 1;
}

static void on_signal(int sig)
{
	struct stat st;
	(void)sig;
	int fd = open("/dev/null", O_RDONLY);
	if (fd < 0 || stat("/", &st) < 0 || access("/", R_OK) < 0 || close(fd) < 0)
		wrong = 1;
}

int main(void)
{
	static const char device[] = "/dev/infiniband/uverbs0", folder[] = "/sys/class/infiniband";
	struct statx sx, by_fd;
	struct stat st;
	struct dirent **list = NULL;
	struct dirent64 **list64 = NULL;

	want("stat", stat(device, &st) == 0 && S_ISCHR(st.st_mode));
	want("statx", statx(AT_FDCWD, device, 0, STATX_BASIC_STATS, &sx) == 0 && S_ISCHR(sx.stx_mode));
	want("statx has the number", makedev(sx.stx_rdev_major, sx.stx_rdev_minor) == st.st_rdev && sx.stx_mask & STATX_TYPE);
	int fd = open(device, O_RDWR | O_CLOEXEC);
	want("open", fd >= 0);
	want("statx of a descriptor", statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &by_fd) == 0 && S_ISCHR(by_fd.stx_mode));
	want("statx of what sysfs has", statx(AT_FDCWD, "/sys/class/infiniband/siw0", 0, STATX_TYPE, &sx) == 0 && S_ISDIR(sx.stx_mode));
	want("statx of something else", statx(AT_FDCWD, "/", 0, STATX_TYPE, &sx) == 0 && S_ISDIR(sx.stx_mode));
	want("scandir", scandir(folder, &list, NULL, alphasort) == 3 && strcmp(list[2]->d_name, "siw0") == 0);
	want("scandir64", scandir64(folder, &list64, NULL, alphasort64) == 3 && strcmp(list64[2]->d_name, "siw0") == 0);

	char *null = NULL;
	want("fstatat of NULL", fstatat(AT_FDCWD, null, &st, AT_EMPTY_PATH) == 0 || errno == EFAULT);
	want("statx of NULL", statx(AT_FDCWD, null, AT_EMPTY_PATH, STATX_TYPE, &sx) == 0 || errno == EFAULT);
	want("open of NULL", open(null, O_RDONLY) < 0 && errno == EFAULT);

	// The smallest stack for handlers that is allowed, with a page without rights below it.
	size_t least = (size_t)sysconf(_SC_MINSIGSTKSZ) + 1536, size = (least + 4095) & ~4095ul;
	char *memory = mmap(NULL, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(memory, 4096, PROT_NONE);
	stack_t stack = {.ss_sp = memory + 4096, .ss_size = least};
	struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
	on_signal(0); // the first call looks up symbols, so it is made here
	want("sigaltstack", sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &act, NULL) == 0);
	fflush(stdout);
	raise(SIGUSR1);
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
