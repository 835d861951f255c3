//go:build !linux

package transport

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"syscall"
)

// TCP is the Network of the system's TCP, which is implemented on Linux only. Here every method
// returns the same error.
type TCP struct{ opts TCPOptions }

// NewTCP returns a network that makes no connections. Check returns the reason.
func NewTCP(opts *TCPOptions) *TCP {
	t := &TCP{}
	if opts != nil {
		t.opts = *opts
	}
	return t
}

// errNoTCP matches errors.ErrUnsupported and syscall.EOPNOTSUPP with errors.Is, like an
// UnsupportedError, whose type belongs to package provider.
var errNoTCP error = noTCP{}

type noTCP struct{}

func (noTCP) Error() string {
	return "TCP of the engine needs Linux (epoll); this is " + runtime.GOOS + ": run it in a Linux VM or container"
}

func (noTCP) Is(target error) bool {
	return target == errors.ErrUnsupported || target == syscall.EOPNOTSUPP
}

// Check returns what is wrong with the options, or that the engine has no TCP on this system.
func (t *TCP) Check() error {
	if err := t.opts.validate(); err != nil {
		return err
	}
	return errNoTCP
}

// Options returns the options that t was made with.
func (t *TCP) Options() TCPOptions { return t.opts }

// With implements Adjustable.
func (t *TCP) With(func(*TCPOptions)) (Network, error) { return nil, errNoTCP }

// Bind implements Network.
func (t *TCP) Bind(netip.AddrPort) (Binding, error) { return nil, errNoTCP }

// Route implements Network.
func (t *TCP) Route(netip.Addr) (netip.Addr, error) { return netip.Addr{}, errNoTCP }

// Listen implements Network.
func (t *TCP) Listen(netip.AddrPort, int) (Listener, error) { return nil, errNoTCP }

// Dial implements Network.
func (t *TCP) Dial(context.Context, netip.AddrPort, netip.AddrPort) (Conn, error) {
	return nil, errNoTCP
}

// NewPoller implements Network.
func (t *TCP) NewPoller() (Poller, error) { return nil, errNoTCP }
