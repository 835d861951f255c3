package figures

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// A run has a loopback of its own, a network namespace that the script run makes.

// Addresses in that namespace.
var (
	loopback = netip.MustParseAddr("127.0.0.1") // segments as large as lo's MTU allows
	ethernet = netip.MustParseAddr("127.0.0.2") // advertises an MSS of 1460: 1448 with timestamps
)

// said is what a command printed as an error, nil if nothing.
func said(text []byte) error {
	if s := strings.TrimSpace(string(text)); s != "" {
		return errors.New(s)
	}
	return nil
}

// pathOf is what TCP does between sockets at an address.
type pathOf struct {
	MSS  int    // of the sender, in octets of payload, once data has flowed
	Cong string // of a socket that sets none
}

// tryPath sends some data over TCP and returns what TCP did.
func tryPath(ctx context.Context, addr netip.Addr) (p pathOf, err error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	got := make(chan error, 1)
	go func() { got <- drain(l) }()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return p, err
	}
	_, err = c.Write(make([]byte, 4*mib))
	if err == nil {
		p, err = pathOfConn(c.(*net.TCPConn))
	}
	if err = errors.Join(err, c.Close()); err != nil {
		return p, err
	}
	return p, <-got
}

// drain reads one connection to its end.
func drain(l net.Listener) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	buf := make([]byte, mib)
	for err == nil {
		_, err = c.Read(buf)
	}
	return c.Close()
}

func pathOfConn(c *net.TCPConn) (p pathOf, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return p, err
	}
	var opt error
	err = raw.Control(func(fd uintptr) {
		if p.MSS, opt = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG); opt == nil {
			p.Cong, opt = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		}
	})
	return p, errors.Join(err, opt)
}
