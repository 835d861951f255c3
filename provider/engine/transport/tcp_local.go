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

// localFew is how many connections within this host there are before one more gets LocalSendBuffer.
// One alone is a little faster with the send buffer that the kernel gives it. Eight are as fast
// with either, and 64 are faster with LocalSendBuffer (docs/benchmarks).
const localFew = 4

// locals counts the open connections within this host. Networks that With makes share it.
type locals struct{ open atomic.Int64 }

// bound gives a new connection its buffers and counts it, if it is one within this host, and sets
// what Bounder reports of it.
func (t *TCP) bound(c *tcpConn) {
	if !sameHost(c.local.Addr(), c.remote.Addr()) {
		c.bounded = true
		return
	}
	c.locals = t.locals
	many := c.locals.open.Add(1) > localFew
	o := &t.opts
	if many && o.SendBuffer == 0 {
		setPermitted(c.ref.fd, o.LocalSendBuffer, unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, maxSendBuffer)
	}
	c.bounded = o.ReceiveBuffer != 0 || o.setLocalBuffer(c.ref.fd)
}

// leave counts a connection no more, which is being closed.
func (l *locals) leave() {
	if l != nil {
		l.open.Add(-1)
	}
}

// setLocalBuffer sets LocalReceiveBuffer of a socket connected within the host, and reports whether
// it is set: the peer within the host is taken to have the same. The window's limit follows the
// buffer on Linux 6.18. It is set, too, in case it does not on others, because the connection has
// been made with the limit of a smaller buffer.
func (o *TCPOptions) setLocalBuffer(fd int) bool {
	n := o.LocalReceiveBuffer
	if !setPermitted(fd, n, unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, maxReceiveBuffer) {
		return false
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, n)
	return true
}

// setPermitted sets a buffer of n octets, if n is positive and the system permits that much, and
// reports whether it is set. A buffer that the system makes smaller than asked for would slow the
// connection down, so it is set as a whole or not at all.
func setPermitted(fd, n, option, force int, most func() int) bool {
	return n > 0 && (unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, n) == nil ||
		n <= most() && unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, n) == nil)
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
