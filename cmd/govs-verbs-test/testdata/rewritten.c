// A thread changes a path while calls of the program take it. No call reads beyond the end of the memory, and each
// returns one of the two paths, or that there is nothing: libc may find the second path where exec has found the first.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LONG "/sys/class/infiniband"

static _Atomic char *path;
static atomic_int ended;

static void *change(void *unused)
{
	while (!ended) {
		path[strlen("/sys")] = 0;
		path[strlen("/sys")] = '/';
	}
	return unused;
}

int main(void)
{
	pthread_t thread;
	long page = sysconf(_SC_PAGESIZE);
	char *memory = mmap(NULL, (size_t)(2 * page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || mprotect(memory + page, (size_t)page, PROT_NONE) != 0)
		return 2;
	char *text = strcpy(memory + page - sizeof LONG, LONG), name[PATH_MAX];
	path = (_Atomic char *)text;
	pthread_create(&thread, NULL, change, NULL);
	for (int i = 0; i < 20000; i++) {
		int fd = open(text, O_RDONLY);
		if (fd < 0 ? errno != ENOENT : close(fd) != 0) {
			perror("open");
			return 1;
		}
		if (realpath(text, name) ? strcmp(name, "/sys") && strcmp(name, LONG) : errno != ENOENT) {
			printf("realpath: %s\n", name);
			return 1;
		}
	}
	ended = 1;
	pthread_join(thread, NULL);
	puts("as it must be");
	return 0;
}
