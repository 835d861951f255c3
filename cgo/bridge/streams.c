// Streams close their descriptors within libc, which does not call close for that.
#define _GNU_SOURCE
#include "preload.h"

#include <errno.h>
#include <stdio.h>
#include <stdio_ext.h>

// detach takes the descriptor of a stream of the device out of the table, before libc closes it. If the number is the
// library's by now, because the program has closed it, the stream loses it instead. What the stream has not written is
// lost, because libc would write it into the memory or the socket that stands for the device.
static void detach(FILE *stream)
{
	int saved = errno, fd = fileno(stream), ours = hidden(fd); // -1 if it has none
	errno = saved;
	if (!ours && kind_of(fd) == NONE)
		return;
	flockfile(stream);
	__fpurge(stream);
	if (ours)
		stream->_fileno = -1;
	funlockfile(stream);
	if (!ours)
		leave(let_go(fd));
	errno = ours ? EBADF : saved;
}

PUBLIC int fclose(FILE *stream)
{
	REAL(fclose);
	detach(stream);
	return real(stream);
}

// A stream that is opened again keeps its number, which is another file's then. Without a path libc opens the file of
// the number, and ends the program if there is none.
#define FREOPEN(name)                                                                                        \
	PUBLIC FILE *name(const char *path, const char *mode, FILE *stream)                                  \
	{                                                                                                    \
		REAL(name);                                                                                  \
		detach(stream);                                                                              \
		return path || fileno(stream) >= 0 ? real(path, mode, stream) : NULL;                        \
	}
FREOPEN(freopen)
FREOPEN(freopen64)
