//go:build linux

package transport

import (
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"golang.org/x/sys/unix"
)

// localConn is a socket that is taken for a connection between these addresses.
func localConn(t *testing.T, local, remote string) *tcpConn {
	t.Helper()
	fd := testkit.Must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0))(t)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return &tcpConn{ref: fdRef{fd: fd}, local: netip.MustParseAddrPort(local), remote: netip.MustParseAddrPort(remote)}
}

// buffer returns the size of one of the socket's buffers.
func (c *tcpConn) buffer(t *testing.T, option int) int {
	t.Helper()
	return testkit.Must(unix.GetsockoptInt(c.ref.fd, unix.SOL_SOCKET, option))(t)
}

// TestLocalBuffersNotPermitted: a receive buffer that the system would make smaller is not set, and
// a send buffer where it would be smaller by much. What the system permits is the test's, so that
// it does not depend on net.core.rmem_max and wmem_max, which permit more.
func TestLocalBuffersNotPermitted(t *testing.T) {
	// SO_RCVBUFFORCE and SO_SNDBUFFORCE need CAP_NET_ADMIN, which this goroutine's thread gives up
	// for good.
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	testkit.OK(t, unix.Capset(&header, &none[0]))
	mostReceive, mostSend := maxReceiveBuffer, maxSendBuffer
	t.Cleanup(func() { maxReceiveBuffer, maxSendBuffer = mostReceive, mostSend })

	const octets = 96 << 10
	for _, tc := range []struct {
		receive, send  int  // permitted
		received, sent bool // whether the buffer is set
	}{
		{octets, octets, true, true},
		{octets - 1, octets, false, true},
		{octets, octets - 1, true, true},
		{octets, octets * 3 / 4, true, true},
		{octets, octets*3/4 - 1, true, false},
	} {
		maxReceiveBuffer = func() int { return tc.receive }
		maxSendBuffer = func() int { return tc.send }
		network := NewTCP(&TCPOptions{LocalReceiveBuffer: octets, LocalSendBuffer: octets})
		network.locals.open.Store(localFew)
		c := localConn(t, "127.0.0.1:1", "127.0.0.1:2")
		kernelReceive, kernelSend := c.buffer(t, unix.SO_RCVBUF), c.buffer(t, unix.SO_SNDBUF)
		network.bound(c)
		for _, b := range []struct {
			name           string
			option, kernel int
			set            bool
		}{
			{"receive", unix.SO_RCVBUF, kernelReceive, tc.received},
			{"send", unix.SO_SNDBUF, kernelSend, tc.sent},
		} {
			want := b.kernel
			if b.set {
				want = 2 * octets
			}
			if got := c.buffer(t, b.option); got != want {
				t.Errorf("%d and %d octets are permitted: %s buffer %d, want %d",
					tc.receive, tc.send, b.name, got, want)
			}
		}
	}
}

// TestPermittedBuffers: the limits are those of the system.
func TestPermittedBuffers(t *testing.T) {
	for name, got := range map[string]int{"rmem_max": maxReceiveBuffer(), "wmem_max": maxSendBuffer()} {
		b, err := os.ReadFile("/proc/sys/net/core/" + name)
		want := 0 // a network namespace of an older kernel has no such file
		if err == nil {
			want = testkit.Must(strconv.Atoi(strings.TrimSpace(string(b))))(t)
		}
		if got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

// TestSameHost: what is a connection within this host.
func TestSameHost(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "127.0.0.2", true},
		{"::1", "::1", true},
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"127.0.0.1", "192.0.2.1", false},
	} {
		if got := sameHost(netip.MustParseAddr(tc.a), netip.MustParseAddr(tc.b)); got != tc.want {
			t.Errorf("%s and %s: %v", tc.a, tc.b, got)
		}
	}
}

// TestLocalSendBuffer: the first few connections within this host that are open at a time keep the
// kernel's send buffer, and so do those to other hosts and those whose network has one of its own.
func TestLocalSendBuffer(t *testing.T) {
	const octets = 96 << 10
	network := NewTCP(&TCPOptions{LocalSendBuffer: octets, LocalReceiveBuffer: -1})
	again := testkit.Must(network.with(func(o *TCPOptions) { o.DSCP = 8 }))(t)
	own := testkit.Must(network.with(func(o *TCPOptions) { o.SendBuffer = 32 << 10 }))(t)
	left := testkit.Must(network.with(func(o *TCPOptions) { o.LocalSendBuffer = -1 }))(t)
	kernel := localConn(t, "127.0.0.1:1", "127.0.0.1:2").buffer(t, unix.SO_SNDBUF)
	begin := func(what string, n *TCP, remote string, want int) *tcpConn {
		t.Helper()
		c := localConn(t, "127.0.0.1:1", remote)
		n.bound(c)
		if got := c.buffer(t, unix.SO_SNDBUF); got != want {
			t.Errorf("%s: SO_SNDBUF %d, want %d", what, got, want)
		}
		return c
	}
	const here, there = "127.0.0.1:2", "192.0.2.1:2"
	few := make([]*tcpConn, localFew)
	for i := range few {
		few[i] = begin("one of the first few", network, here, kernel)
	}
	begin("to another host", network, there, kernel).locals.leave() // which does not count
	begin("one more", network, here, 2*octets)                      // the kernel doubles it
	begin("one more, of another network with the same connections", again, here, 2*octets)
	begin("one more, with a buffer of its own", own, here, kernel)
	begin("one more, left to the kernel", left, here, kernel)
	for _, c := range few {
		c.locals.leave()
	}
	begin("one after as many have gone", network, here, 2*octets) // four are left
	if n := network.locals.open.Load(); n != localFew+1 {
		t.Errorf("%d connections are counted, want %d", n, localFew+1)
	}
}

// TestLocalsAreCounted: a connection within this host counts until it is closed, at both ends.
func TestLocalsAreCounted(t *testing.T) {
	loopback := netip.MustParseAddrPort("127.0.0.1:0")
	network := NewTCP(nil)
	l := testkit.Must(network.Listen(loopback, 0))(t)
	defer l.Close()
	a := testkit.Must(network.Dial(t.Context(), loopback, l.Addr()))(t)
	b := testkit.Must(l.Accept(t.Context()))(t)
	for _, c := range []Conn{a, b} {
		if n := network.locals.open.Load(); n != 2 {
			t.Errorf("%d connections are counted, want 2", n)
		}
		testkit.OK(t, c.Close())
		testkit.OK(t, c.Close())
		network.locals.open.Add(1)
	}
	if n := network.locals.open.Load(); n != 2 {
		t.Errorf("%d connections are counted after Close, want 0", n-2)
	}
}
