//go:build linux

package transport

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// localFew is how many ends of connections within this host there are before one more gets
// LocalSendBuffer. One alone is a little faster with the send buffer that the kernel gives it.
// Eight are as fast with either, and 64 are faster with LocalSendBuffer (docs/benchmarks).
const localFew = 4

// locals counts the open ends of connections within this host: two for one whose ends are both of
// this network. Networks that With makes share it.
type locals struct{ open atomic.Int64 }

// bound gives a new connection its buffers and counts it, if it is one within this host.
func (t *TCP) bound(c *tcpConn) {
	if !sameHost(c.local.Addr(), c.remote.Addr()) {
		return
	}
	c.locals = t.locals
	many := c.locals.open.Add(1) > localFew
	o := &t.opts
	if many && o.SendBuffer == 0 {
		o.setLocalSendBuffer(c.ref.fd)
	}
	if o.ReceiveBuffer == 0 {
		o.setLocalBuffer(c.ref.fd)
	}
}

// leave counts a connection no more, which is being closed.
func (l *locals) leave() {
	if l != nil {
		l.open.Add(-1)
	}
}

// setLocalBuffer sets LocalReceiveBuffer of a socket connected within the host. The window's limit
// follows the buffer on Linux 6.18. It is set, too, in case it does not on others, because the
// connection has been made with the limit of a smaller buffer.
func (o *TCPOptions) setLocalBuffer(fd int) {
	n := o.LocalReceiveBuffer
	// A buffer that the system made smaller than asked for would slow the connection down.
	if n <= 0 || unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, n) != nil &&
		(n > maxReceiveBuffer() || unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, n) != nil) {
		return
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, n)
}

// setLocalSendBuffer sets LocalSendBuffer of a socket. A system that permits less makes it smaller.
// By default Linux permits 208 KiB, which is nearly as good as 256; half of 256 is too little
// (docs/benchmarks).
func (o *TCPOptions) setLocalSendBuffer(fd int) {
	n := o.LocalSendBuffer
	if n > 0 && unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, n) != nil &&
		n/4*3 <= maxSendBuffer() {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, n)
	}
}

// sameHost reports whether these are addresses of one connection within a host.
func sameHost(a, b netip.Addr) bool { return a == b || a.IsLoopback() && b.IsLoopback() }

// maxReceiveBuffer and maxSendBuffer are net.core.rmem_max and wmem_max, or 0 where these can't be
// read.
var (
	maxReceiveBuffer = sync.OnceValue(func() int { return sysctl("/proc/sys/net/core/rmem_max") })
	maxSendBuffer    = sync.OnceValue(func() int { return sysctl("/proc/sys/net/core/wmem_max") })
)

func sysctl(name string) int {
	b, _ := os.ReadFile(name)
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}
