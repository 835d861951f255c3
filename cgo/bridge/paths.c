// Calls that take paths, or say what a descriptor is. The device is there for all of them, and what sysfs has of it is
// below $GOVS_BRIDGE_SYSFS.
#define _GNU_SOURCE
#include "preload.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#define DEVICES "/dev/infiniband"

enum kind device(const char *path)
{
	if (!path || strncmp(path, DEVICES "/", sizeof DEVICES) != 0)
		return NONE;
	path += sizeof DEVICES;
	return strcmp(path, "uverbs0") == 0 ? UVERBS : strcmp(path, "rdma_cm") == 0 ? CM : NONE;
}

static dev_t number(enum kind kind)
{
	return kind == UVERBS ? makedev(231, 192) : makedev(10, 58);
}

// begins reports whether path is prefix, or a file below it.
static int begins(const char *path, const char *prefix)
{
	size_t n = strlen(prefix);
	return strncmp(path, prefix, n) == 0 && (path[n] == 0 || path[n] == '/');
}

const char *moved(const char *path, const char **root)
{
	if (!path || path[0] != '/' || (path[1] != 's' && path[1] != 'd'))
		return NULL;
	const char *rest = NULL;
	if (begins(path, "/sys/class/infiniband") || begins(path, "/sys/class/infiniband_verbs") ||
	    begins(path, "/sys/class/infiniband_cm") || begins(path, "/sys/class/misc/rdma_cm"))
		rest = path + strlen("/sys");
	else if (begins(path, DEVICES))
		rest = path;
	return rest && (*root = settings()->sysfs) ? rest : NULL;
}

// ---- files and folders

PUBLIC FILE *fopen(const char *path, const char *mode)
{
	REAL(fopen);
	ELSEWHERE(path);
	return real(path, mode);
}

PUBLIC FILE *fopen64(const char *path, const char *mode)
{
	REAL(fopen64);
	ELSEWHERE(path);
	return real(path, mode);
}

PUBLIC DIR *opendir(const char *path)
{
	REAL(opendir);
	ELSEWHERE(path);
	return real(path);
}

#define SCANDIR(name, type)                                                                                  \
	PUBLIC int name(const char *path, struct type ***list, int (*which)(const struct type *),            \
			int (*order)(const struct type **, const struct type **))                            \
	{                                                                                                    \
		REAL(name);                                                                                  \
		ELSEWHERE(path);                                                                             \
		return real(path, list, which, order);                                                       \
	}
SCANDIR(scandir, dirent)
SCANDIR(scandir64, dirent64)

// ---- what files are

// fake fills in what stat says of a device. It has the layout of struct stat64, too.
static int fake(enum kind kind, struct stat *st)
{
	memset(st, 0, sizeof *st);
	st->st_mode = S_IFCHR | 0666;
	st->st_rdev = number(kind);
	st->st_nlink = 1;
	st->st_blksize = 4096;
	return 0;
}

_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "the two have one layout");

#define STAT(name, type)                                                                                     \
	PUBLIC int name(const char *path, struct type *st)                                                   \
	{                                                                                                    \
		REAL(name);                                                                                  \
		enum kind kind = device(path);                                                               \
		if (kind)                                                                                    \
			return fake(kind, (struct stat *)st);                                                \
		ELSEWHERE(path);                                                                             \
		return real(path, st);                                                                       \
	}
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

#define FSTAT(name, type)                                                                                    \
	PUBLIC int name(int fd, struct type *st)                                                             \
	{                                                                                                    \
		REAL(name);                                                                                  \
		enum kind kind = kind_of(fd);                                                          \
		return kind == UVERBS || kind == CM ? fake(kind, (struct stat *)st) : real(fd, st);          \
	}
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)

// unnamed reports whether a path with flags stands for the descriptor before it. The compiler believes that it is not
// NULL, which programs may pass all the same.
__attribute__((noipa)) static int unnamed(const char *path, int flags)
{
	return flags & AT_EMPTY_PATH && (!path || !path[0]);
}

#define FSTATAT(name, type)                                                                                  \
	PUBLIC int name(int dir, const char *path, struct type *st, int flags)                               \
	{                                                                                                    \
		REAL(name);                                                                                  \
		enum kind kind = unnamed(path, flags) ? kind_of(dir) : device(path);                   \
		if (kind == UVERBS || kind == CM)                                                            \
			return fake(kind, (struct stat *)st);                                                \
		ELSEWHERE(path);                                                                             \
		return real(dir, path, st, flags);                                                           \
	}
FSTATAT(fstatat, stat)
FSTATAT(fstatat64, stat64)

PUBLIC int statx(int dir, const char *path, int flags, unsigned mask, struct statx *st)
{
	REAL(statx);
	enum kind kind = unnamed(path, flags) ? kind_of(dir) : device(path);
	if (kind == UVERBS || kind == CM) {
		memset(st, 0, sizeof *st);
		st->stx_mask = STATX_TYPE | STATX_MODE | STATX_NLINK;
		st->stx_mode = S_IFCHR | 0666;
		st->stx_nlink = 1;
		st->stx_blksize = 4096;
		st->stx_rdev_major = major(number(kind));
		st->stx_rdev_minor = minor(number(kind));
		return 0;
	}
	ELSEWHERE(path);
	return real(dir, path, flags, mask, st);
}

// What programs call that were built with a glibc before 2.33.
#define XSTAT(name, type)                                                                                    \
	int name(int version, const char *path, struct type *st);                                            \
	PUBLIC int name(int version, const char *path, struct type *st)                                      \
	{                                                                                                    \
		REAL(name);                                                                                  \
		enum kind kind = device(path);                                                               \
		if (kind)                                                                                    \
			return fake(kind, (struct stat *)st);                                                \
		ELSEWHERE(path);                                                                             \
		return real(version, path, st);                                                              \
	}
XSTAT(__xstat, stat)
XSTAT(__xstat64, stat64)
XSTAT(__lxstat, stat)
XSTAT(__lxstat64, stat64)

#define FXSTAT(name, type)                                                                                   \
	int name(int version, int fd, struct type *st);                                                      \
	PUBLIC int name(int version, int fd, struct type *st)                                                \
	{                                                                                                    \
		REAL(name);                                                                                  \
		enum kind kind = kind_of(fd);                                                          \
		return kind == UVERBS || kind == CM ? fake(kind, (struct stat *)st) : real(version, fd, st); \
	}
FXSTAT(__fxstat, stat)
FXSTAT(__fxstat64, stat64)

PUBLIC int access(const char *path, int mode)
{
	REAL(access);
	if (device(path))
		return mode & X_OK ? (errno = EACCES, -1) : 0;
	ELSEWHERE(path);
	return real(path, mode);
}

PUBLIC int faccessat(int dir, const char *path, int mode, int flags)
{
	REAL(faccessat);
	if (device(path))
		return access(path, mode);
	ELSEWHERE(path);
	return real(dir, path, mode, flags);
}

PUBLIC ssize_t readlink(const char *path, char *to, size_t n)
{
	REAL(readlink);
	ELSEWHERE(path);
	return real(path, to, n);
}

#define GETXATTR(name)                                                                                       \
	PUBLIC ssize_t name(const char *path, const char *key, void *value, size_t n)                        \
	{                                                                                                    \
		REAL(name);                                                                                  \
		ELSEWHERE(path);                                                                             \
		return real(path, key, value, n);                                                            \
	}
GETXATTR(getxattr)
GETXATTR(lgetxattr)

#define LISTXATTR(name)                                                                                      \
	PUBLIC ssize_t name(const char *path, char *list, size_t n)                                          \
	{                                                                                                    \
		REAL(name);                                                                                  \
		ELSEWHERE(path);                                                                             \
		return real(path, list, n);                                                                  \
	}
LISTXATTR(listxattr)
LISTXATTR(llistxattr)
