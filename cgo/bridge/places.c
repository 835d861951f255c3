// What a path names: one of the devices, a file that stands for what sysfs has of them, or a file of the system.
#define _GNU_SOURCE
#include "preload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEVICES "/dev/infiniband"

// readable reports whether the program has the memory at an address. The kernel copies the set before it finds that
// -1 is no way to change a mask.
static int readable(uintptr_t at)
{
	at &= ~(uintptr_t)7;
	return at && (syscall(SYS_rt_sigprocmask, -1, at, NULL, 8) == 0 || errno != EFAULT);
}

// A reader reads a string that may end, or begin, where the program has no memory.
struct reader {
	uintptr_t at, checked; // checked: a page
	size_t left;           // of what the kernel takes as a path
};

enum {
	page = 4096,
	known_pages = 16,
	longest_path = 4096,
};

// Pages that were readable: programs name one file after the other, and to ask the kernel about each name would double
// the time of stat.
static _Atomic uintptr_t known[known_pages];

void forget_pages(void)
{
	for (int i = 0; i < known_pages; i++)
		atomic_store_explicit(&known[i], 0, memory_order_relaxed);
}

// page_readable is readable for a page, by its last address.
static int page_readable(uintptr_t last)
{
	_Atomic uintptr_t *was = &known[last / page % known_pages];
	if (atomic_load_explicit(was, memory_order_relaxed) != last) {
		if (!readable(last))
			return 0;
		atomic_store_explicit(was, last, memory_order_relaxed);
	}
	return 1;
}

// next returns a character, 0 at the end of the string, and -1 where there is no memory or the string is too long.
static int next(struct reader *r)
{
	if (r->left-- == 0)
		return -1;
	if (r->checked != (r->at | (page - 1))) {
		if (!page_readable(r->at | (page - 1)))
			return -1;
		r->checked = r->at | (page - 1);
	}
	return *(const unsigned char *)r->at++;
}

// add adds a part to the n characters of an absolute path, after which it lies already. It returns the new length.
static long add(char *to, long n, size_t length)
{
	const char *part = to + n + 1;
	if (length == 1 && part[0] == '.')
		return n;
	if (length == 2 && part[0] == '.' && part[1] == '.') {
		while (n > 0 && to[--n] != '/')
			;
		return n;
	}
	to[n] = '/';
	return n + 1 + (long)length;
}

// begins reports whether path is prefix, or a file below it.
static int begins(const char *path, const char *prefix)
{
	size_t n = strlen(prefix);
	return strncmp(path, prefix, n) == 0 && (path[n] == 0 || path[n] == '/');
}

// seen makes the name of a file below root the one that the program knows, and reports whether it was such a name.
static int seen(char *path, const char *root)
{
	size_t above = strlen(root);
	if (above < strlen("/sys") || !begins(path, root) || !path[above])
		return 0;
	if (begins(path + above, "/class")) {
		above -= strlen("/sys");
		memcpy(path + above, "/sys", strlen("/sys"));
	}
	memmove(path, path + above, strlen(path + above) + 1);
	return 1;
}

// base writes the name of the folder that relative paths begin at, without a slash at the end. -1: it does not fit, or
// is not known.
static long base(int dir, char *to, size_t size)
{
	long n;
	if (dir == AT_FDCWD)
		n = syscall(SYS_getcwd, to, size) - 1; // of the end of the string
	else {
		char name[32] = "/proc/thread-self/fd/", digits[12];
		size_t at = strlen(name), count = 0;
		if (dir < 0)
			return -1;
		do
			digits[count++] = (char)('0' + dir % 10);
		while (dir /= 10);
		while (count)
			name[at++] = digits[--count];
		n = syscall(SYS_readlinkat, AT_FDCWD, name, to, size);
	}
	if (n <= 0 || n >= (long)size || to[0] != '/')
		return -1;
	to[n] = 0;
	return n == 1 ? 0 : n;
}

static enum kind device(const char *path)
{
	if (!begins(path, DEVICES) || !path[sizeof DEVICES - 1])
		return NONE;
	path += sizeof DEVICES;
	return strcmp(path, "uverbs0") == 0 ? UVERBS : strcmp(path, "rdma_cm") == 0 ? CM : NONE;
}

// stands reports whether there is a file below root for an absolute path.
static int stands(const char *path)
{
	return begins(path, "/sys/class/infiniband") || begins(path, "/sys/class/infiniband_verbs") ||
	       begins(path, "/sys/class/infiniband_cm") || begins(path, "/sys/class/misc/rdma_cm") || begins(path, DEVICES);
}

// Whether a folder that exec has may have been opened, and whether the program may have been in one. Only then can a
// relative path name a place without a name of one in it.
static int opened, visited = 1; // until where the program begins is known

void visit(const struct place *p) { visited |= p ? p->root != NULL : opened; }

// names reports whether a part of a path begins as one of the names that all places have.
static int names(const char *path)
{
	static const char *const all[] = {"infiniband", "rdma_cm"};
	struct reader r = {.at = (uintptr_t)path, .left = longest_path};
	const char *left[] = {all[0], all[1]}; // of the name, NULL if this part is another
	for (int c; (c = next(&r)) > 0;)
		for (int i = 0; i < 2; i++) {
			if (c == '/')
				left[i] = all[i];
			else if (left[i])
				left[i] = c == *left[i] ? left[i] + 1 : NULL;
			if (left[i] && !*left[i])
				return 1;
		}
	return 0;
}

__attribute__((constructor)) static void find_beginning(void)
{
	char text[longest_path];
	visited = base(AT_FDCWD, text, sizeof text) < 0 || names(text);
}

// near reports whether a path can name a place at all. The folder that a relative one begins at is known after a system
// call only.
static int near(int dir, const char *path)
{
	struct reader r = {.at = (uintptr_t)path, .left = 1};
	int relative = next(&r) != '/';
	return (relative && (dir == AT_FDCWD ? visited : opened)) || names(path);
}

// A path that is being read.
struct spelling {
	struct reader from;
	char *text; // the absolute path that it stands for, without links: "//", "." and ".." are gone
	size_t size;
	int folder; // it ends in a slash or the like
	int inside; // it begins at a folder below root
};

// collapse writes the text. It returns the length, -1 for what is not readable or has no room.
static long collapse(int dir, struct spelling *s, const char *root)
{
	int c = next(&s->from);
	long n = c == '/' ? 0 : c > 0 ? base(dir, s->text, s->size) : -1;
	if (n > 0 && (s->inside = seen(s->text, root)))
		n = (long)strlen(s->text);
	while (n >= 0 && c > 0) {
		char *part = s->text + n + 1; // which is where it will be
		size_t length = 0;
		for (; c > 0 && c != '/'; c = next(&s->from)) {
			if ((size_t)n + 2 + length >= s->size)
				return -1;
			part[length++] = (char)c;
		}
		s->folder = c == '/' || (length == 1 && part[0] == '.') || (length == 2 && part[0] == '.' && part[1] == '.');
		if (length)
			n = add(s->text, n, length);
		while (c == '/')
			c = next(&s->from);
	}
	if (n >= 0)
		s->text[n] = 0;
	return c < 0 ? -1 : n;
}

// below returns the part of a path that its file has below root.
static const char *below(const char *path) { return begins(path, "/sys") ? path + strlen("/sys") : path; }

// look finds out what is at a path. If room is not NULL, and p->size bytes are enough, it gets the name of the file.
__attribute__((noinline)) static int look(int dir, const char *path, struct place *p, char *room)
{
	const char *root = settings()->sysfs;
	if (!root || !near(dir, path))
		return 0;
	size_t size = strlen(root) + longest_path; // the folder that a relative path begins at may be as long
	char text[size];
	struct spelling s = {.from = {.at = (uintptr_t)path, .left = longest_path}, .text = text, .size = size};
	if (collapse(dir, &s, root) < 0)
		return 0;
	seen(text, root);
	int stand = stands(text);
	if (!stand && !s.inside)
		return 0;
	opened = 1;
	p->root = stand ? root : "";
	p->kind = s.folder ? NONE : device(text);
	const char *rest = stand ? below(text) : text;
	size_t room_for = strlen(p->root) + strlen(rest) + sizeof "/";
	if (room && room_for > p->size)
		return 0;
	p->size = room_for;
	if (room)
		strcat(strcat(strcpy(room, p->root), rest), s.folder ? "/" : "");
	return 1;
}

void find_place(int dir, const char *path, struct place *p)
{
	int saved = errno;
	*p = (struct place){.size = 1};
	look(dir, path, p, NULL);
	errno = saved;
}

// Another thread may change the path between these two. What is at the path is what has been found at last.
const char *file_of(int dir, const char *path, struct place *p, char *room)
{
	struct place again = {.size = p->size};
	int saved = errno;
	if (p->root && look(dir, path, &again, room))
		path = room;
	else
		again = (struct place){0};
	*p = again;
	errno = saved;
	return path;
}

size_t name_of(const struct place *p, const char *file, char *to)
{
	const char *rest = file + strlen(p->root), *sys = begins(rest, "/class") ? "/sys" : "";
	size_t n = strlen(rest);
	n -= rest[n - 1] == '/';
	if (to)
		*(char *)mempcpy(stpcpy(to, sys), rest, n) = 0;
	return strlen(sys) + n;
}
