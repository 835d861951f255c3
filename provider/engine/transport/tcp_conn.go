//go:build linux

package transport

import (
	"io"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"golang.org/x/sys/unix"
)

// tcpConn is a connected socket.
type tcpConn struct {
	ref           fdRef
	local, remote netip.AddrPort
	tap           *TapEnd // nil without a Tap

	rd, wr iovecs // of the one reader and the one writer

	finSent atomic.Bool

	mu  sched.Mutex[locks.Conn] // guards reg
	reg *registration           // with the Poller that watches the stream, nil if none
}

// newConn takes over a connected socket, even when it fails.
func (t *TCP) newConn(fd int, dialed bool) (*tcpConn, error) {
	c := &tcpConn{ref: fdRef{fd: fd}}
	local, err := unix.Getsockname(fd)
	var remote unix.Sockaddr
	if err == nil {
		remote, err = unix.Getpeername(fd)
		if err == unix.ENOTCONN {
			err = unix.ECONNRESET // it was connected, and the peer has reset it since
		}
	}
	if err == nil && !dialed {
		// The other options are the listener's. Linux also inherits this one, but POSIX does not
		// require that.
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if err != nil {
		c.ref.close()
		return nil, err
	}
	c.local, c.remote = addrPortOf(local), addrPortOf(remote)
	t.setLocal(c)
	c.tap = NewTapEnd(t.opts.Tap, c.local, c.remote, dialed)
	return c, nil
}

// LocalAddr implements Conn.
func (c *tcpConn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr implements Conn.
func (c *tcpConn) RemoteAddr() netip.AddrPort { return c.remote }

// Readv implements Conn.
func (c *tcpConn) Readv(bufs [][]byte) (int, error) {
	if !c.ref.acquire() {
		return 0, os.ErrClosed
	}
	var n int
	var errno syscall.Errno
	switch {
	case len(bufs) == 1 && len(bufs[0]) > 0:
		n, errno = c.read(bufs[0])
	case c.rd.load(bufs) > 0:
		n, errno = c.readv()
		c.rd.clear()
	default:
		c.rd.clear()
		c.ref.release()
		return 0, nil
	}
	c.ref.release()
	var err error
	switch {
	case errno == unix.EAGAIN:
		return 0, ErrWouldBlock
	case errno != 0:
		n, err = 0, errno
	case n == 0:
		err = io.EOF
	}
	raceReceived()
	c.tap.Received(bufs, n, err)
	return n, err
}

// Reads and writes bypass the Go scheduler (RawSyscall). The kernel does not sleep in them, because
// the sockets do not block, and they copy a bounded number of bytes. A scheduler that knew of them
// could give the P of a call of 20 us to another goroutine, perhaps one that spins. The caller, who
// holds the stream's lock, would then wait for a P until that goroutine is preempted: for 10 ms.

// read uses recvfrom instead of read, which first passes through the kernel's layers for files: up
// to 4 % of a round trip over loopback.
func (c *tcpConn) read(b []byte) (int, syscall.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(c.ref.fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// readv reads into the buffers that rd describes.
func (c *tcpConn) readv() (int, syscall.Errno) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(c.ref.fd), uintptr(unsafe.Pointer(&c.rd.msg)), unix.MSG_DONTWAIT)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// Writev implements Conn.
func (c *tcpConn) Writev(bufs [][]byte) (int, error) {
	if !c.ref.acquire() {
		return 0, os.ErrClosed
	}
	before := c.tap.Before()
	raceSending()
	n, errno := c.write(bufs, 0)
	return c.wrote(before, bufs, n, errno)
}

// wrote ends a call that has written n bytes of bufs.
func (c *tcpConn) wrote(before time.Time, bufs [][]byte, n int, errno syscall.Errno) (int, error) {
	c.ref.release()
	switch errno {
	case 0:
		c.tap.Sent(before, bufs, n)
		return n, nil
	case unix.EAGAIN:
		return 0, ErrWouldBlock
	}
	return 0, errno
}

// write uses sendto and sendmsg, because write and writev raise SIGPIPE. Without bytes it does
// nothing.
func (c *tcpConn) write(bufs [][]byte, flags uintptr) (int, syscall.Errno) {
	flags |= unix.MSG_NOSIGNAL
	if len(bufs) == 1 && len(bufs[0]) > 0 {
		return c.send(bufs[0], flags)
	}
	defer c.wr.clear()
	if c.wr.load(bufs) == 0 {
		return 0, 0
	}
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(c.ref.fd), uintptr(unsafe.Pointer(&c.wr.msg)), flags)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// send writes one buffer.
func (c *tcpConn) send(b []byte, flags uintptr) (int, syscall.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(c.ref.fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), flags, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}

// CloseWrite implements Conn.
func (c *tcpConn) CloseWrite() error {
	if !c.ref.acquire() {
		return os.ErrClosed
	}
	defer c.ref.release()
	before := c.tap.Before()
	if err := unix.Shutdown(c.ref.fd, unix.SHUT_WR); err != nil {
		return err
	}
	if !c.finSent.Swap(true) {
		c.tap.SentEvent(before, TapFIN)
	}
	return nil
}

// Close implements Conn.
func (c *tcpConn) Close() error { return c.close(false) }

// Abort implements Conn.
func (c *tcpConn) Abort() error { return c.close(true) }

func (c *tcpConn) close(reset bool) error {
	if !c.ref.acquire() {
		return nil
	}
	defer c.ref.release() // the descriptor stays until then
	if !c.ref.close() {
		return nil
	}
	c.unwatch()
	c.sendEnd(reset)
	return nil
}

// sendEnd sends what closing the descriptor would send if no other process had a copy of it. A
// child has a copy until it calls exec, and a child of a C program perhaps as long as it lives.
func (c *tcpConn) sendEnd(reset bool) {
	unread, err := unix.IoctlGetInt(c.ref.fd, unix.SIOCINQ)
	before := c.tap.Before()
	switch {
	case reset || err == nil && unread > 0:
		resetSocket(c.ref.fd)
		c.tap.SentEvent(before, TapReset)
	case !c.finSent.Swap(true):
		_ = unix.Shutdown(c.ref.fd, unix.SHUT_WR) // fails if the connection is lost
		c.tap.SentEvent(before, TapFIN)
	}
}

// resetSocket sends a reset, and drops unsent bytes, as close does with SO_LINGER and no time. It
// also ends an attempt to connect. It calls connect(2) with an address of no family.
func resetSocket(fd int) {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, _ = unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
	linger := unix.Linger{Onoff: 1}
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &linger) // where connect is refused
}

// MSS implements Conn with TCP_MAXSEG: the present length of the kernel's segments without options.
// For a closed stream it is 536, the least that TCP may assume.
func (c *tcpConn) MSS() int {
	const least = 536
	if !c.ref.acquire() {
		return least
	}
	defer c.ref.release()
	n, err := unix.GetsockoptInt(c.ref.fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	if err != nil || n <= 0 {
		return least
	}
	return n
}

// LimitNotSent implements NotSentLimiter with TCP_NOTSENT_LOWAT.
func (c *tcpConn) LimitNotSent(octets int) error {
	if !c.ref.acquire() {
		return os.ErrClosed
	}
	defer c.ref.release()
	return setInt(c.ref.fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, "TCP_NOTSENT_LOWAT", octets)
}

// unwatch removes the stream from its Poller.
func (c *tcpConn) unwatch() {
	c.mu.Lock()
	reg := c.reg
	c.mu.Unlock()
	if reg != nil {
		reg.poller.Remove(c)
	}
}
