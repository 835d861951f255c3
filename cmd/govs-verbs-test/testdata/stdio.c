// Streams over descriptors of the device: when libc closes such a descriptor, or puts another file at its number, the
// device ends, and the file is only a file. A stream whose number has become the library's does not close that.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int wrong;

static void want(const char *what, const char *after, long got, long expected)
{
	if (got == expected)
		return;
	fprintf(stderr, "%s after %s: %ld, want %ld: %s\n", what, after, got, expected, strerror(errno));
	wrong = 1;
}

static int opened(void)
{
	int n = 0;
	DIR *all = opendir("/proc/self/fd");
	while (all && readdir(all))
		n++;
	closedir(all);
	return n;
}

static int device(void)
{
	int fd = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	perror("rdma_cm");
	exit(1);
}

// is_device reports whether a descriptor is the device, which refuses an unknown command.
static int is_device(int fd)
{
	const unsigned unknown[] = {99, 0};
	return write(fd, unknown, sizeof unknown) < 0 && errno == EINVAL;
}

static void is_file(const char *after, int fd)
{
	char text[4];
	want("writing a file", after, write(fd, "text", 4), 4);
	want("its size", after, lseek(fd, 0, SEEK_END), 4);
	want("reading it", after, pread(fd, text, 4, 0), 4);
}

static void closed(void)
{
	int before = opened(), fd = device(), other = dup(fd);
	want("fclose", "fdopen", fclose(fdopen(fd, "r")), 0);
	FILE *file = tmpfile();
	want("the number of a file", "fclose", fileno(file), fd);
	is_file("fclose", fd);
	want("the other descriptor is the device", "fclose", is_device(other), 1);
	want("fclose", "fdopen", fclose(fdopen(other, "r")), 0);
	fclose(file);
	want("descriptors are open", "fclose", opened(), before);
}

static void opened_again(const char *path, int works)
{
	char name[] = "/tmp/govs-stdio-XXXXXX";
	int before = opened(), fd = device();
	FILE *stream = fdopen(fd, "r");
	close(mkstemp(name));
	FILE *again = freopen(path ? path : name, "w+", stream);
	want("freopen succeeds", "fdopen", again != NULL, works);
	if (!again)
		again = fopen(name, "w+");
	want("the number of a file", "freopen", fileno(again), fd);
	is_file("freopen", fd);
	fclose(again);
	unlink(name);
	want("descriptors are open", "freopen", opened(), before);
}

// in_memory closes streams that have no descriptor. What libc leaves of them uninitialized is the number of the device.
static void in_memory(void)
{
	int fd = device();
	for (size_t size = 64; size < 2048; size += 16) {
		int *freed = malloc(size);
		for (size_t i = 0; freed && i < size / sizeof fd; i++)
			((volatile int *)freed)[i] = fd;
		free(freed);
	}
	char *text;
	size_t length;
	want("fclose", "open_memstream", fclose(open_memstream(&text, &length)), 0);
	free(text);
	want("it is the device", "fclose of another stream", is_device(fd), 1);
	close(fd);
}

static int number;

// closes_cancelled is a thread that was cancelled when it closes a stream with bytes that were not written.
static void *closes_cancelled(void *unused)
{
	FILE *stream = fdopen(number, "r+");
	fputs("text", stream);
	pthread_cancel(pthread_self());
	fclose(stream);
	return unused;
}

// cancelled: libc may end the thread before it closes the descriptor, which is the device then.
static void cancelled(void)
{
	pthread_t thread;
	int before = opened();
	number = device();
	pthread_create(&thread, NULL, closes_cancelled, NULL);
	pthread_join(thread, NULL);
	if (fcntl(number, F_GETFD) >= 0) {
		want("it is the device", "a cancelled fclose", is_device(number), 1);
		close(number);
	}
	want("descriptors are open", "a cancelled fclose", opened(), before);
}

// of_library closes the number of a stream before the library is loaded, which then gets the number, and ends the stream.
static void of_library(int again)
{
	FILE *stream = fopen("/dev/zero", "r");
	int n = fileno(stream);
	close(n);
	int fd = device();
	want("the number is the library's", "close", fd != n && fcntl(n, F_GETFD) >= 0, 1);
	if (again == 2) {
		want("freopen without a path", "close", freopen(NULL, "r", stream) == NULL && errno == EBADF, 1);
		want("reading", "freopen without a path", fgetc(stream), EOF);
		want("fclose", "freopen without a path", fclose(stream) == EOF && errno == EBADF, 1);
	} else if (again) {
		want("freopen", "close", freopen("/dev/zero", "r", stream) == stream, 1);
		want("reading", "freopen", fgetc(stream), 0);
	} else
		want("fclose", "close", fclose(stream) == EOF && errno == EBADF, 1);
	want("the library has its descriptor", "the stream's end", close(n) < 0 && fcntl(n, F_GETFD) >= 0, 1);
	want("it is the device", "the stream's end", is_device(fd), 1);
}

int main(void)
{
	for (int again = 0; again < 3; again++) {
		int status = -1;
		pid_t child = fork();
		if (child == 0) {
			of_library(again);
			_exit(wrong);
		}
		want("the child", "its end", waitpid(child, &status, 0) == child && status == 0, 1);
	}
	int first = device();
	want("it is the device", "open", is_device(first), 1);
	closed();
	opened_again(NULL, 1);
	opened_again("/nowhere/at/all", 0);
	in_memory();
	cancelled();
	close(first);
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
