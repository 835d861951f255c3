// Children that fork and _Fork make while another thread has the loader's lock call what children may call, for the
// first time in the program.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void *load(void *name) // which is a FIFO that nobody writes to
{
	dlopen(name, RTLD_NOW);
	return NULL;
}

static int use(void)
{
	struct stat st;
	struct sigaction act;
	char text[8], name[64];
	int fd = open("/dev/zero", O_RDONLY), other = dup(fd), pair[2];
	return fd < 0 || other < 0 || dup2(fd, other) != other || fcntl(fd, F_GETFD) < 0 || read(fd, text, 1) != 1 ||
	       lseek(fd, 0, SEEK_SET) < 0 || fstat(fd, &st) < 0 || stat("/", &st) < 0 || access("/", R_OK) < 0 ||
	       readlink("/proc/self/exe", name, sizeof name) < 0 || chdir("/") < 0 || fchdir(open("/", O_RDONLY)) < 0 ||
	       sigaction(SIGUSR1, NULL, &act) < 0 || signal(SIGUSR1, SIG_IGN) == SIG_ERR ||
	       socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 || send(pair[0], "", 1, 0) != 1 ||
	       write(pair[0], "", 1) != 1 || close(fd) < 0;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	if (argc < 2 || pthread_create(&thread, NULL, load, argv[1]) != 0)
		return 1;
	int fd = open(argv[1], O_WRONLY); // returns when the thread reads
	for (int kind = 0; kind < 2; kind++) {
		int status;
		pid_t child = kind ? _Fork() : fork();
		if (child == 0) {
			alarm(20);
			_exit(use());
		}
		if (waitpid(child, &status, 0) != child || status) {
			printf("a child of %s: status %#x\n", kind ? "_Fork" : "fork", status);
			return 1;
		}
	}
	puts("as it must be");
	close(fd);
	return 0;
}
