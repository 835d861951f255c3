package ibverbs

import (
	"errors"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxVectors is the number of slices that one call accepts: UIO_MAXIOV of Linux.
const maxVectors = 1024

// writeCalls writes b to an open file at off with system calls, and returns how many bytes it
// wrote. If these are fewer than b has, even without an error, the caller copies the rest to the
// mapped pages.
func writeCalls(conn syscall.RawConn, b [][]byte, off int64) (n int, err error) {
	end := off
	for _, s := range b {
		end += int64(len(s))
	}
	// While Control runs the function, the descriptor stays open. If the program has closed the
	// file, Control does not run it.
	_ = conn.Control(func(fd uintptr) {
		if takesCalls(int(fd), end) {
			n, err = writeVectors(b, off, func(b [][]byte, off int64) (int, error) {
				return unix.Pwritev(int(fd), b, off)
			})
		}
	})
	return n, err
}

// writeVectors writes b at off with as many calls of pwritev as that takes. It returns how many
// bytes were written before an error, or before a call that wrote nothing.
func writeVectors(b [][]byte, off int64,
	pwritev func([][]byte, int64) (int, error)) (n int, err error) {
	for b = after(b, 0); len(b) > 0; {
		wrote, err := pwritev(b[:min(len(b), maxVectors)], off+int64(n))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || wrote <= 0 {
			return n, err
		}
		n += wrote
		b = after(b, wrote)
	}
	return n, nil
}

// after returns the bytes of b after the first n, without leading empty slices. It does not change
// b.
func after(b [][]byte, n int) [][]byte {
	for len(b) > 0 && n >= len(b[0]) {
		n -= len(b[0])
		b = b[1:]
	}
	if n > 0 {
		b = slices.Clone(b)
		b[0] = b[0][n:]
	}
	return b
}

// takesCalls reports whether a call that writes to a file up to end has the effect of a copy to its
// mapped pages, and no other. The file must reach to end, so that the call does not extend it. The
// call must not append, and must neither bypass the page cache nor wait for the disk. Others that
// share the open file may change all of this at any time.
func takesCalls(fd int, end int64) bool {
	var st unix.Stat_t
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&(unix.O_APPEND|unix.O_DIRECT|unix.O_DSYNC) == 0 &&
		unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size >= end
}
