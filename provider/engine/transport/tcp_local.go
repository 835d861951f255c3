//go:build linux

package transport

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// setLocal gives a new connection within this host its buffers.
func (t *TCP) setLocal(c *tcpConn) {
	if !sameHost(c.local.Addr(), c.remote.Addr()) {
		return
	}
	if t.opts.SendBuffer == 0 {
		t.opts.setLocalSendBuffer(c.ref.fd)
	}
	if t.opts.ReceiveBuffer == 0 {
		t.opts.setLocalBuffer(c.ref.fd)
	}
}

// setLocalBuffer sets LocalReceiveBuffer of a socket connected within the host. On Linux 6.18 the
// window's limit follows the buffer. It is also set, in case it does not on other versions, because
// the connection was made with the limit of a smaller buffer.
func (o *TCPOptions) setLocalBuffer(fd int) {
	n := o.LocalReceiveBuffer
	// A buffer that the system made smaller than asked for would slow the connection down.
	if n <= 0 || unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, n) != nil &&
		(n > maxReceiveBuffer() || unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, n) != nil) {
		return
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, n)
}

// setLocalSendBuffer sets LocalSendBuffer of a socket. If the system permits less, it makes the
// buffer smaller. By default Linux permits 208 KiB, which is nearly as good as 256; half of 256 is
// too little.
func (o *TCPOptions) setLocalSendBuffer(fd int) {
	n := o.LocalSendBuffer
	if n > 0 && unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, n) != nil &&
		n/4*3 <= maxSendBuffer() {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, n)
	}
}

// sameHost reports whether a and b are the addresses of a connection within one host.
func sameHost(a, b netip.Addr) bool { return a == b || a.IsLoopback() && b.IsLoopback() }

// maxReceiveBuffer and maxSendBuffer return net.core.rmem_max and wmem_max, or 0 where these can't
// be read.
var (
	maxReceiveBuffer = sync.OnceValue(func() int { return sysctl("/proc/sys/net/core/rmem_max") })
	maxSendBuffer    = sync.OnceValue(func() int { return sysctl("/proc/sys/net/core/wmem_max") })
)

func sysctl(name string) int {
	b, _ := os.ReadFile(name)
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}
