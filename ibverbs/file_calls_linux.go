package ibverbs

import (
	"errors"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxVectors is how many slices one call takes: UIO_MAXIOV of Linux.
const maxVectors = 1024

// writeCalls writes the bytes of b to an open file from off on, with system calls. It returns how
// many: fewer, and perhaps no error, where bytes have to be copied to the mapped pages instead.
func writeCalls(conn syscall.RawConn, b [][]byte, off int64) (n int, err error) {
	end := off
	for _, s := range b {
		end += int64(len(s))
	}
	// While Control runs the function, the descriptor is that of the file. If the program has
	// closed the file, it doesn't.
	_ = conn.Control(func(fd uintptr) {
		if takesCalls(int(fd), end) {
			n, err = writeVectors(b, off, func(b [][]byte, off int64) (int, error) {
				return unix.Pwritev(int(fd), b, off)
			})
		}
	})
	return n, err
}

// writeVectors writes the bytes of b, with as many calls of pwritev as that takes. It returns how
// many were written before an error, or before a call that wrote nothing.
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

// after returns what follows the first n bytes of b, which it doesn't change, from the first slice
// with bytes on.
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

// takesCalls reports whether a call that writes to a file up to end does what a copy to its mapped
// pages does, and not more: the file is not cut short before end, so that the call doesn't
// make it longer. The call doesn't append, and goes neither past the page cache nor on to the disk;
// whoever shares the open file may change that at any time.
func takesCalls(fd int, end int64) bool {
	var st unix.Stat_t
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&(unix.O_APPEND|unix.O_DIRECT|unix.O_DSYNC) == 0 &&
		unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size >= end
}
