package figures

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A run has a loopback of its own: a network namespace whose routes set the congestion
// control of sockets. No other way sets the same one for all, because neither UCX nor
// libfabric sets any, and with bbr, the default of some systems, loopback is paced. The
// namespace also gives the segments of an Ethernet without a second machine.

// Addresses in that namespace.
var (
	loopback = netip.MustParseAddr("127.0.0.1") // segments as large as lo's MTU allows
	ethernet = netip.MustParseAddr("127.0.0.2") // advertises an MSS of 1460: 1448 with timestamps
)

const ethernetMSS = 1460

// SeparateNetwork has cmd run in a network namespace of its own. Without root this needs
// a user namespace, too, which some systems don't allow.
func SeparateNetwork(cmd *exec.Cmd) {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if id := os.Geteuid(); id != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	cmd.SysProcAttr = attr
}

// PrepareNetwork makes the loopback of a namespace of its own ready. cong is the
// congestion control for every socket, empty for the system's.
func PrepareNetwork(ctx context.Context, cong string) error {
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("the loopback interface: %w", err)
	}
	var locked []string
	if cong != "" {
		locked = []string{"congctl", cong}
	}
	for addr, extra := range map[netip.Addr][]string{loopback: nil, ethernet: {"advmss", fmt.Sprint(ethernetMSS)}} {
		args := []string{
			"route", "replace", "local", addr.String() + "/32", "dev", "lo", "table", "local",
			"proto", "kernel", "scope", "host", "src", addr.String(),
		}
		cmd := exec.CommandContext(ctx, "ip", append(append(args, extra...), locked...)...)
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w", cmd, errors.Join(err, said(text)))
		}
	}
	return nil
}

// said is what a command printed as an error, nil if nothing.
func said(text []byte) error {
	if s := strings.TrimSpace(string(text)); s != "" {
		return errors.New(s)
	}
	return nil
}

// loopbackUp sets the flag that the interface of a new namespace lacks.
func loopbackUp() (err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return err
	}
	ifr.SetUint16(ifr.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
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
