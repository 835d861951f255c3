package cm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// fail returns the error of a failed call.
func fail(op, object string, err error) error {
	return &provider.Error{Op: op, Object: object, Err: err}
}

// failClosed returns the error of a call on a closed object.
func failClosed(op, object string) error { return fail(op, object, os.ErrClosed) }

// failBusy returns the error of closing an object on which others depend.
func failBusy(op, object, dependants string) error {
	return fail(op, object, fmt.Errorf("still open on it: %s; close what is open first: %w", dependants, syscall.EBUSY))
}

// Texts of start-ups that fail. They are made after something has failed, so they may allocate.

// whyNoConnection adds the meaning, and what to do, to the error of a connection that could not be
// made. connected says whether TCP was connected, reply is what the peer sent, and limit is how
// long the peer had.
func whyNoConnection(err error, connected bool, reply []byte, limit time.Duration) error {
	var rejected *mpa.RejectedError
	var protocol *iwarp.Error
	switch {
	case errors.As(err, &rejected):
		if len(rejected.PrivateData) == 0 { // otherwise the text of provider.RejectedError goes on
			return &reworded{"the peer's program rejected it; its log may say why", err}
		}
		return &reworded{"the peer's program rejected it", err}
	case errors.As(err, &protocol):
		if other := speaks(reply); other != "" {
			return fmt.Errorf("the peer answers in %s and is not an iWARP listener; "+
				"check the address and the port: %w", other, err)
		}
		return err
	case errors.Is(err, syscall.ECONNREFUSED):
		return &reworded{"nobody listens there; start the server first", err}
	case err == io.EOF, errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return &reworded{"the peer closed the TCP connection before it had answered, because it " +
			"rejected the request or is not an iWARP listener; check the address and the port", err}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return &reworded{silence(connected, len(reply), limit), err}
	}
	return err
}

// whyNotAccepted does so for the side that listens.
func whyNotAccepted(err error, limit time.Duration) error {
	switch {
	case err == io.EOF, errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return &reworded{"the peer closed the TCP connection before it had the Reply", err}
	case errors.Is(err, context.DeadlineExceeded):
		return &reworded{fmt.Sprintf("the peer did not take the Reply within "+
			"engine.Options.StartupTimeout, %v", limit), err}
	}
	return err
}

// whyNotBound adds what to do to the error of a bind to addr.
func whyNotBound(addr netip.Addr, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("another socket has it; take another port, or port 0 for any that "+
			"is free: %w", syscall.EADDRINUSE)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("no interface of this machine has the address; ip addr lists those it has: %w",
			syscall.EADDRNOTAVAIL)
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENODEV):
		return whyNoRoute(addr, err)
	}
	return err
}

// whyNoRoute adds what to do to the error of an address dst that can't be reached or bound.
func whyNoRoute(dst netip.Addr, err error) error {
	if errno := provider.Errno(err); errno == syscall.ENETUNREACH || errno == syscall.EHOSTUNREACH {
		return fmt.Errorf("this machine has no route to %s; ip route lists those it has: %w", dst, errno)
	}
	if !dst.IsLinkLocalUnicast() || dst.Is4() {
		return err
	}
	if zone := dst.Zone(); zone != "" {
		return fmt.Errorf("this machine may have no interface %s: %w", zone, err)
	}
	return fmt.Errorf("a link-local address needs a zone, as in %s%%eth0: %w", dst, err)
}

// errIDClosed is the cause if the program closes the id during the start-up.
// It is os.ErrClosed for errors.Is, but the text of os.ErrClosed is about files.
var errIDClosed = &reworded{"this side closed the id before the connection was made", os.ErrClosed}

// errForeign is the error of an argument that belongs to another device or provider.
var errForeign = fmt.Errorf("belongs to another device or provider; pass one of this device: %w", syscall.EINVAL)

// silence describes what a peer did not do in time.
func silence(connected bool, got int, limit time.Duration) string {
	const option = "engine.Options.StartupTimeout"
	switch {
	case !connected:
		return fmt.Sprintf("the peer's host did not answer within %s, %v; "+
			"check the address, and firewalls in between", option, limit)
	case got > 0:
		return fmt.Sprintf("the peer accepted the TCP connection, but sent only %d bytes of an MPA "+
			"Reply within %s, %v; check that it is an iWARP listener", got, option, limit)
	}
	return fmt.Sprintf("the peer accepted the TCP connection, but sent no MPA Reply within %s, %v; "+
		"check that it is an iWARP listener, and that its program calls Accept", option, limit)
}

// reworded is an error whose text means more to a user.
type reworded struct {
	text string
	err  error
}

// Error implements error.
func (e *reworded) Error() string { return e.text }

// Unwrap returns the error itself.
func (e *reworded) Unwrap() error { return e.err }

// whyNoRequest adds the meaning to the error of a connection without a valid Request. sent is what
// the peer has sent.
func whyNoRequest(err error, sent []byte) error {
	if other := speaks(sent); other != "" {
		return fmt.Errorf("the peer speaks %s, not iWARP: %w", other, err)
	}
	return err
}

// speaks names the protocol of a peer that begins with b, "" if it is none of the common ones.
func speaks(b []byte) string {
	for _, p := range []struct{ begin, name string }{
		{"HTTP/", "HTTP"}, {"GET ", "HTTP"}, {"HEAD ", "HTTP"}, {"POST ", "HTTP"}, {"PUT ", "HTTP"},
		{"OPTIONS ", "HTTP"}, {"CONNECT ", "HTTP"}, {"PRI * HTTP/2", "HTTP/2"},
		{"SSH-", "SSH"}, {"\x15\x03", "TLS"}, {"\x16\x03", "TLS"}, {"220 ", "SMTP or FTP"},
	} {
		if bytes.HasPrefix(b, []byte(p.begin)) {
			return p.name
		}
	}
	return ""
}
