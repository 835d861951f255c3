// What the files of libgovs-preload.so have in common.
#ifndef GOVS_PRELOAD_H
#define GOVS_PRELOAD_H

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

// real is the next definition of a function: libc's, or that of another library that was preloaded.
#define REAL(name)                                                                                           \
	static __typeof__(name) *_Atomic cached_##name;                                                      \
	__typeof__(name) *real = cached_##name;                                                              \
	if (!real)                                                                                           \
	cached_##name = real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

// settings are what exec says in the environment, of which the program may have cleared its own; NULL: nothing.
struct settings {
	const char *library, *sysfs;
};
const struct settings *settings(void);

// setting returns what exec has set a variable to, NULL if it has not.
const char *setting(const char *name);

enum kind { NONE, UVERBS, CM, EVENTS, NETLINK, DEAD };

// kind_of returns what a descriptor of the program is.
enum kind kind_of(int fd);

// device returns which of the devices a path names.
enum kind device(const char *path);

// moved returns what a path has below root, $GOVS_BRIDGE_SYSFS, if it is of what sysfs has of RDMA devices; NULL for
// other paths.
const char *moved(const char *path, const char **root);

// ELSEWHERE makes path the name of the file that stands for it. Other paths need no room: a handler may open a file,
// on a small stack.
#define ELSEWHERE(path)                                                                                      \
	const char *root = "", *rest = moved(path, &root);                                                   \
	char room[rest ? strlen(root) + strlen(rest) + 1 : 1];                                               \
	if (rest)                                                                                            \
	path = strcat(strcpy(room, root), rest)

// strange reports whether this is the child of a vfork, which runs in its parent's memory: what is kept there about the
// process must not change.
int strange(void);

// before_library and after_library stand around the start of the library, whose runtime changes what is the
// program's: signals, and the limit of descriptors. function is one of the library's, NULL if it was not loaded.
struct before_library;
struct before_library *before_library(void);
void after_library(struct before_library *, void *function);

// enter_library begins a call of the library, and leave_library ends it. 0: this is a signal handler, where the
// library can't be called.
int enter_library(void);
void leave_library(void);

// in_frames reports whether n octets at an address are on the stack of this thread, in the frames of the functions that
// have called the library: that memory is there.
int in_frames(uint64_t addr, uint64_t n);

// forget_library says that this is the child of a fork, where the library is dead.
void forget_library(void);

#endif
