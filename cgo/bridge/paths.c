// Calls that take paths, or say what a descriptor is. The device is there for all of them, and what sysfs has of it is
// below $GOVS_BRIDGE_SYSFS.
#define _GNU_SOURCE
#include "preload.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

static dev_t number(enum kind kind)
{
	return kind == UVERBS ? makedev(231, 192) : makedev(10, 58);
}

// ---- files and folders

#define FOPEN(name)                                                                                          \
	PUBLIC FILE *name(const char *path, const char *mode)                                                \
	{                                                                                                    \
		REAL(name);                                                                                  \
		ELSEWHERE(AT_FDCWD, path);                                                                   \
		if (of_exec(&place) && !place.kind && (mode[0] != 'r' || strchr(mode, '+'))) {                    \
			errno = EACCES; /* what sysfs has is read only */                                    \
			return NULL;                                                                         \
		}                                                                                            \
		if (place.kind && strchr(mode, 'x')) {                                                       \
			errno = EEXIST;                                                                      \
			return NULL;                                                                         \
		}                                                                                            \
		if (place.kind) /* to write would change the file that stands for the device */              \
			mode = strchr(mode, 'e') ? "re" : "r";                                               \
		return real(path, mode);                                                                     \
	}
FOPEN(fopen)
FOPEN(fopen64)

PUBLIC DIR *opendir(const char *path)
{
	REAL(opendir);
	ELSEWHERE(AT_FDCWD, path);
	return real(path);
}

PUBLIC int chdir(const char *path)
{
	REAL(chdir);
	ELSEWHERE(AT_FDCWD, path);
	visit(&place);
	return real(path);
}

PUBLIC int fchdir(int fd)
{
	REAL(fchdir);
	visit(NULL);
	return real(fd);
}

#define SCANDIR(name, type)                                                                                  \
	PUBLIC int name(const char *path, struct type ***list, int (*which)(const struct type *),            \
			int (*order)(const struct type **, const struct type **))                            \
	{                                                                                                    \
		REAL(name);                                                                                  \
		ELSEWHERE(AT_FDCWD, path);                                                                   \
		return real(path, list, which, order);                                                       \
	}
SCANDIR(scandir, dirent)
SCANDIR(scandir64, dirent64)

// libc's own calls of glob are not intercepted, but it takes functions in place of them.
#define GLOB(name, type, stat, lstat, readdir)                                                               \
	PUBLIC int name(const char *pattern, int flags, int (*failed)(const char *, int), type *found)       \
	{                                                                                                    \
		REAL(name);                                                                                  \
		struct place place;                                                                          \
		find_place(AT_FDCWD, pattern, &place);                                                       \
		if (!of_exec(&place) || flags & GLOB_ALTDIRFUNC)                                                  \
			return real(pattern, flags, failed, found);                                          \
		found->gl_opendir = (void *(*)(const char *))opendir;                                        \
		found->gl_closedir = (void *)closedir;                                                      \
		found->gl_readdir = (void *)readdir;                                                         \
		found->gl_stat = (void *)stat;                                                               \
		found->gl_lstat = (void *)lstat;                                                             \
		int got = real(pattern, flags | GLOB_ALTDIRFUNC, failed, found);                             \
		found->gl_flags &= ~GLOB_ALTDIRFUNC;                                                         \
		return got;                                                                                  \
	}
GLOB(glob, glob_t, stat, lstat, readdir)
GLOB(glob64, glob64_t, stat64, lstat64, readdir64)

// resolved returns the name that a place has, in room if that is not NULL.
static char *resolved(const struct place *p, const char *file, char *room)
{
	if (syscall(SYS_faccessat, AT_FDCWD, file, F_OK) < 0)
		return NULL;
	if (room || (room = malloc(name_of(p, file, NULL) + 1)))
		name_of(p, file, room);
	return room;
}

PUBLIC char *realpath(const char *path, char *to)
{
	REAL(realpath);
	ELSEWHERE(AT_FDCWD, path);
	return of_exec(&place) ? resolved(&place, path, to) : real(path, to);
}

char *__realpath_chk(const char *path, char *to, size_t n);
PUBLIC char *__realpath_chk(const char *path, char *to, size_t n)
{
	REAL(__realpath_chk);
	ELSEWHERE(AT_FDCWD, path);
	return of_exec(&place) && n >= PATH_MAX ? resolved(&place, path, to) : real(path, to, n);
}

PUBLIC char *canonicalize_file_name(const char *path)
{
	REAL(canonicalize_file_name);
	ELSEWHERE(AT_FDCWD, path);
	return of_exec(&place) ? resolved(&place, path, NULL) : real(path);
}

// ---- what files are

// fake changes what stat has said of the file that stands for a device. It has the layout of struct stat64, too.
static void fake(enum kind kind, struct stat *st)
{
	st->st_mode = S_IFCHR | 0666;
	st->st_rdev = number(kind);
	st->st_nlink = 1;
	st->st_uid = st->st_gid = 0;
	st->st_size = st->st_blocks = 0;
	st->st_blksize = 4096;
}

_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "the two have one layout");

static int faked(int failed, enum kind kind, void *st)
{
	if (!failed && (kind == UVERBS || kind == CM))
		fake(kind, st);
	return failed;
}

#define STAT(name, type)                                                                                     \
	PUBLIC int name(const char *path, struct type *st)                                                   \
	{                                                                                                    \
		REAL(name);                                                                                  \
		ELSEWHERE(AT_FDCWD, path);                                                                   \
		return faked(real(path, st), place.kind, st);                                                \
	}
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

#define FSTAT(name, type)                                                                                    \
	PUBLIC int name(int fd, struct type *st)                                                             \
	{                                                                                                    \
		REAL(name);                                                                                  \
		return faked(real(fd, st), kind_of(fd), st);                                                 \
	}
FSTAT(fstat, stat)
FSTAT(fstat64, stat64)

// kind_at returns what a call with flags is about: with an empty path, the descriptor before it.
// The compiler believes that the path is not NULL, which programs may pass all the same.
__attribute__((noipa)) static enum kind kind_at(int dir, const struct place *p, const char *path, int flags)
{
	if (p->root || !(flags & AT_EMPTY_PATH))
		return p->kind;
	return !path || !path[0] ? kind_of(dir) : NONE;
}

#define FSTATAT(name, type)                                                                                  \
	PUBLIC int name(int dir, const char *path, struct type *st, int flags)                               \
	{                                                                                                    \
		REAL(name);                                                                                  \
		ELSEWHERE(dir, path);                                                                        \
		int failed = real(dir, path, st, flags);                                                     \
		return failed ? failed : faked(0, kind_at(dir, &place, path, flags), st);                    \
	}
FSTATAT(fstatat, stat)
FSTATAT(fstatat64, stat64)

PUBLIC int statx(int dir, const char *path, int flags, unsigned mask, struct statx *st)
{
	REAL(statx);
	ELSEWHERE(dir, path);
	int failed = real(dir, path, flags, mask, st);
	enum kind kind = failed ? NONE : kind_at(dir, &place, path, flags);
	if (kind == UVERBS || kind == CM) {
		st->stx_mask |= STATX_TYPE | STATX_MODE | STATX_NLINK;
		st->stx_mode = S_IFCHR | 0666;
		st->stx_nlink = 1;
		st->stx_uid = st->stx_gid = 0;
		st->stx_size = st->stx_blocks = 0;
		st->stx_blksize = 4096;
		st->stx_rdev_major = major(number(kind));
		st->stx_rdev_minor = minor(number(kind));
	}
	return failed;
}

// What programs call that were built with a glibc before 2.33.
#define XSTAT(name, type)                                                                                    \
	int name(int version, const char *path, struct type *st);                                            \
	PUBLIC int name(int version, const char *path, struct type *st)                                      \
	{                                                                                                    \
		REAL(name);                                                                                  \
		ELSEWHERE(AT_FDCWD, path);                                                                   \
		return faked(real(version, path, st), place.kind, st);                                       \
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
		return faked(real(version, fd, st), kind_of(fd), st);                                        \
	}
FXSTAT(__fxstat, stat)
FXSTAT(__fxstat64, stat64)

#define FXSTATAT(name, type)                                                                                 \
	int name(int version, int dir, const char *path, struct type *st, int flags);                        \
	PUBLIC int name(int version, int dir, const char *path, struct type *st, int flags)                  \
	{                                                                                                    \
		REAL(name);                                                                                  \
		ELSEWHERE(dir, path);                                                                        \
		int failed = real(version, dir, path, st, flags);                                            \
		return failed ? failed : faked(0, kind_at(dir, &place, path, flags), st);                    \
	}
FXSTATAT(__fxstatat, stat)
FXSTATAT(__fxstatat64, stat64)

// Everybody may write to a device; the file that stands for it can be read only.
#define ACCESS(name)                                                                                         \
	PUBLIC int name(const char *path, int mode)                                                          \
	{                                                                                                    \
		REAL(name);                                                                                  \
		ELSEWHERE(AT_FDCWD, path);                                                                   \
		return real(path, place.kind ? mode & ~W_OK : mode);                                         \
	}
ACCESS(access)
ACCESS(eaccess)
ACCESS(euidaccess)

PUBLIC int faccessat(int dir, const char *path, int mode, int flags)
{
	REAL(faccessat);
	ELSEWHERE(dir, path);
	return real(dir, path, place.kind ? mode & ~W_OK : mode, flags);
}

PUBLIC ssize_t readlink(const char *path, char *to, size_t n)
{
	REAL(readlink);
	ELSEWHERE(AT_FDCWD, path);
	return real(path, to, n);
}

PUBLIC ssize_t readlinkat(int dir, const char *path, char *to, size_t n)
{
	REAL(readlinkat);
	ELSEWHERE(dir, path);
	return real(dir, path, to, n);
}

// What fortified programs call instead.
ssize_t __readlink_chk(const char *path, char *to, size_t n, size_t space);
PUBLIC ssize_t __readlink_chk(const char *path, char *to, size_t n, size_t space)
{
	REAL(__readlink_chk);
	ELSEWHERE(AT_FDCWD, path);
	return real(path, to, n, space);
}

ssize_t __readlinkat_chk(int dir, const char *path, char *to, size_t n, size_t space);
PUBLIC ssize_t __readlinkat_chk(int dir, const char *path, char *to, size_t n, size_t space)
{
	REAL(__readlinkat_chk);
	ELSEWHERE(dir, path);
	return real(dir, path, to, n, space);
}

#define GETXATTR(name)                                                                                       \
	PUBLIC ssize_t name(const char *path, const char *key, void *value, size_t n)                        \
	{                                                                                                    \
		REAL(name);                                                                                  \
		ELSEWHERE(AT_FDCWD, path);                                                                             \
		return real(path, key, value, n);                                                            \
	}
GETXATTR(getxattr)
GETXATTR(lgetxattr)

#define LISTXATTR(name)                                                                                      \
	PUBLIC ssize_t name(const char *path, char *list, size_t n)                                          \
	{                                                                                                    \
		REAL(name);                                                                                  \
		ELSEWHERE(AT_FDCWD, path);                                                                             \
		return real(path, list, n);                                                                  \
	}
LISTXATTR(listxattr)
LISTXATTR(llistxattr)
