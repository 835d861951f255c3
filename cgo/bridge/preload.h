// What the files of libgovs-preload.so have in common.
#ifndef GOVS_PRELOAD_H
#define GOVS_PRELOAD_H

#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#define PUBLIC __attribute__((visibility("default")))

// real is the next definition of a function: libc's, or that of another library that was preloaded. All are looked up
// when the program starts. Later that may wait for the loader's lock, which in the child of a fork nobody gives back.
struct next {
	const char *name;
	void *_Atomic function;
};
void *find_next(struct next *);
#define NEXT(name)                                                                                           \
	static struct next next_##name __attribute__((section("nexts"), used)) = {#name, NULL};              \
	__typeof__(name) *real = (__typeof__(name) *)next_##name.function
#define REAL(name)                                                                                           \
	NEXT(name);                                                                                          \
	if (!real)                                                                                           \
	real = (__typeof__(name) *)find_next(&next_##name)

// settings are what exec says in the environment, of which the program may have cleared its own; NULL: nothing.
struct settings {
	const char *library, *sysfs;
};
const struct settings *settings(void);

// setting returns what exec has set a variable to, NULL if it has not.
const char *setting(const char *name);

#define SLOTS (1 << 16) // descriptors that can be the device's: those with lower numbers

enum kind { NONE, UVERBS, CM, EVENTS, NETLINK, DEAD };

// kind_of returns what a descriptor of the program is.
enum kind kind_of(int fd);

// device_of returns the object of a descriptor of the device (UVERBS), 0 for another.
uint64_t device_of(int fd);

// hidden reports whether a descriptor is the library's own. The child of a vfork may close its copy of it.
int hidden(int fd);

// let_go takes a descriptor out of the table, before it is closed or when it has become another one. It returns the
// object whose last one it was, 0 if there are others. leave ends that object; 0 is none.
uint64_t let_go(int fd);
void leave(uint64_t object);

// A place is what the program finds at a path: one of the devices, or another file that exec has, below root. A file of
// the system has no root, NULL, and libc finds it by its path; or root is empty, because the program is in a folder that
// stands for another, and the path is made absolute.
struct place {
	enum kind kind;
	const char *root; // $GOVS_BRIDGE_SYSFS
	size_t size;      // of the room that file_of needs
};

// of_exec reports whether exec has a place.
static inline int of_exec(const struct place *p) { return p->root && *p->root; }

// is_sysfs reports whether a file of exec's stands for one of sysfs.
static inline int is_sysfs(const struct place *p, const char *file) { return file[strlen(p->root) + 1] == 'c'; }

// find_place finds out what is at a path that begins at a folder, as calls with at have it. It reads the path only
// where the program has memory, and allocates nothing: a handler may open a file, on a small stack.
void find_place(int dir, const char *path, struct place *);

// file_of returns the name of the file that stands for a path, in room, or the path itself, and changes the place to
// what is at the path by then.
const char *file_of(int dir, const char *path, struct place *, char *room);

// name_of writes the absolute path that the program has for a file which file_of has returned, and returns its length;
// to is NULL if only that is wanted.
size_t name_of(const struct place *, const char *file, char *to);

// ELSEWHERE makes path the name of the file that stands for it, and place what it is.
#define ELSEWHERE(dir, path)                                                                                 \
	struct place place;                                                                                  \
	find_place(dir, path, &place);                                                                       \
	char room[place.size];                                                                               \
	path = file_of(dir, path, &place, room)

// visit is for a call that changes the program's folder: to a place, or with NULL to that of a descriptor.
void visit(const struct place *);

// forget_pages is for a call after which the program may have no memory where it had some.
void forget_pages(void);

// strange reports whether this is the child of a vfork, which runs in its parent's memory: what is kept there about the
// process must not change.
int strange(void);

// watch_forks is called before anything is there that a child must not have.
void watch_forks(void);

// after_fork takes from the child of a fork what is its parent's, and forget_parent all but the descriptors that the
// library had there, for a child that has its parent's table of descriptors.
void after_fork(void);
void forget_parent(void);

// forget_mappings takes the regions from a child (mappings.c).
void forget_mappings(void);

// before_library and after_library stand around the start of the library, whose runtime changes what is the
// program's: signals, and the limit of descriptors. function is one of the library's, NULL if it was not loaded.
struct before_library;
struct before_library *before_library(void);
void after_library(struct before_library *, void *function);

// govs_thread_begins is for the library (lib/threads.c), which calls it first on each thread that it makes.
void govs_thread_begins(void);

// addresses reports whether the process may have as many addresses as the runtime reserves when it starts, because the
// runtime ends the process otherwise.
int addresses(void);

// await_start waits until no thread loads the library or opens a device, because meanwhile limits and signals of the
// process may not be the program's. It keeps others from beginning until allow_start.
void await_start(void);
void allow_start(void);

// enter_library begins a call of the library, and leave_library ends it; called is 0 if the library was not called after
// all, so that its runtime does not know the thread. 0: this is a signal handler, where the library can't be called.
int enter_library(void);
void leave_library(int called);

// first_call comes before each call of the library. It does nothing in a thread that the runtime knows.
void first_call(void);

// in_frames reports whether n bytes at an address are on the stack of this thread, in the frames of the functions that
// have called the library: that memory is there.
int in_frames(uint64_t addr, uint64_t n);

// forget_calls takes the signals and the thread from the library of a parent.
void forget_calls(void);

// ---- the library

struct library {
	int (*init)(void *owned, int n, void *adopt, void *find, void *frames, void *setting);
	int (*open)(int kind, int flags);
	long (*write)(uint64_t object, const void *buf, unsigned long n);
	void (*close)(uint64_t object);
	long (*netlink)(const void *request, unsigned long n, uint32_t port, void *answers, unsigned long room);
	void (*progress)(uint64_t object, uint32_t cq);
	void (*attend)(uint64_t object, uint32_t cq);
};

// load returns the library, NULL if it can't be loaded. initialize is for load: it calls init, and returns what that
// returns.
struct library *load(void);
int initialize(struct library *);

// forget_library is for the child of a fork, where the library is dead.
void forget_library(void);

// begin_call returns the library for a call, which end_call ends. NULL, with errno set: it is not loaded, or this is
// a signal handler.
struct library *begin_call(void);
void end_call(struct library *);

// close_later closes an object with the next call of any thread, because this is a signal handler.
void close_later(uint32_t object);

// result turns what the library returns into what libc returns.
long result(long n);

enum { most_vectors = 1024 }; // of a call; UIO_MAXIOV

// ask answers a request of a netlink socket: the answers come from a second socket, as many packets.
ssize_t ask(int fd, const void *request, size_t n);
void adopt_netlink(int fd);

// copy_in copies what the program has at an address: EFAULT if it has nothing there.
int copy_in(void *to, const void *from, size_t n);

#endif
