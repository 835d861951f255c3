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

// netName is what errors and addresses call the network. Addresses are those of TCP.
const netName = "rsocket"

// spelled is an address as the program has spelled it.
type spelled string

func (spelled) Network() string  { return netName }
func (s spelled) String() string { return string(s) }

// ok returns an error if c is nil or the zero value, as the failed calls of package net return.
func (c *Conn) ok() error {
	if c == nil || c.parts == nil {
		return fmt.Errorf("nil or zero rsocket.Conn: %w", syscall.EINVAL)
	}
	return nil
}

// ok is Conn.ok for a Listener.
func (l *Listener) ok() error {
	if l == nil || l.l == nil {
		return fmt.Errorf("nil or zero rsocket.Listener: %w", syscall.EINVAL)
	}
	return nil
}

// opError is an error of a call of a Conn, with its addresses.
func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: netName, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// failedToDial is the error of a Dial to addr.
func failedToDial(from, addr netip.AddrPort, err error) error {
	e := &net.OpError{Op: "dial", Net: netName, Addr: net.TCPAddrFromAddrPort(addr), Err: timedOut(err)}
	if from.IsValid() {
		e.Source = net.TCPAddrFromAddrPort(from)
	}
	return e
}

// timedOut returns err, or if a deadline was its cause, an error that net.Error.Timeout finds.
func timedOut(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return &timeoutError{err}
	}
	return err
}

// timeoutError is a failure whose cause is a deadline.
type timeoutError struct{ error }

func (e *timeoutError) Timeout() bool   { return true }
func (e *timeoutError) Temporary() bool { return true }
func (e *timeoutError) Unwrap() error   { return e.error }

// Is implements the protocol of errors.Is: the error is os.ErrDeadlineExceeded as well.
func (e *timeoutError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// addrOf returns an address as package net has it.
func addrOf(a netip.AddrPort) net.Addr {
	if !a.IsValid() {
		return &net.TCPAddr{}
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
}
