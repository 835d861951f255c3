//go:build linux

package transport

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// past is a deadline that has passed. Setting it wakes all waiters.
var past = time.Unix(1, 0)

// connect does the handshake of a non-blocking socket. It waits with a duplicate of the descriptor
// in Go's netpoller, because the socket itself must not be in it.
func connect(ctx context.Context, fd int, dst netip.AddrPort) error {
	sa, _, err := sockaddrOf(dst)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err = unix.Connect(fd, sa)
	if err != unix.EINPROGRESS && err != unix.EINTR {
		return err
	}
	if err := waitWritable(ctx, fd); err != nil {
		return err
	}
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	if errno != 0 {
		return syscall.Errno(errno)
	}
	return nil
}

func waitWritable(ctx context.Context, fd int) error {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dup = opened(dup)
	f := os.NewFile(uintptr(dup), "connecting socket")
	defer func() {
		closing(dup)
		_ = f.Close()
	}()
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(past) })
	defer stop()
	var pollErr error
	err = rc.Write(func(fd uintptr) bool {
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		var n int
		n, pollErr = unix.Poll(fds[:], 0)
		return n > 0 || pollErr != nil && pollErr != unix.EINTR
	})
	if ctxErr := ctx.Err(); err != nil && ctxErr != nil {
		return ctxErr
	}
	if err != nil {
		return err
	}
	return pollErr
}

// tcpListener is a listening socket in Go's netpoller.
type tcpListener struct {
	tcp  *TCP
	addr netip.AddrPort
	fd   int // of file
	file *os.File
	rc   syscall.RawConn

	accepting chan struct{} // held by the one Accept that waits for the socket
	closed    atomic.Bool
}

func newTCPListener(t *TCP, fd int, addr netip.AddrPort) (*tcpListener, error) {
	l := &tcpListener{
		tcp:       t,
		addr:      addr,
		fd:        fd,
		file:      os.NewFile(uintptr(fd), "listener "+addr.String()),
		accepting: make(chan struct{}, 1),
	}
	var err error
	if l.rc, err = l.file.SyscallConn(); err != nil {
		closing(fd)
		_ = l.file.Close()
		return nil, opError("listen", addr, err)
	}
	return l, nil
}

// Addr implements Listener.
func (l *tcpListener) Addr() netip.AddrPort { return l.addr }

// Close implements Listener. It also stops the socket from listening, because another process may
// have a copy of the descriptor, with which TCP would go on accepting connections.
func (l *tcpListener) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	_ = l.rc.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	closing(l.fd)
	return l.file.Close()
}

// Accept implements Listener.
func (l *tcpListener) Accept(ctx context.Context) (Conn, error) {
	select {
	case l.accepting <- struct{}{}:
		defer func() { <-l.accepting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	stop := context.AfterFunc(ctx, func() { _ = l.file.SetReadDeadline(past) })
	defer stop()
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		fd, err := l.accept()
		switch {
		case err == nil:
			if c, err := l.tcp.newConn(fd, false); err == nil {
				return c, nil
			} // it died in the backlog: its addresses are gone
		case errors.Is(err, os.ErrDeadlineExceeded):
			// Either ctx is done, or the ctx of an earlier Accept was done as that returned.
			if ctx.Err() == nil {
				_ = l.file.SetReadDeadline(time.Time{})
			}
		case l.closed.Load():
			return nil, opError("accept", l.addr, os.ErrClosed)
		case !diedInBacklog(err):
			return nil, opError("accept", l.addr, err)
		}
	}
}

func (l *tcpListener) accept() (int, error) {
	fd, acceptErr := -1, error(nil)
	err := l.rc.Read(func(s uintptr) bool {
		fd, _, acceptErr = unix.Accept4(int(s), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		return acceptErr != unix.EAGAIN && acceptErr != unix.EINTR
	})
	if err != nil {
		return -1, err
	}
	if acceptErr == nil {
		fd = opened(fd)
	}
	return fd, acceptErr
}

// diedInBacklog reports errors of accept4 that concern the connection and not the listener.
// accept(2) says to treat them like EAGAIN.
func diedInBacklog(err error) bool {
	switch err {
	case unix.ECONNABORTED, unix.EPROTO, unix.ENETDOWN, unix.ENOPROTOOPT, unix.EHOSTDOWN, unix.ENONET,
		unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EOPNOTSUPP, unix.EPERM, unix.ETIMEDOUT:
		return true
	}
	return false
}
