package rawtcp

import (
	"fmt"
	"io"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

// stream is a data connection. read and write may transfer nothing and return 0
// and no error: then the caller tries again. The error of an end is io.EOF.
type stream interface {
	read(b []byte) (int, error)
	write(b []byte) (int, error)
	closeWrite() error
	close() error
}

// newStream makes the stream that a run asks for. It takes over c.
func newStream(c Conn, poll load.Poll) (stream, error) {
	if poll == load.Block {
		return waiting{c}, nil
	}
	if c, ok := c.(*net.TCPConn); ok {
		return newSpinning(c)
	}
	return nil, fmt.Errorf("%T can't spin", c)
}

// waiting is a stream whose calls wait, those of TCP in Go's netpoller.
type waiting struct{ c Conn }

func (w waiting) read(b []byte) (int, error)  { return w.c.Read(b) }
func (w waiting) write(b []byte) (int, error) { return w.c.Write(b) }
func (w waiting) closeWrite() error           { return w.c.CloseWrite() }
func (w waiting) close() error                { return w.c.Close() }

// spinning is a stream whose calls never wait: a socket that Go's netpoller does
// not know.
type spinning struct{ fd int }

func newSpinning(c *net.TCPConn) (stream, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &spinning{fd: -1}
	var dup error
	if err := raw.Control(func(fd uintptr) {
		s.fd, dup = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return nil, err
	}
	if dup != nil {
		return nil, fmt.Errorf("duplicating a socket: %w", dup)
	}
	if err := c.Close(); err != nil { // takes the original out of the netpoller
		return nil, err
	}
	return s, nil
}

// The calls don't notify the scheduler: they don't wait, and notifying costs as much as a
// small write.

func (s *spinning) read(b []byte) (int, error) {
	n, _, e := syscall.RawSyscall(unix.SYS_READ, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	switch {
	case e == 0 && n == 0:
		return 0, io.EOF
	case e == 0:
		return int(n), nil
	case e == unix.EAGAIN || e == unix.EINTR:
		return 0, nil
	}
	return 0, e
}

func (s *spinning) write(b []byte) (int, error) {
	n, _, e := syscall.RawSyscall(unix.SYS_WRITE, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	switch {
	case e == 0:
		return int(n), nil
	case e == unix.EAGAIN || e == unix.EINTR:
		return 0, nil
	}
	return 0, e
}

func (s *spinning) closeWrite() error { return unix.Shutdown(s.fd, unix.SHUT_WR) }
func (s *spinning) close() error      { return unix.Close(s.fd) }
