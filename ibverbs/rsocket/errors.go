package rsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
)

// netName is the name of the network in errors and addresses. Addresses are TCP addresses.
const netName = "rsocket"

// spelled is an address as the program wrote it.
type spelled string

func (spelled) Network() string  { return netName }
func (s spelled) String() string { return string(s) }

// ok returns an error if c is nil or the zero value, as package net does.
func (c *Conn) ok() error {
	if c == nil || c.parts == nil {
		return fmt.Errorf("nil or zero rsocket.Conn; check the error of Dial or Accept: %w", syscall.EINVAL)
	}
	return nil
}

// ok returns an error if l is nil or the zero value.
func (l *Listener) ok() error {
	if l == nil || l.l == nil {
		return fmt.Errorf("nil or zero rsocket.Listener; check the error of Listen: %w", syscall.EINVAL)
	}
	return nil
}

// opError returns the error of a Conn's call, with its addresses.
func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: netName, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// failedToDial returns the error of a Dial to addr.
func failedToDial(from, addr netip.AddrPort, err error) error {
	e := &net.OpError{Op: "dial", Net: netName, Addr: net.TCPAddrFromAddrPort(addr), Err: timedOut(err)}
	if from.IsValid() {
		e.Source = net.TCPAddrFromAddrPort(from)
	}
	return e
}

// timedOut returns err. If a deadline caused err, it returns an error whose Timeout method returns
// true (net.Error).
func timedOut(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return &timeoutError{err}
	}
	return err
}

// timeoutError is an error that a deadline caused.
type timeoutError struct{ error }

func (e *timeoutError) Timeout() bool   { return true }
func (e *timeoutError) Temporary() bool { return true }
func (e *timeoutError) Unwrap() error   { return e.error }

// Is implements the protocol of errors.Is: the error is os.ErrDeadlineExceeded as well.
func (e *timeoutError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// addrOf converts an address for package net.
func addrOf(a netip.AddrPort) net.Addr {
	if !a.IsValid() {
		return &net.TCPAddr{}
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
}
