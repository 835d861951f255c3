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
		c := localConn(t, "127.0.0.1:1", "127.0.0.1:2")
		kernelReceive, kernelSend := c.buffer(t, unix.SO_RCVBUF), c.buffer(t, unix.SO_SNDBUF)
		network.setLocal(c)
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
				t.Errorf("%d and %d bytes are permitted: %s buffer %d, want %d",
					tc.receive, tc.send, b.name, got, want)
			}
		}
	}
}

// TestPermittedBuffers: the limits are the system's.
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

// TestSameHost: which connections are within this host.
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

// TestLocalSendBuffer: connections within this host have it, unless their network has a buffer of
// its own; those to other hosts have the kernel's.
func TestLocalSendBuffer(t *testing.T) {
	const octets, own = 96 << 10, 32 << 10
	const here, there = "127.0.0.1:2", "192.0.2.1:2"
	kernel := localConn(t, "127.0.0.1:1", here).buffer(t, unix.SO_SNDBUF)
	for _, tc := range []struct {
		what, remote string
		opts         TCPOptions
		want         int
	}{
		{"within this host", here, TCPOptions{LocalSendBuffer: octets}, 2 * octets}, // doubled
		{"to another host", there, TCPOptions{LocalSendBuffer: octets}, kernel},
		{"with a buffer of its own", here, TCPOptions{LocalSendBuffer: octets, SendBuffer: own}, kernel},
		{"left to the kernel", here, TCPOptions{LocalSendBuffer: -1}, kernel},
	} {
		c := localConn(t, "127.0.0.1:1", tc.remote)
		NewTCP(&tc.opts).setLocal(c)
		if got := c.buffer(t, unix.SO_SNDBUF); got != tc.want {
			t.Errorf("%s: SO_SNDBUF %d, want %d", tc.what, got, tc.want)
		}
	}
}
