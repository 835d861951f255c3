package rdmacm

import (
	"errors"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
)

// Values of Conn.left.
const (
	disconnectedHere = 1 + iota // by Disconnect or Shutdown
	closedHere
)

// ownEndError is the error of a Conn's call that failed because this side has ended the connection.
// errors.Is finds os.ErrClosed in it.
type ownEndError struct {
	text string
	err  error // the device's error
}

func (e *ownEndError) Error() string { return e.text }

// Unwrap returns the error of the device, for errors.Is and As.
func (e *ownEndError) Unwrap() error { return e.err }

// Is implements the protocol of errors.Is.
func (e *ownEndError) Is(target error) bool { return target == os.ErrClosed }

// ownEnd returns err, unless err results from this side's end of the connection. Then it returns an
// error of op that says so, because the device's errors differ with the place where the end meets a
// call.
func (c *Conn) ownEnd(op string, err error) error {
	if err == nil {
		return nil
	}
	left := c.left.Load()
	if left == 0 || !c.fromOwnEnd(err) {
		return err
	}
	text := "this side has ended the connection (Conn.Shutdown or Disconnect)"
	if left == closedHere {
		text = "this side has closed the connection (Conn.Close)"
	}
	if errors.Is(err, ibverbs.ErrFlushed) || c.cutOff(err) {
		text += " before the work was complete"
	}
	return &ibverbs.Error{Op: op, Object: c.peer(), Err: &ownEndError{text, err}}
}

// fromOwnEnd reports whether err may result from this side's end of the connection. It may if an
// object was closed, work was flushed or cut off for no other reason, the queue takes no more work,
// or Receive has no receive left that could be flushed.
func (c *Conn) fromOwnEnd(err error) bool {
	if errors.Is(err, os.ErrClosed) {
		return true
	}
	cause := c.qp.Cause()
	if cause != nil && !errors.Is(cause, os.ErrClosed) {
		return false
	}
	if c.cutOff(err) {
		return true
	}
	var refused *ibverbs.PostError
	return errors.Is(err, ibverbs.ErrFlushed) || errors.Is(err, syscall.ENOTCONN) ||
		errors.As(err, &refused) && errors.Is(err, syscall.EINVAL)
}

// cutOff reports whether err is the status that siw gives to work that it was sending when the
// connection ended (kernel-notes/siw-error-reports.md). siw uses the same status for a local fault.
// The engine does not use it, and on RoCE it is a fault.
func (c *Conn) cutOff(err error) bool {
	var work *ibverbs.WCError
	return c.vctx.Transport() == ibverbs.TransportIWARP && errors.As(err, &work) &&
		work.Status == ibverbs.WCLocQPOpErr
}
