//go:build linux

package transport

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Check makes a socket with all options, as every connection will have it, and returns what the
// system refuses: an invalid value (EINVAL), a congestion control or an interface that it doesn't
// have (ENOENT, ENODEV), or an option for root only (EPERM). The error wraps the errno and names
// the option.
func (t *TCP) Check() error {
	if err := t.opts.validate(); err != nil {
		return err
	}
	fd, err := t.socket(unix.AF_INET6)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = t.socket(unix.AF_INET)
	}
	if err != nil {
		return err
	}
	return closeFD(fd)
}

// With implements Adjustable.
func (t *TCP) With(change func(*TCPOptions)) (Network, error) { return t.with(change) }

func (t *TCP) with(change func(*TCPOptions)) (*TCP, error) {
	other := &TCP{opts: t.opts}
	change(&other.opts)
	other.opts.Tap = t.opts.Tap
	if err := other.Check(); err != nil {
		return nil, err
	}
	return other, nil
}

// With implements AdjustableBinding.
func (b *tcpBinding) With(change func(*TCPOptions)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd < 0 {
		return os.ErrClosed
	}
	other, err := b.tcp.with(change)
	if err != nil {
		return err
	}
	if other.opts.V6Only != b.tcp.opts.V6Only {
		return fmt.Errorf("IPV6_V6ONLY of a socket that is bound: %w", unix.EINVAL)
	}
	family, err := unix.GetsockoptInt(b.fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return fmt.Errorf("SO_DOMAIN: %w", err)
	}
	b.tcp = other
	if err := shareAddr(b.fd, other.opts.ReuseAddr); err != nil {
		return err
	}
	return other.opts.setRoute(b.fd, family)
}

// Options returns the options that t was made with.
func (t *TCP) Options() TCPOptions { return t.opts }

// set sets the options on a socket that is neither bound nor connected. On Linux an accepted socket
// inherits all of these from the listener.
func (o *TCPOptions) set(fd, family int) error {
	if err := o.validate(); err != nil {
		return err
	}
	for _, set := range []func(fd, family int) error{o.setFamily, o.setBuffers, o.setTimers, o.setRoute} {
		if err := set(fd, family); err != nil {
			return err
		}
	}
	return nil
}

// setFamily sets the options that every socket has, and the congestion control.
func (o *TCPOptions) setFamily(fd, family int) error {
	if family == unix.AF_INET6 {
		only := 0
		if o.V6Only {
			only = 1
		}
		if err := setInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, "IPV6_V6ONLY", only); err != nil {
			return err
		}
	}
	if err := setInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, "TCP_NODELAY", 1); err != nil {
		return err
	}
	if n := o.MaxSegment; n != 0 {
		if err := setInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, "TCP_MAXSEG", n); err != nil {
			return err
		}
	}
	if name := o.CongestionControl; name != "" {
		if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err != nil {
			return fmt.Errorf("TCP option CongestionControl = %q is not allowed or not known; sysctl "+
				"net.ipv4.tcp_allowed_congestion_control lists those that programs may take: %w", name, err)
		}
	}
	return nil
}

func (o *TCPOptions) setBuffers(fd, _ int) error {
	if err := setBuffer(fd, "SO_SNDBUF", "net.core.wmem_max", unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, o.SendBuffer); err != nil {
		return err
	}
	return setBuffer(fd, "SO_RCVBUF", "net.core.rmem_max", unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, o.ReceiveBuffer)
}

// setBuffer sets the size of a buffer, and checks the result, because Linux lowers a size above the
// system's limit silently.
func setBuffer(fd int, name, limit string, option, force, octets int) error {
	if octets == 0 {
		return nil
	}
	if err := setInt(fd, unix.SOL_SOCKET, option, name, octets); err != nil {
		return err
	}
	got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if got >= 2*octets { // the kernel includes its own overhead
		return nil
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, octets); err != nil {
		return fmt.Errorf("%s of %d bytes: the system allows %d; raise %s: %w", name, octets, got/2, limit, err)
	}
	return nil
}

func (o *TCPOptions) setTimers(fd, _ int) error {
	if ms := o.UserTimeout / time.Millisecond; ms > 0 {
		if err := setInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT", int(ms)); err != nil {
			return err
		}
	}
	k := o.KeepAlive
	if k.Off {
		return nil
	}
	if err := setInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, "SO_KEEPALIVE", 1); err != nil {
		return err
	}
	for _, v := range []struct {
		name   string
		option int
		value  int
	}{
		{"TCP_KEEPIDLE", unix.TCP_KEEPIDLE, int(cmp.Or(k.Idle, 15*time.Second) / time.Second)},
		{"TCP_KEEPINTVL", unix.TCP_KEEPINTVL, int(cmp.Or(k.Interval, 15*time.Second) / time.Second)},
		{"TCP_KEEPCNT", unix.TCP_KEEPCNT, cmp.Or(k.Count, 9)},
	} {
		if err := setInt(fd, unix.IPPROTO_TCP, v.option, v.name, v.value); err != nil {
			return err
		}
	}
	return nil
}

// setRoute sets the marks of packets and where they go. An IPv6 socket has both traffic classes,
// because it takes IPv4 connections, too.
func (o *TCPOptions) setRoute(fd, family int) error {
	if o.DSCP != 0 {
		if err := setInt(fd, unix.IPPROTO_IP, unix.IP_TOS, "IP_TOS", o.DSCP<<2); err != nil {
			return err
		}
		if family == unix.AF_INET6 {
			if err := setInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, "IPV6_TCLASS", o.DSCP<<2); err != nil {
				return err
			}
		}
	}
	if o.Device != "" {
		if err := unix.BindToDevice(fd, o.Device); err != nil {
			return fmt.Errorf("TCP option Device = %q has to be a network interface: %w", o.Device, err)
		}
	}
	return nil
}

func setInt(fd, level, option int, name string, value int) error {
	if err := unix.SetsockoptInt(fd, level, option, value); err != nil {
		return fmt.Errorf("%s = %d: %w", name, value, err)
	}
	return nil
}
