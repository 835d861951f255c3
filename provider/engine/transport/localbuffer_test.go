//go:build linux

package transport

import (
	"net/netip"
	"runtime"
	"testing"

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
