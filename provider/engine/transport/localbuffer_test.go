//go:build linux

package transport

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"golang.org/x/sys/unix"
)

// TestLocalReceiveBufferNotPermitted: a buffer that the system would make smaller is not set. What
// it permits is the test's, so that it does not depend on net.core.rmem_max.
func TestLocalReceiveBufferNotPermitted(t *testing.T) {
	// SO_RCVBUFFORCE needs CAP_NET_ADMIN, which this goroutine's thread gives up for good.
	runtime.LockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		t.Fatal(err)
	}
	permitted := maxReceiveBuffer
	t.Cleanup(func() { maxReceiveBuffer = permitted })

	const octets = 96 << 10
	local := netip.MustParseAddr("127.0.0.1")
	for _, tc := range []struct{ permitted, want int }{{octets, 2 * octets}, {octets - 1, 0}} {
		maxReceiveBuffer = func() int { return tc.permitted }
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		size := func() int {
			n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		want := tc.want
		if want == 0 {
			want = size()
		}
		o := TCPOptions{LocalReceiveBuffer: octets}
		bounded := o.bound(fd, local, local)
		if got := size(); got != want {
			t.Errorf("%d octets are permitted: SO_RCVBUF %d, want %d", tc.permitted, got, want)
		}
		if set := tc.want != 0; bounded != set {
			t.Errorf("%d octets are permitted: bounded %v, want %v", tc.permitted, bounded, set)
		}
		_ = unix.Close(fd)
	}
}

// TestBounded: little waits at the peer of another host, and within a host where a buffer is set.
func TestBounded(t *testing.T) {
	local, remote := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")
	const none = -1 // no socket: it must not be looked at
	if !(&TCPOptions{LocalReceiveBuffer: 1 << 20}).bound(none, remote, local) {
		t.Error("a connection to another host is not bounded")
	}
	if !(&TCPOptions{ReceiveBuffer: 1 << 20}).bound(none, local, local) {
		t.Error("a connection whose ReceiveBuffer is set is not bounded")
	}
	for buffer, want := range map[int]bool{0: false, -1: false, 64 << 10: true} {
		network := NewTCP(&TCPOptions{LocalReceiveBuffer: buffer})
		l := testkit.Must(network.Listen(loopback, 0))(t)
		c := testkit.Must(network.Dial(t.Context(), loopback, l.Addr()))(t)
		if got := c.(Bounder).Bounded(); got != want {
			t.Errorf("LocalReceiveBuffer %d: bounded %v, want %v", buffer, got, want)
		}
		testkit.OK(t, c.Close())
		testkit.OK(t, l.Close())
	}
}
