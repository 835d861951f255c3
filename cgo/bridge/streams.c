// Streams close their descriptors within libc, which does not call close for that.
#define _GNU_SOURCE
#include "preload.h"

#include <errno.h>
#include <stdio.h>
#include <stdio_ext.h>

// detach takes the descriptor of a stream out of the table, and returns the object whose last one it was. If the number
// is the library's by now, because the program has closed it, the stream loses it instead.
static uint64_t detach(FILE *stream)
{
	int saved = errno, fd = fileno(stream); // -1 if it has none
	errno = saved;
	if (!hidden(fd))
		return let_go(fd);
	flockfile(stream);
	__fpurge(stream);
	stream->_fileno = -1;
	funlockfile(stream);
	errno = EBADF;
	return 0;
}

// ended is for a call that has closed the descriptor.
static void ended(uint64_t object)
{
	int saved = errno;
	leave(object);
	errno = saved;
}

PUBLIC int fclose(FILE *stream)
{
	REAL(fclose);
	uint64_t object = detach(stream);
	int failed = real(stream);
	ended(object);
	return failed;
}

// A stream that is opened again keeps its number, which is another file's then. Without a path libc opens the file of
// the number, and ends the program if there is none.
#define FREOPEN(name)                                                                                        \
	PUBLIC FILE *name(const char *path, const char *mode, FILE *stream)                                  \
	{                                                                                                    \
		REAL(name);                                                                                  \
		uint64_t object = detach(stream);                                                            \
		FILE *again = path || fileno(stream) >= 0 ? real(path, mode, stream) : NULL;                 \
		ended(object);                                                                               \
		return again;                                                                                \
	}
FREOPEN(freopen)
FREOPEN(freopen64)
