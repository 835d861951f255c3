// A program that finds, opens and closes files, and maps and unmaps memory, many times. It prints the CPU time of each
// kind of call in nanoseconds, the lowest of some rounds.
#define _GNU_SOURCE
#include "peer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { times = 1000, rounds = 20, page = 4096 };

static void find(const char *path)
{
	struct stat st;
	must(path, stat(path, &st) == 0);
}

static void open_close(const char *path)
{
	int fd = open(path, O_RDONLY);
	must(path, fd >= 0 && close(fd) == 0);
}

static void map_unmap(const char *unused)
{
	(void)unused;
	void *at = mmap(NULL, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must("memory", at != MAP_FAILED && munmap(at, page) == 0);
}

static void measure(const char *what, void (*once)(const char *), const char *path)
{
	long least = 0;
	for (int round = 0; round < rounds; round++) {
		struct timespec from, to;
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
		for (int i = 0; i < times; i++)
			once(path);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
		long took = (to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec;
		if (!least || took < least)
			least = took;
	}
	printf("%s %ld\n", what, least / times);
}

// make_regions registers memory, page by page.
static void make_regions(int n)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context = list && count ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	must("a PD", pd != NULL);
	char *at = mmap(NULL, (size_t)n * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < n; i++)
		must("a region", ibv_reg_mr(pd, at + (size_t)i * page, page, IBV_ACCESS_LOCAL_WRITE) != NULL);
}

int main(int argc, char **argv)
{
	must("a folder", argc == 3 && chdir(argv[1]) == 0);
	measure("stat", find, "/usr/include/stdio.h");
	measure("stat-relative", find, "a-file");
	measure("open", open_close, "/etc/passwd");
	measure("open-relative", open_close, "a-file");
	if (atoi(argv[2]))
		make_regions(atoi(argv[2]));
	measure("munmap", map_unmap, NULL);
	return 0;
}
