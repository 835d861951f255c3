// The library that is written in Go: it is loaded when the program first looks for a device, and called after that.
#define _GNU_SOURCE
#include "preload.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void complain(const char *what, const char *why)
{
	char text[512];
	int n = snprintf(text, sizeof text, "govs-verbs-test exec: %s: %s\n", what, why ? why : "?");
	if (n > 0)
		(void)!syscall(SYS_write, 2, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static struct library loaded;
static struct library *_Atomic library;
static int generation; // how many forks are between the program's first process and this one

// loading is held while the library is loaded or opens a device, and by what must not happen meanwhile. A constructor
// or a signal handler may be in both. The child of a vfork can't wait: it stops a thread of its parent.
static pthread_mutex_t loading = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

// await_start waits only for a while, because the thread that loads may wait for a lock that this one holds, such as
// the loader's. Unlocking what this thread has not locked fails, and does no harm.
void await_start(void)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 10;
	if (!strange())
		pthread_mutex_timedlock(&loading, &until);
}

void allow_start(void)
{
	if (!strange())
		pthread_mutex_unlock(&loading);
}

// ---- calls

// Objects whose last descriptor a signal handler has closed: the first one, and the next after each. The next call of
// any thread closes them, because the thread of the handler may end without one.
static _Atomic uint32_t put_off;
static uint32_t after[SLOTS]; // an object

void close_later(uint32_t object)
{
	after[object] = atomic_load(&put_off);
	while (!atomic_compare_exchange_weak(&put_off, &after[object], object))
		;
}

struct library *begin_call(void)
{
	struct library *lib = atomic_load(&library);
	if (!lib)
		errno = EIO; // the descriptor is a parent's
	else if (!enter_library()) {
		errno = EDEADLK;
		lib = NULL;
	} else
		first_call();
	return lib;
}

void end_call(struct library *lib)
{
	for (uint32_t object; (object = atomic_exchange(&put_off, 0));)
		for (uint32_t next; object; object = next) {
			next = after[object];
			lib->close(object);
		}
	leave_library(1);
}

long result(long n)
{
	if (n >= 0)
		return n;
	errno = (int)-n;
	return -1;
}

// ---- loading

// copy_file copies a file, whose size the limit of the process may forbid.
static int copy_file(int from, int to)
{
	struct rlimit was;
	struct stat st;
	off_t at = 0;
	if (syscall(SYS_fstat, from, &st) < 0 || getrlimit(RLIMIT_FSIZE, &was) < 0)
		return -1;
	if (was.rlim_max < (rlim_t)st.st_size) {
		errno = EFBIG;
		return -1;
	}
	setrlimit(RLIMIT_FSIZE, &(struct rlimit){was.rlim_max, was.rlim_max});
	while (at < st.st_size && sendfile(to, from, &at, (size_t)(st.st_size - at)) > 0)
		;
	setrlimit(RLIMIT_FSIZE, &was);
	return at < st.st_size ? -1 : 0;
}

// open_copy returns the descriptor of a copy of a file, -1 if there is none.
static int open_copy(const char *path)
{
	int from = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	int to = from < 0 ? -1 : memfd_create("govs-bridge", MFD_CLOEXEC);
	int failed = to < 0 || copy_file(from, to) < 0;
	if (failed)
		complain("copying the library for this process", strerror(errno));
	if (from >= 0)
		syscall(SYS_close, from);
	if (failed && to >= 0)
		syscall(SYS_close, to);
	return failed ? -1 : to;
}

// The loader takes a name that it knows for the library that had it, even if that is a parent's, whose copy had the
// descriptor of the same number. So each generation has a longer name, and keeps it.
static char copied[PATH_MAX]; // empty: this process has no copy

static const char *name_copy(int fd)
{
	char *end = stpcpy(copied, "/proc/thread-self/fd/");
	for (int i = 1; i < generation; i++) {
		if (end + sizeof "./2147483647" > copied + sizeof copied) {
			complain("copying the library for this process", "too many children, each of the one before");
			*copied = 0;
			return NULL;
		}
		end = stpcpy(end, "./");
	}
	sprintf(end, "%d", fd);
	return copied;
}

static void *load_file(const char *name)
{
	void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		complain(settings()->library, dlerror());
	return handle;
}

// load_copy loads a copy of the library's file. Later the loader needs the name only.
static void *load_copy(const char *path)
{
	if (*copied)
		return load_file(copied);
	int fd = open_copy(path);
	if (fd < 0)
		return NULL;
	void *handle = name_copy(fd) ? load_file(copied) : NULL;
	if (!handle)
		*copied = 0;
	syscall(SYS_close, fd);
	return handle;
}

#define FUNCTION(field, name)                                                                                \
	if (!(*(void **)&loaded.field = dlsym(handle, name))) {                                              \
		complain(path, dlerror());                                                                   \
		return;                                                                                      \
	}

// load_locked says in called whether it has called the library, whose runtime then knows the thread.
static void load_locked(int *called)
{
	const char *path = settings()->library;
	if (!path) {
		complain("GOVS_BRIDGE_LIBRARY is not set", "run the program with govs-verbs-test exec");
		return;
	}
	if (!addresses()) {
		complain("1792 MiB of addresses can't be reserved",
			 "raise RLIMIT_AS (ulimit -v), or after mlockall RLIMIT_MEMLOCK (ulimit -l)");
		return;
	}
	void *handle = generation ? load_copy(path) : load_file(path);
	if (!handle)
		return;
	FUNCTION(init, "govs_bridge_init");
	FUNCTION(open, "govs_bridge_open");
	FUNCTION(write, "govs_bridge_write");
	FUNCTION(close, "govs_bridge_close");
	FUNCTION(netlink, "govs_bridge_netlink");
	FUNCTION(progress, "govs_bridge_progress");
	FUNCTION(attend, "govs_bridge_attend");
	*called = 1;
	first_call();
	if (!initialize(&loaded))
		atomic_store(&library, &loaded); // otherwise it has said why
}

// fill_standard opens what is closed of the descriptors 0, 1 and 2, so that the library gets others: the program may
// still write to the standard streams. It returns a mask for empty_standard, which closes them again.
static int fill_standard(void)
{
	int mask = 0;
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (syscall(SYS_fcntl, fd, F_GETFD) < 0 && syscall(SYS_openat, AT_FDCWD, "/", O_PATH | O_CLOEXEC, 0) == fd)
			mask |= 1 << fd;
	return mask;
}

static void empty_standard(int mask)
{
	for (int fd = 0; fd <= STDERR_FILENO; fd++)
		if (mask & 1 << fd)
			syscall(SYS_close, fd);
}

// forget_library is for the child of a fork.
void forget_library(void)
{
	loaded = (struct library){0};
	atomic_store(&library, NULL);
	atomic_store(&put_off, 0);
	loading = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
	generation++;
	*copied = 0;
}

struct library *load(void)
{
	struct library *lib = atomic_load(&library);
	if (lib)
		return lib;
	if (!enter_library())
		return NULL;
	int called = 0;
	watch_forks();
	pthread_mutex_lock(&loading);
	if (!atomic_load(&library)) {
		struct before_library *before = before_library();
		int filled = fill_standard();
		load_locked(&called);
		empty_standard(filled);
		after_library(before, (void *)loaded.open);
	}
	lib = atomic_load(&library);
	pthread_mutex_unlock(&loading);
	leave_library(called);
	return lib;
}
