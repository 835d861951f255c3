// libgovs-preload.so gives a program the RDMA device of the Go engine in place of the kernel's. It stands
// before libc (LD_PRELOAD) and takes the calls that libibverbs and librdmacm make to find the device, to
// open it and to command it. What a command means is the business of libgovs-bridge.so, which is written
// in Go (package cgo/bridge/lib) and loaded when a device is opened or looked for. Here are only the
// descriptors: which of them are the device's, and how many duplicates there are.
//
//   /dev/infiniband/uverbs0   a memory file, in which the queues lie that siw's library maps: mmap is libc's
//   /dev/infiniband/rdma_cm   one end of a pair of sockets, with an octet for each event: poll is libc's
//   NETLINK_RDMA              a socket of NETLINK_USERSOCK, answered from a second one
//   /sys/class/infiniband...  files below $GOVS_BRIDGE_SYSFS
//
// The child of a fork has no Go runtime: threads other than the one that forks do not exist there. So all
// descriptors that it inherits are dead, and the next open loads a fresh copy of the library.
#define _GNU_SOURCE
#include "preload.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rdma/ib_user_verbs.h>

// ---- the functions that the library stands before

void *find_next(struct next *n) { return n->function = dlsym(RTLD_NEXT, n->name); }

// The linker sets these around what REAL has in all files.
__attribute__((visibility("hidden"))) extern struct next __start_nexts[], __stop_nexts[];

__attribute__((constructor)) static void find_all(void)
{
	for (struct next *n = __start_nexts; n < __stop_nexts; n++)
		find_next(n);
}

// ---- descriptors

// A slot says what a descriptor is: its kind in the upper eight bits, and the number that the library has
// given its object. Descriptors beyond the table are never the device's: open fails there.
static _Atomic uint32_t slots[SLOTS];
static _Atomic int slots_end; // above all descriptors that have ever had a slot
static _Atomic int duplicates[SLOTS]; // of an object
static unsigned char owned[SLOTS];    // descriptors that the library has for itself: they are not the program's to close

#define OBJECT(slot) ((slot)&0xffffff)
#define KIND(slot) ((enum kind)((slot) >> 24))
#define SLOT(kind, object) ((uint32_t)(kind) << 24 | (uint32_t)(object))

static pid_t owner; // the process that the table is of, 0 while the table is empty

static inline uint32_t slot_of(int fd)
{
	return fd >= 0 && fd < SLOTS ? atomic_load_explicit(&slots[fd], memory_order_acquire) : 0;
}

enum kind kind_of(int fd) { return KIND(slot_of(fd)); }

uint64_t device_of(int fd)
{
	uint32_t slot = slot_of(fd);
	return KIND(slot) == UVERBS ? OBJECT(slot) : 0;
}

int strange(void)
{
	return syscall(SYS_getpid) != owner;
}

// A child that is made while the library starts would have its runtime's signals and limit.
static void begin(void)
{
	owner = getpid();
	pthread_atfork(await_start, allow_start, after_fork);
}

void watch_forks(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, begin);
}

int hidden(int fd) { return fd >= 0 && fd < SLOTS && owned[fd] && !strange(); }

// adopt makes a descriptor one of an object.
static void adopt(int fd, uint32_t slot)
{
	watch_forks();
	if (OBJECT(slot))
		atomic_fetch_add(&duplicates[OBJECT(slot)], 1);
	for (int end = slots_end; fd >= end && !atomic_compare_exchange_weak(&slots_end, &end, fd + 1);)
		;
	atomic_store_explicit(&slots[fd], slot, memory_order_release);
}

void adopt_netlink(int fd)
{
	if (fd < SLOTS)
		adopt(fd, SLOT(NETLINK, 0));
}

// adopted, found, in_frames and setting are what the library calls back.
static void adopted(int fd, int kind, uint64_t object) { adopt(fd, SLOT(kind, object)); }

static uint64_t found(int fd)
{
	uint32_t slot = slot_of(fd);
	return KIND(slot) == DEAD ? 0 : OBJECT(slot);
}

int initialize(struct library *lib)
{
	return lib->init(owned, SLOTS, (void *)adopted, (void *)found, (void *)in_frames, (void *)setting);
}

// Connections would outlive the parent's close if the child kept their sockets. Each page that is written here is
// copied, and each that is only read is mapped, for every child: most children call exec at once.
void after_fork(void)
{
	if (!owner) // nothing was there
		return;
	for (int fd = 0; fd < SLOTS; fd++)
		if (owned[fd]) {
			syscall(SYS_close, fd);
			owned[fd] = 0;
		}
	forget_parent();
}

void forget_parent(void)
{
	if (!owner)
		return;
	forget_mappings();
	for (int fd = 0; fd < slots_end; fd++) {
		uint32_t slot = atomic_load_explicit(&slots[fd], memory_order_relaxed);
		if (!slot || KIND(slot) == NETLINK)
			continue;
		atomic_store(&duplicates[OBJECT(slot)], 0);
		// What was called before may have closed it, so that the number is free.
		atomic_store(&slots[fd], syscall(SYS_fcntl, fd, F_GETFD) < 0 ? 0 : SLOT(DEAD, 0));
	}
	owner = getpid();
	forget_library();
	forget_calls();
}

// ---- opening and closing

static int open_device(enum kind kind, int flags)
{
	pthread_testcancel();
	struct library *lib = load() ? begin_call() : NULL;
	if (!lib) {
		errno = ENODEV;
		return -1;
	}
	await_start(); // the library may raise RLIMIT_FSIZE until the device is open
	long fd = lib->open(kind, flags);
	allow_start();
	end_call(lib);
	return (int)result(fd);
}

#define MODE(flags)                                                                                          \
	mode_t mode = 0;                                                                                     \
	if ((flags)&O_CREAT || ((flags)&O_TMPFILE) == O_TMPFILE) {                                           \
		va_list args;                                                                                \
		va_start(args, flags);                                                                       \
		mode = va_arg(args, mode_t);                                                                 \
		va_end(args);                                                                                \
	}

// forbidden returns the errno with which the kernel refuses to open a place with flags: what sysfs has is read only.
static int forbidden(const struct place *p, const char *file, int flags)
{
	if (p->kind)
		return flags & O_CREAT && flags & O_EXCL ? EEXIST : flags & O_DIRECTORY ? ENOTDIR : 0;
	return of_exec(p) && is_sysfs(p, file) && flags & (O_ACCMODE | O_TRUNC | O_CREAT) ? EACCES : 0;
}

// Calls of open: a device is the library's, and other files are libc's.
#define OPENED(dir, call)                                                                                    \
	ELSEWHERE(dir, path);                                                                                \
	int refused = forbidden(&place, path, flags);                                                             \
	if (refused) {                                                                                       \
		errno = refused;                                                                             \
		return -1;                                                                                   \
	}                                                                                                    \
	return place.kind ? open_device(place.kind, flags) : call

#define OPEN(name)                                                                                           \
	PUBLIC int name(const char *path, int flags, ...)                                                    \
	{                                                                                                    \
		REAL(name);                                                                                  \
		MODE(flags)                                                                                  \
		OPENED(AT_FDCWD, real(path, flags, mode));                                                   \
	}
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                         \
	PUBLIC int name(int dir, const char *path, int flags, ...)                                           \
	{                                                                                                    \
		REAL(name);                                                                                  \
		MODE(flags)                                                                                  \
		OPENED(dir, real(dir, path, flags, mode));                                                   \
	}
OPENAT(openat)
OPENAT(openat64)

// What fortified programs call in place of open without a mode.
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);
PUBLIC int __open_2(const char *path, int flags) { return open(path, flags); }
PUBLIC int __open64_2(const char *path, int flags) { return open64(path, flags); }
PUBLIC int __openat_2(int dir, const char *path, int flags) { return openat(dir, path, flags); }
PUBLIC int __openat64_2(int dir, const char *path, int flags) { return openat64(dir, path, flags); }

uint64_t let_go(int fd)
{
	uint32_t slot = slot_of(fd);
	if (!slot || strange() || !atomic_compare_exchange_strong(&slots[fd], &slot, 0) || !OBJECT(slot))
		return 0;
	return atomic_fetch_sub(&duplicates[OBJECT(slot)], 1) == 1 ? OBJECT(slot) : 0;
}

void leave(uint64_t object)
{
	struct library *lib;
	if (!object)
		return;
	if ((lib = begin_call())) {
		lib->close(object);
		end_call(lib);
	} else if (errno == EDEADLK)
		close_later((uint32_t)object);
}

static int close_device(int fd)
{
	uint64_t object = let_go(fd);
	int failed = (int)syscall(SYS_close, fd), saved = errno;
	leave(object);
	errno = saved;
	return failed;
}

PUBLIC int close(int fd)
{
	REAL(close);
	if (hidden(fd)) {
		errno = EBADF;
		return -1;
	}
	if (!slot_of(fd))
		return real(fd);
	pthread_testcancel(); // a thread that is cancelled has not closed it, and in close_device it can't be
	return close_device(fd);
}

// next_hidden returns the library's first descriptor from fd on, SLOTS or more if there is none.
static unsigned next_hidden(unsigned fd)
{
	while (fd < SLOTS && !hidden((int)fd))
		fd++;
	return fd;
}

PUBLIC int close_range(unsigned first, unsigned last, int flags)
{
	REAL(close_range);
	// The library's have CLOSE_RANGE_CLOEXEC, and a call that fails closes nothing.
	if (first > last || flags & ~(int)CLOSE_RANGE_UNSHARE)
		return real(first, last, flags);
	if (!strange())
		for (unsigned fd = first; fd <= last && fd < SLOTS; fd++)
			if (slot_of((int)fd))
				close_device((int)fd);
	while (first <= last) {
		unsigned next = next_hidden(first);
		if (next >= SLOTS || next > last)
			return real(first, last, flags);
		if (next > first && real(first, next - 1, flags) < 0)
			return -1;
		first = next + 1;
	}
	return 0;
}

PUBLIC void closefrom(int first)
{
	REAL(closefrom);
	unsigned fd = first < 0 ? 0 : (unsigned)first;
	if (close_range(fd, ~0u, 0) == 0)
		return;
	// A kernel before 5.9 has no such call, and filters of containers refuse it. libc then closes the library's, too.
	for (; fd < SLOTS; fd++)
		if (!hidden((int)fd))
			syscall(SYS_close, fd);
	real((int)fd);
}

// duplicated makes a duplicate one of the same object. A descriptor beyond the table can't be one.
static int duplicated(int from, int to)
{
	uint32_t slot = slot_of(from);
	if (to < 0 || !slot || strange())
		return to;
	if (to >= SLOTS) {
		syscall(SYS_close, to);
		errno = EMFILE;
		return -1;
	}
	adopt(to, slot);
	return to;
}

PUBLIC int dup(int fd)
{
	REAL(dup);
	return duplicated(fd, real(fd));
}

PUBLIC int dup3(int from, int to, int flags)
{
	REAL(dup3);
	if (hidden(to)) { // as if somebody else were opening it
		errno = EBUSY;
		return -1;
	}
	int fd = real(from, to, flags);
	if (fd < 0 || (!slot_of(from) && !slot_of(to)))
		return fd;
	uint64_t object = let_go(to); // what to was before
	fd = duplicated(from, fd);
	int saved = errno;
	leave(object);
	errno = saved;
	return fd;
}

PUBLIC int dup2(int from, int to)
{
	REAL(dup2);
	if (from == to || (!slot_of(from) && !slot_of(to) && !hidden(to)))
		return real(from, to);
	return dup3(from, to, 0);
}

#define FCNTL(name)                                                                                          \
	PUBLIC int name(int fd, int command, ...)                                                            \
	{                                                                                                    \
		REAL(name);                                                                                  \
		va_list args;                                                                                \
		va_start(args, command);                                                                     \
		void *arg = va_arg(args, void *);                                                            \
		va_end(args);                                                                                \
		int got = real(fd, command, arg);                                                            \
		if (command == F_GETFL && got >= 0 && kind_of(fd) == EVENTS)                                 \
			got &= ~O_ACCMODE; /* which is O_RDONLY then */                                      \
		return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? duplicated(fd, got) : got;         \
	}
FCNTL(fcntl)
FCNTL(fcntl64)

// ---- commands

// closed is for a command that has begun to wait when another thread closes the descriptor: with the kernel's, it waits
// until a signal comes, because it has the file itself. One that was not to wait ends.
static int closed(int flags)
{
	if (!(flags & O_NONBLOCK))
		return pause();
	errno = EBADF;
	return -1;
}

// next_event waits for an event of rdma_cm, as O_NONBLOCK says, which flags have of the descriptor. Its octet stays for
// the library. It is a point where the thread can be cancelled, as write is: rping ends its threads so.
static int next_event(int fd, int flags)
{
	char octet;
	ssize_t n = recv(fd, &octet, 1, MSG_PEEK);
	if (n == 0 || (n < 0 && (errno == EBADF || errno == ENOTSOCK)))
		return closed(flags);
	return n == 1 ? 0 : -1;
}

// A thread can be cancelled where a program writes its command to the kernel, too: commands of rdma_cm, and doorbells.
// On siw, libibverbs has ioctl for the other commands, in which that is not possible. Some of these are as long as a
// doorbell. libibverbs has them on the stack, and libsiw its doorbells in its QPs.
static int cancels(enum kind kind, const void *buf, size_t n)
{
	enum { doorbell = sizeof(struct ib_uverbs_cmd_hdr) + sizeof(struct ib_uverbs_post_send), near = 1 << 16 };
	return kind != UVERBS || (n == doorbell && (uintptr_t)buf - (uintptr_t)__builtin_frame_address(0) >= near);
}

static ssize_t command(int fd, uint32_t slot, const void *buf, size_t n)
{
	if (cancels(KIND(slot), buf, n))
		pthread_testcancel();
	if (KIND(slot) == DEAD) { // a parent's
		errno = EIO;
		return -1;
	}
	int flags = 0;
	if (KIND(slot) == CM && (flags = (int)syscall(SYS_fcntl, fd, F_GETFL)) < 0)
		return -1; // closed since
	for (int waited = 0;; waited = 1) {
		struct library *lib = begin_call();
		if (!lib)
			return -1;
		long got = lib->write(OBJECT(slot), buf, n);
		end_call(lib);
		if (got == -EBADF && waited)
			return closed(flags);
		if (got != -EAGAIN || KIND(slot) != CM)
			return result(got);
		if (next_event(fd, flags) < 0) // only GET_EVENT returns EAGAIN: the library has no event
			return -1;
	}
}

PUBLIC ssize_t write(int fd, const void *buf, size_t n)
{
	REAL(write);
	uint32_t slot = slot_of(fd);
	switch (KIND(slot)) {
	case NONE:
		return real(fd, buf, n);
	case NETLINK:
		return ask(fd, buf, n);
	case EVENTS: // which is open for reading
		errno = EBADF;
		return -1;
	default:
		return command(fd, slot, buf, n);
	}
}

PUBLIC int ioctl(int fd, unsigned long request, ...)
{
	REAL(ioctl);
	va_list args;
	va_start(args, request);
	void *arg = va_arg(args, void *);
	va_end(args);
	enum kind kind = KIND(slot_of(fd));
	int of_files = request == FIOCLEX || request == FIONCLEX || request == FIONBIO;
	if (!of_files && (kind == UVERBS || kind == DEAD)) { // libibverbs then writes its commands
		errno = kind == UVERBS ? ENOTTY : EIO;
		return -1;
	}
	return real(fd, request, arg);
}
