// Calls in which libc puts another file at the numbers 0, 1 and 2, without a call of dup2.
#define _GNU_SOURCE
#include "preload.h"

#include <pty.h>
#include <unistd.h>
#include <utmp.h>

enum { standard = STDERR_FILENO + 1 };

// replaced is called after that: what was at these numbers is no longer the device.
static int replaced(int failed)
{
	for (int fd = 0; fd < standard && !failed; fd++)
		leave(let_go(fd));
	return failed;
}

PUBLIC int login_tty(int terminal)
{
	REAL(login_tty);
	return replaced(real(terminal));
}

// The child is one of fork, which has nothing of the library's.
PUBLIC pid_t forkpty(int *terminal, char *name, const struct termios *settings, const struct winsize *size)
{
	REAL(forkpty);
	pid_t child = real(terminal, name, settings, size);
	if (child == 0)
		replaced(0);
	return child;
}

PUBLIC int daemon(int keeps_folder, int keeps_files)
{
	REAL(daemon);
	int failed = real(keeps_folder, keeps_files);
	return keeps_files ? failed : replaced(failed);
}
