// All ways in which a program may name the device, a file of the device in sysfs, and a folder of such files.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static int wrong;

static void want(const char *what, const char *path, int is)
{
	if (is)
		return;
	printf("%s, %s: %s\n", what, path, strerror(errno));
	wrong = 1;
}

static void device(const char *folder, const char *path)
{
	char full[PATH_MAX];
	struct stat st;
	struct statx sx;
	int home = open(".", O_RDONLY | O_DIRECTORY), dir = folder ? open(folder, O_RDONLY | O_DIRECTORY) : AT_FDCWD;
	want("folder", folder ? folder : "", dir >= 0 || dir == AT_FDCWD);
	int fd = openat(dir, path, O_RDWR);
	want("openat", path, fd >= 0 && fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && major(st.st_rdev) == 231);
	want("fstatat", path, fstatat(dir, path, &st, 0) == 0 && S_ISCHR(st.st_mode));
	want("statx", path, statx(dir, path, 0, STATX_TYPE, &sx) == 0 && S_ISCHR(sx.stx_mode));
	want("faccessat", path, faccessat(dir, path, R_OK | W_OK, 0) == 0);
	want("faccessat, executing", path, faccessat(dir, path, X_OK, 0) < 0 && errno == EACCES);
	want("openat, new", path, openat(dir, path, O_RDWR | O_CREAT | O_EXCL, 0600) < 0 && errno == EEXIST);
	want("openat, a folder", path, openat(dir, path, O_RDONLY | O_DIRECTORY) < 0 && errno == ENOTDIR);
	close(fd);
	if (!folder || chdir(folder) == 0) {
		want("open", path, (fd = open(path, O_RDWR)) >= 0 && fstat(fd, &st) == 0 && S_ISCHR(st.st_mode));
		want("stat", path, stat(path, &st) == 0 && S_ISCHR(st.st_mode));
		want("access", path, access(path, R_OK | W_OK) == 0);
		want("eaccess", path, eaccess(path, R_OK | W_OK) == 0);
		want("euidaccess", path, euidaccess(path, R_OK | W_OK) == 0);
		want("realpath", path, realpath(path, full) && strcmp(full, "/dev/infiniband/uverbs0") == 0);
		char *name = canonicalize_file_name(path);
		want("canonicalize_file_name", path, name && strcmp(name, full) == 0);
		want("below the device", path, open(strcat(strcpy(full, path), "/"), O_RDWR) < 0 && errno == ENOTDIR);
		close(fd);
	} else
		want("chdir", folder, 0);
	want("back", ".", fchdir(home) == 0);
	close(home);
	if (folder)
		close(dir);
}

static void attribute(const char *folder, const char *path)
{
	char text[64] = "";
	struct stat st;
	int home = open(".", O_RDONLY | O_DIRECTORY), dir = folder ? open(folder, O_RDONLY | O_DIRECTORY) : AT_FDCWD;
	int fd = openat(dir, path, O_RDONLY);
	want("openat", path, fd >= 0 && read(fd, text, sizeof text - 1) > 0 && strcmp(text, "4: RNIC\n") == 0);
	close(fd);
	want("fstatat", path, fstatat(dir, path, &st, 0) == 0 && S_ISREG(st.st_mode));
	want("openat, to write", path, openat(dir, path, O_WRONLY | O_TRUNC) < 0 && errno == EACCES);
	if (folder)
		want("chdir", folder, chdir(folder) == 0);
	FILE *f = fopen(path, "r");
	want("fopen", path, f && fgets(text, sizeof text, f));
	want("fopen, to write", path, !fopen(path, "w") && errno == EACCES);
	if (f)
		fclose(f);
	want("back", ".", fchdir(home) == 0);
	close(home);
	if (folder)
		close(dir);
}

static int count(const char *pattern)
{
	glob_t found = {0};
	int n = glob(pattern, 0, NULL, &found) == 0 ? (int)found.gl_pathc : 0;
	for (int i = 0; i < n; i++)
		if (strncmp(found.gl_pathv[i], pattern, 10) != 0)
			n = -1;
	globfree(&found);
	return n;
}

// written opens a device with fopen, which must not truncate anything.
static void written(const char *path)
{
	struct stat before, after;
	FILE *f;
	static const char *const modes[] = {"w", "w+", "a", "r+", "we"};
	want("stat", path, stat(path, &before) == 0);
	for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
		want("fopen", modes[i], (f = fopen(path, modes[i])) != NULL);
		if (!f)
			continue;
		want("fputs", modes[i], fputs("no command", f) == EOF || fflush(f) == EOF);
		fclose(f);
	}
	want("fopen, new", path, !fopen(path, "wx") && errno == EEXIST);
	want("stat", path, stat(path, &after) == 0 && before.st_ino == after.st_ino &&
		before.st_mtim.tv_sec == after.st_mtim.tv_sec && before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
}

// longer names the device by a path that repeats a part without effect, such as "/.".
static void longer(const char *part, int times)
{
	char path[PATH_MAX] = "/dev";
	while (times--)
		strcat(path, part);
	device(NULL, strcat(path, "/infiniband/uverbs0"));
}

// deep names the device from a folder with a long name.
static void deep(void)
{
	char name[200], path[PATH_MAX] = "/tmp/spellings-XXXXXX", up[PATH_MAX] = "../..";
	want("mkdtemp", path, mkdtemp(path) != NULL && chdir(path) == 0);
	memset(name, 'a', sizeof name);
	name[sizeof name - 1] = 0;
	for (int i = 0; i < 3; i++) {
		want("mkdir", name, mkdir(name, 0700) == 0 && chdir(name) == 0);
		strcat(up, "/..");
	}
	device(NULL, strcat(up, "/dev/infiniband/uverbs0"));
	for (int i = 0; i < 3; i++)
		want("rmdir", name, chdir("..") == 0 && rmdir(name) == 0);
	want("rmdir", path, chdir("/") == 0 && rmdir(path) == 0);
}

int main(void)
{
	if (chdir("/") < 0)
		return 1;
	device(NULL, "/dev/infiniband/uverbs0");
	device(NULL, "//dev/infiniband/uverbs0");
	device(NULL, "/dev//infiniband///uverbs0");
	device(NULL, "/dev/./infiniband/../infiniband/uverbs0");
	device(NULL, "/sys/../dev/infiniband/uverbs0");
	device(NULL, "dev/infiniband/uverbs0");
	device(NULL, "./dev/infiniband/uverbs0");
	device("/dev", "infiniband/uverbs0");
	device("/dev", "../dev/infiniband/uverbs0");
	device("/dev/infiniband", "uverbs0");
	device("/dev/infiniband/", "./uverbs0");
	device("dev/infiniband", "../infiniband/uverbs0");
	device("/dev/infiniband", "/dev/infiniband/uverbs0");
	longer("/.", 1000);
	longer("//", 1000);
	longer("/infiniband/..", 200);
	longer("/../sys/class/../../dev", 100);
	deep();
	written("/dev/infiniband/uverbs0");
	written("/dev/infiniband/rdma_cm");
	attribute(NULL, "/sys/class/infiniband/siw0/node_type");
	attribute(NULL, "/sys/class//infiniband/./siw0/ports/../node_type");
	attribute(NULL, "sys/class/infiniband/siw0/node_type");
	attribute("/sys/class", "infiniband/siw0/node_type");
	attribute("/sys/class/infiniband", "siw0/node_type");
	attribute("/sys/class/infiniband/siw0", "node_type");
	attribute("/sys/class/infiniband/siw0/ports/1", "../../node_type");
	attribute("/sys/class/infiniband_verbs/uverbs0", "../../infiniband/siw0/node_type");
	want("glob", "/dev", count("/dev/infiniband/uverbs*") == 1);
	want("glob", "/dev", count("/dev/infiniband/*") == 2);
	want("glob", "/sys", count("/sys/class/infiniband/*/node_type") == 1);
	want("glob", "/sys", count("/sys/class/infiniband/siw0/ports/[0-9]") == 1);
	want("glob of other files", "/etc", count("/etc/passw[d]") == 1);
	struct stat st;
	// Names beside the device's.
	want("another device", "/dev/null", chdir("/dev/infiniband") == 0 && stat("../null", &st) == 0);
	want("another class", "net", chdir("/sys/class/infiniband") == 0 && stat("../net/lo", &st) == 0);
	DIR *dir = opendir("/dev/infiniband");
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (e->d_name[0] != '.')
			want("fstatat of an entry", e->d_name, fstatat(dirfd(dir), e->d_name, &st, 0) == 0 && S_ISCHR(st.st_mode));
	puts(wrong ? "wrong" : "as it must be");
	return wrong;
}
