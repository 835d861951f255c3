package engine

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

var errForeign = errors.New("belongs to another device or provider; pass one of this device")

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

// failUnsupported returns the error of a feature that the engine does not have.
func failUnsupported(feature, reason string) error {
	return &provider.UnsupportedError{Feature: feature, Reason: reason}
}

// failForeign returns the error of an argument that belongs to another device or provider.
func failForeign(op, what string) error {
	return fail(op, what, fmt.Errorf("%w: %w", errForeign, syscall.EINVAL))
}

// failPost returns the error of a post to object that refuses work request n of the list.
func failPost(op, object string, n int, err error) error {
	if err != os.ErrClosed { // compared by value: it concerns no work request
		object = fmt.Sprintf("%s, work request %d", object, n)
	}
	return fail(op, object, err)
}

// Texts of failures that need more than the failing check has at hand. They are made after
// something has failed, so they may allocate.

// fullError says that a queue is full, and what frees places. It wraps ENOMEM.
type fullError struct {
	queue    string
	places   uint32
	silent   bool // all work requests are unsignalled
	awaiting bool // the peer's first message is awaited
}

// Error implements error.
func (e *fullError) Error() string {
	s := fmt.Sprintf("the %s queue is full: %d of %d work requests are outstanding", e.queue, e.places, e.places)
	if e.silent {
		s += ", all unsignalled"
	}
	switch {
	case e.awaiting:
		s += ", held until the peer's first message: the side that dialled has to send first"
	case e.queue != "send":
		s += "; a message of the peer takes one"
	case e.silent:
		s += "; places become free as the peer takes the data: signal every n-th and wait for its completion"
	default:
		s += "; poll the send CQ: a completion frees its place and those before it"
	}
	return s + ": " + syscall.ENOMEM.Error()
}

// Unwrap returns ENOMEM.
func (e *fullError) Unwrap() error { return syscall.ENOMEM }

// tooMany returns EINVAL for n of something of which the QP was made to hold at most limit.
func tooMany(n int, what string, limit int, field string) error {
	return fmt.Errorf("%d %s, and the queue pair was made for %d (QPCap.%s): %w", n, what, limit, field, syscall.EINVAL)
}

// outside returns EINVAL for a value that must be from low to high.
func outside(name string, value, low, high int) error {
	return fmt.Errorf("%s is %d, and must be from %d to %d: %w", name, value, low, high, syscall.EINVAL)
}

// notConnected returns EINVAL for a post to the send queue of a QP in state.
func notConnected(state provider.QPState) error {
	if state == provider.QPSQD {
		return fmt.Errorf("this side is ending the connection, the queue pair is in %s; "+
			"post before Shutdown or Disconnect: %w", state, syscall.EINVAL)
	}
	return fmt.Errorf("not connected, the queue pair is in %s; post after Dial or Accept has returned: %w", state, syscall.EINVAL)
}

// mustReturn is deferred around a call of a Sink or a RecvSource. If that panics or ends its
// goroutine, mustReturn ends the program. The engine holds locks during the call, so if the program
// recovered, it and its peers would wait for them forever.
func mustReturn(returned *bool) {
	if *returned {
		return
	}
	text := fmt.Sprintf("a method of a CompletionSink or RecvSource does not return: %v\n\n%s",
		recover(), debug.Stack())
	go panic(text) // here it could be recovered
	select {}
}
