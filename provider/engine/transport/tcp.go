//go:build linux

package transport

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"golang.org/x/sys/unix"
)

// TCP is the Network of the system's TCP. Its streams are raw sockets that are not in Go's
// netpoller, so arrivals on them wake only a Poller. Nagle's algorithm is off. The zero TCP has the
// defaults.
type TCP struct {
	opts TCPOptions
}

// NewTCP returns the system's TCP. A nil opts means the defaults. Check reports whether the system
// can do what opts asks for; otherwise the first socket fails.
func NewTCP(opts *TCPOptions) *TCP {
	t := new(TCP)
	if opts != nil {
		t.opts = *opts
	}
	return t
}

// Bind implements Network. A given port is shared with connections in TIME_WAIT, so that a server
// can start again at once.
func (t *TCP) Bind(local netip.AddrPort) (Binding, error) { return t.bind(local) }

func (t *TCP) bind(local netip.AddrPort) (*tcpBinding, error) {
	fd, err := t.bindAny(local)
	if err != nil {
		return nil, opError("bind", local, err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		_ = closeFD(fd)
		return nil, opError("bind", local, err)
	}
	return &tcpBinding{tcp: t, fd: fd, addr: addrPortOf(sa)}, nil
}

// bindAny tries IPv6, which takes IPv4 connections too, before IPv4 if local names no family.
func (t *TCP) bindAny(local netip.AddrPort) (int, error) {
	if local.Addr().IsValid() {
		return t.bindOne(local)
	}
	fd, err := t.bindOne(netip.AddrPortFrom(netip.IPv6Unspecified(), local.Port()))
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
		return t.bindOne(netip.AddrPortFrom(netip.IPv4Unspecified(), local.Port()))
	}
	return fd, err
}

func (t *TCP) bindOne(local netip.AddrPort) (int, error) {
	fd, err := t.bindShared(local, t.opts.ReuseAddr)
	if err != unix.EADDRINUSE || t.opts.ReuseAddr || local.Port() == 0 {
		return fd, err
	}
	// Linux' SO_REUSEADDR shares a port with connections in TIME_WAIT, which any program may do,
	// and also with bound sockets that have the option. The latter must not happen to a program
	// that did not ask for it, so sockets that are only bound don't have the option.
	if fd, err = t.bindShared(local, true); err == nil {
		err = shareAddr(fd, false)
	}
	return fd, err
}

// bindShared binds a socket with SO_REUSEADDR or without.
func (t *TCP) bindShared(local netip.AddrPort, share bool) (int, error) {
	sa, family, err := sockaddrOf(local)
	if err != nil {
		return -1, err
	}
	fd, err := t.socket(family)
	if err != nil {
		return -1, err
	}
	if err = shareAddr(fd, share); err == nil {
		err = unix.Bind(fd, sa)
	}
	if err != nil {
		_ = closeFD(fd)
		return -1, err
	}
	return fd, nil
}

func shareAddr(fd int, share bool) error {
	value := 0
	if share {
		value = 1
	}
	return setInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, "SO_REUSEADDR", value)
}

// socket makes a TCP socket with the options of t.
func (t *TCP) socket(family int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	fd = opened(fd)
	if err := t.opts.set(fd, family); err != nil {
		_ = closeFD(fd)
		return -1, err
	}
	return fd, nil
}

// Route implements Network. It connects a datagram socket, which makes the kernel look up the route
// and sends nothing.
func (t *TCP) Route(dst netip.Addr) (netip.Addr, error) {
	to := netip.AddrPortFrom(dst, 9) // any port will do; 9 is discard
	if !dst.IsValid() || dst.IsUnspecified() {
		return netip.Addr{}, fmt.Errorf("route to %s: %w", dst, unix.EADDRNOTAVAIL)
	}
	sa, family, err := sockaddrOf(to)
	if err != nil {
		return netip.Addr{}, err
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("route to %s: %w", dst, err)
	}
	defer func() { _ = unix.Close(fd) }()
	err = unix.Connect(fd, sa)
	if err == unix.EACCES {
		err = unix.ENETUNREACH // a broadcast address, which takes no connections
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("route to %s: %w", dst, err)
	}
	local, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("route to %s: %w", dst, err)
	}
	return addrPortOf(local).Addr(), nil
}

// Listen implements Network.
func (t *TCP) Listen(local netip.AddrPort, backlog int) (Listener, error) {
	b, err := t.bind(local)
	if err != nil {
		return nil, err
	}
	return b.Listen(backlog)
}

// Dial implements Network.
func (t *TCP) Dial(ctx context.Context, src, dst netip.AddrPort) (Conn, error) {
	b, err := t.bindSource(src, dst)
	if err != nil {
		return nil, err
	}
	return b.Dial(ctx, dst)
}

// bindSource makes the socket of an outgoing connection. Without a port in src the kernel chooses
// one while it connects, when it also knows dst. So there can be as many connections to each dst as
// there are ports.
func (t *TCP) bindSource(src, dst netip.AddrPort) (*tcpBinding, error) {
	if src.Port() != 0 {
		return t.bind(src)
	}
	_, family, err := sockaddrOf(dst)
	if err != nil {
		return nil, err
	}
	fd, err := t.socket(family)
	if err != nil {
		return nil, opError("connect", dst, err)
	}
	b := &tcpBinding{tcp: t, fd: fd, addr: src}
	if !src.Addr().IsValid() || src.Addr().IsUnspecified() {
		return b, nil
	}
	sa, _, err := sockaddrOf(src)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		if err == unix.ENOPROTOOPT {
			err = nil // qemu-user does not know the option: bind chooses the port, from fewer
		}
	}
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	if err != nil {
		_ = b.Close()
		return nil, opError("bind", src, err)
	}
	return b, nil
}

// tcpBinding is a bound socket, neither listening nor connected.
type tcpBinding struct {
	tcp  *TCP
	addr netip.AddrPort

	mu sched.Mutex[locks.Binding]
	fd int // -1 after use
}

// Addr implements Binding.
func (b *tcpBinding) Addr() netip.AddrPort { return b.addr }

// handOver hands the socket over to the caller that uses the binding.
func (b *tcpBinding) handOver() (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd < 0 {
		return -1, os.ErrClosed
	}
	fd := b.fd
	b.fd = -1
	return fd, nil
}

// Close implements Binding.
func (b *tcpBinding) Close() error {
	if fd, err := b.handOver(); err == nil {
		_ = closeFD(fd)
	}
	return nil
}

// Listen implements Binding.
func (b *tcpBinding) Listen(backlog int) (Listener, error) {
	fd, err := b.handOver()
	if err != nil {
		return nil, opError("listen", b.addr, err)
	}
	if backlog <= 0 {
		backlog = unix.SOMAXCONN
	}
	err = shareAddr(fd, true) // for its connections, when they are in TIME_WAIT
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		_ = closeFD(fd)
		return nil, opError("listen", b.addr, err)
	}
	return newTCPListener(b.tcp, fd, b.addr)
}

// Dial implements Binding.
func (b *tcpBinding) Dial(ctx context.Context, dst netip.AddrPort) (Conn, error) {
	fd, err := b.handOver()
	if err != nil {
		return nil, opError("connect", dst, err)
	}
	if err = shareAddr(fd, true); err == nil {
		err = connect(ctx, fd, dst)
	}
	if err != nil {
		resetSocket(fd) // others may have copies of the descriptor
		_ = closeFD(fd)
		return nil, opError("connect", dst, err)
	}
	c, err := b.tcp.newConn(fd, true)
	if err != nil {
		return nil, opError("connect", dst, err)
	}
	if c.local == c.remote {
		// Nobody listens on a local port that the kernel chose as our own: TCP's simultaneous open
		// connected the socket to itself.
		_ = c.Abort()
		return nil, opError("connect", dst, syscall.ECONNREFUSED)
	}
	return c, nil
}

// TCPStats implements Stater.
func (c *tcpConn) TCPStats() (TCPStats, error) {
	if !c.ref.acquire() {
		return TCPStats{}, os.ErrClosed
	}
	defer c.ref.release()
	i, err := unix.GetsockoptTCPInfo(c.ref.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return TCPStats{}, err
	}
	return TCPStats{
		RTTMicros: i.Rtt, RTTVarMicros: i.Rttvar,
		SendMSS: i.Snd_mss, CongWindow: i.Snd_cwnd,
		Unacked: i.Unacked, Lost: i.Lost, Retrans: i.Retrans, TotalRetrans: i.Total_retrans,
		BytesAcked: i.Bytes_acked, BytesReceived: i.Bytes_received,
		NotSentBytes: i.Notsent_bytes, DeliveryRate: i.Delivery_rate,
	}, nil
}
