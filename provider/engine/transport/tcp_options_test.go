//go:build linux

package transport_test

import (
	"errors"
	"math"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/engine/transport/transporttest"
)

// socketOf finds the descriptor of the TCP socket of this process with these
// addresses.
func socketOf(t *testing.T, local, remote netip.AddrPort) int {
	t.Helper()
	entries := testkit.Must(os.ReadDir("/proc/self/fd"))(t)
	same := func(sa unix.Sockaddr, want netip.AddrPort) bool {
		switch sa := sa.(type) {
		case *unix.SockaddrInet4:
			return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)) == want
		case *unix.SockaddrInet6:
			return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port)) == want
		}
		return false
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		l, err := unix.Getsockname(fd)
		if err != nil || !same(l, local) {
			continue
		}
		if r, err := unix.Getpeername(fd); err == nil && same(r, remote) {
			return fd
		}
	}
	t.Fatalf("no socket %s to %s", local, remote)
	return -1
}

// TestKeepAlive: by default both ends have the probes of package net. Each field can be set, and
// probes can be turned off.
func TestKeepAlive(t *testing.T) {
	for name, tc := range map[string]struct {
		keep transport.KeepAlive
		want [4]int // SO_KEEPALIVE, and the three values if it is on
	}{
		"default":  {transport.KeepAlive{}, [4]int{1, 15, 15, 9}},
		"idle":     {transport.KeepAlive{Idle: time.Minute}, [4]int{1, 60, 15, 9}},
		"interval": {transport.KeepAlive{Interval: time.Minute}, [4]int{1, 15, 60, 9}},
		"count":    {transport.KeepAlive{Count: 3}, [4]int{1, 15, 15, 3}},
		"off": {transport.KeepAlive{Off: true, Idle: -1, Interval: time.Millisecond, Count: -1},
			[4]int{}},
	} {
		t.Run(name, func(t *testing.T) {
			p := transporttest.NewPair(t, harness("127.0.0.1", &transport.TCPOptions{KeepAlive: tc.keep}))
			for _, c := range []transport.Conn{p.Dialed, p.Accepted} {
				fd := socketOf(t, c.LocalAddr(), c.RemoteAddr())
				var got [4]int
				got[0] = testkit.Must(unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE))(t)
				for i, option := range []int{unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT} {
					if got[0] == 0 {
						break
					}
					got[i+1] = testkit.Must(unix.GetsockoptInt(fd, unix.IPPROTO_TCP, option))(t)
				}
				if got != tc.want {
					t.Errorf("%v, want %v", got, tc.want)
				}
			}
		})
	}
}

// TestSocketsHaveTheOptions asks the kernel what both ends of a connection have,
// and on the listening side also one that an IPv6 listener took over IPv4.
func TestSocketsHaveTheOptions(t *testing.T) {
	opts := transport.TCPOptions{
		CongestionControl: "reno", SendBuffer: 100 << 10, ReceiveBuffer: 50 << 10,
		KeepAlive:   transport.KeepAlive{Idle: 11 * time.Second, Interval: 7 * time.Second, Count: 3},
		UserTimeout: 12345 * time.Millisecond, DSCP: 46, Device: "lo",
	}
	for name, at := range map[string]struct{ listen, dial string }{
		"IPv4":           {"127.0.0.1:0", "127.0.0.1"},
		"IPv6":           {"[::1]:0", "::1"},
		"IPv4 over IPv6": {"[::]:0", "127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			tcp := transport.NewTCP(&opts)
			testkit.OK(t, tcp.Check())
			l := testkit.Must(tcp.Listen(netip.MustParseAddrPort(at.listen), 0))(t)
			defer func() { _ = l.Close() }()
			to := netip.AddrPortFrom(netip.MustParseAddr(at.dial), l.Addr().Port())
			c := testkit.Must(tcp.Dial(t.Context(), netip.AddrPort{}, to))(t)
			defer func() { _ = c.Close() }()
			a := testkit.Must(l.Accept(t.Context()))(t)
			defer func() { _ = a.Close() }()
			for end, conn := range map[string]transport.Conn{"dialled": c, "accepted": a} {
				wantOptions(t, end, socketOf(t, conn.LocalAddr(), conn.RemoteAddr()))
			}
		})
	}
}

// wantOptions compares a socket with the options of TestSocketsHaveTheOptions.
func wantOptions(t *testing.T, end string, fd int) {
	t.Helper()
	for _, o := range []struct {
		name          string
		level, option int
		want          int
	}{
		{"SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF, 200 << 10},
		{"SO_RCVBUF", unix.SOL_SOCKET, unix.SO_RCVBUF, 100 << 10},
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 11},
		{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 7},
		{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3},
		{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 12345},
		{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
	} {
		if got, err := unix.GetsockoptInt(fd, o.level, o.option); err != nil || got != o.want {
			t.Errorf("%s socket: %s is %d, %v; want %d", end, o.name, got, err, o.want)
		}
	}
	if cc, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err != nil || strings.TrimRight(cc, "\x00") != "reno" {
		t.Errorf("%s socket: congestion control %q, %v", end, cc, err)
	}
	if dev, err := unix.GetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE); err != nil || strings.TrimRight(dev, "\x00") != "lo" {
		t.Errorf("%s socket: device %q, %v", end, dev, err)
	}
	level, option := unix.IPPROTO_IP, unix.IP_TOS
	sa := testkit.Must(unix.Getsockname(fd))(t)
	if sa6, ok := sa.(*unix.SockaddrInet6); ok && !netip.AddrFrom16(sa6.Addr).Is4In6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
	}
	if tos, err := unix.GetsockoptInt(fd, level, option); err != nil || tos != 46<<2 {
		t.Errorf("%s socket: traffic class %#x, %v; want %#x", end, tos, err, 46<<2)
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for _, tc := range []struct {
		opts transport.TCPOptions
		want syscall.Errno
		name string // what the error has to say
	}{
		{transport.TCPOptions{CongestionControl: "no-such-thing"}, syscall.ENOENT, "no-such-thing"},
		{transport.TCPOptions{SendBuffer: -1}, syscall.EINVAL, "SendBuffer"},
		{transport.TCPOptions{SendBuffer: math.MaxInt32}, syscall.EINVAL, "SendBuffer"},
		{transport.TCPOptions{ReceiveBuffer: -1}, syscall.EINVAL, "ReceiveBuffer"},
		{transport.TCPOptions{ReceiveBuffer: math.MaxInt32}, syscall.EINVAL, "ReceiveBuffer"},
		{transport.TCPOptions{KeepAlive: transport.KeepAlive{Idle: time.Millisecond}}, syscall.EINVAL, "KeepAlive.Idle"},
		{transport.TCPOptions{KeepAlive: transport.KeepAlive{Idle: -time.Second}}, syscall.EINVAL, "KeepAlive.Idle"},
		{transport.TCPOptions{KeepAlive: transport.KeepAlive{Interval: 32768 * time.Second}}, syscall.EINVAL, "KeepAlive.Interval"},
		{transport.TCPOptions{KeepAlive: transport.KeepAlive{Count: 128}}, syscall.EINVAL, "KeepAlive.Count"},
		{transport.TCPOptions{KeepAlive: transport.KeepAlive{Count: -1}}, syscall.EINVAL, "KeepAlive.Count"},
		{transport.TCPOptions{UserTimeout: time.Microsecond}, syscall.EINVAL, "UserTimeout"},
		{transport.TCPOptions{UserTimeout: 1000 * time.Hour}, syscall.EINVAL, "UserTimeout"},
		{transport.TCPOptions{DSCP: 64}, syscall.EINVAL, "DSCP"},
		{transport.TCPOptions{DSCP: -1}, syscall.EINVAL, "DSCP"},
		{transport.TCPOptions{MaxSegment: 87}, syscall.EINVAL, "MaxSegment"},
		{transport.TCPOptions{MaxSegment: 32768}, syscall.EINVAL, "MaxSegment"},
		{transport.TCPOptions{LocalReceiveBuffer: -2}, syscall.EINVAL, "LocalReceiveBuffer"},
		{transport.TCPOptions{LocalSendBuffer: -2}, syscall.EINVAL, "LocalSendBuffer"},
		{transport.TCPOptions{LocalSendBuffer: 1 << 30}, syscall.EINVAL, "LocalSendBuffer"},
		{transport.TCPOptions{Device: "nosuchif"}, syscall.ENODEV, "nosuchif"},
		{transport.TCPOptions{Device: "a-name-that-is-too-long"}, syscall.EINVAL, "Device"},
	} {
		h := harness("127.0.0.1", &tc.opts)
		_, dialErr := h.Network.Dial(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("127.0.0.1:9"))
		_, listenErr := h.Network.Listen(h.Local, 0)
		for call, err := range map[string]error{"Check": transport.NewTCP(&tc.opts).Check(), "Dial": dialErr, "Listen": listenErr} {
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.name) {
				t.Errorf("%s with %+v: %v; want %v that names %s", call, tc.opts, err, tc.want, tc.name)
			}
		}
	}
}

// TestBufferAboveTheLimit: root may have more than the system's limit, others are
// told which limit it is.
func TestBufferAboveTheLimit(t *testing.T) {
	text := testkit.Must(os.ReadFile("/proc/sys/net/core/wmem_max"))(t)
	limit := testkit.Must(strconv.Atoi(strings.TrimSpace(string(text))))(t)
	err := transport.NewTCP(&transport.TCPOptions{SendBuffer: limit + 1}).Check()
	if err != nil && (!errors.Is(err, syscall.EPERM) || !strings.Contains(err.Error(), "net.core.wmem_max")) {
		t.Errorf("%v; want nil for root, EPERM that names the limit for others", err)
	}
	if err := transport.NewTCP(&transport.TCPOptions{SendBuffer: limit}).Check(); err != nil {
		t.Errorf("the limit itself: %v", err)
	}
}

// TestMaxSegment: both ends of a connection have segments of the lower of their values, the
// accepting end as its listener has it.
func TestMaxSegment(t *testing.T) {
	tcp := func(most int) *transport.TCP {
		return transport.NewTCP(&transport.TCPOptions{MaxSegment: most})
	}
	for _, tc := range []struct{ listening, dialing int }{
		{1000, 0}, {0, 1000}, {1000, 32767}, {32767, 1000},
	} {
		l := testkit.Must(tcp(tc.listening).Listen(netip.MustParseAddrPort("127.0.0.1:0"), 0))(t)
		dialed := testkit.Must(tcp(tc.dialing).Dial(t.Context(), netip.AddrPort{}, l.Addr()))(t)
		accepted := testkit.Must(l.Accept(t.Context()))(t)
		for _, c := range []transport.Conn{dialed, accepted} {
			const timestamps = 12
			if got := c.MSS(); got != 1000 && got != 1000-timestamps {
				t.Errorf("segments of %d bytes, want 1000 or %d", got, 1000-timestamps)
			}
			_ = c.Close()
		}
		_ = l.Close()
	}
}

// TestV6Only: a listener that is IPv6's only leaves the port to IPv4.
func TestV6Only(t *testing.T) {
	tcp := transport.NewTCP(&transport.TCPOptions{V6Only: true})
	l := testkit.Must(tcp.Listen(netip.MustParseAddrPort("[::]:0"), 0))(t)
	defer func() { _ = l.Close() }()
	if _, err := tcp.Dial(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), l.Addr().Port())); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("over IPv4: %v, want ECONNREFUSED", err)
	}
	at := netip.AddrPortFrom(netip.MustParseAddr("::1"), l.Addr().Port())
	c := testkit.Must(tcp.Dial(t.Context(), netip.AddrPort{}, at))(t)
	_ = c.Close()
	other, err := tcp.Listen(netip.AddrPortFrom(netip.MustParseAddr("0.0.0.0"), l.Addr().Port()), 0)
	if err != nil {
		t.Fatalf("the same port on IPv4: %v", err)
	}
	_ = other.Close()
}

// TestWith: the options of one socket are the network's with a change.
func TestWith(t *testing.T) {
	tcp := transport.NewTCP(&transport.TCPOptions{CongestionControl: "reno"})
	other := testkit.Must(tcp.With(func(o *transport.TCPOptions) { o.DSCP = 10 }))(t)
	if o := other.(*transport.TCP).Options(); o.CongestionControl != "reno" || o.DSCP != 10 || tcp.Options().DSCP != 0 {
		t.Errorf("options %+v, and %+v before", o, tcp.Options())
	}
	if _, err := tcp.With(func(o *transport.TCPOptions) { o.DSCP = 64 }); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("DSCP 64: %v", err)
	}
}

// TestLocalReceiveBuffer: both ends of a connection within this host have it, unless they have a
// ReceiveBuffer, and their peers can send as much before they read.
func TestLocalReceiveBuffer(t *testing.T) {
	const local, own = 96 << 10, 32 << 10 // what every system permits
	for _, addr := range []string{"127.0.0.1", "::1"} {
		for _, opts := range []transport.TCPOptions{
			{LocalReceiveBuffer: local}, {LocalReceiveBuffer: local, ReceiveBuffer: own},
			{LocalReceiveBuffer: -1, ReceiveBuffer: own},
		} {
			p := transporttest.NewPair(t, harness(addr, &opts))
			want := 2 * local // the kernel doubles it
			if opts.ReceiveBuffer != 0 {
				want = 2 * own
			}
			for _, c := range []transport.Conn{p.Dialed, p.Accepted} {
				fd := socketOf(t, c.LocalAddr(), c.RemoteAddr())
				got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
				if got != want || err != nil {
					t.Errorf("%s, %+v: SO_RCVBUF %d, %v; want %d", addr, opts, got, err, want)
				}
			}
		}
	}
}
