package provider

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Error is a failed call.
type Error struct {
	Op     string // the C call that it corresponds to: "ibv_reg_mr"
	Object string // what it was called on or with: "qp 17", "192.0.2.1:7471"; may be empty
	Err    error  // a syscall.Errno, os.ErrClosed, or an error that wraps one and says more
}

// Error implements error: "ibv_reg_mr 4096 bytes: cannot allocate memory",
// "ibv_poll_cq: cq of siw0 is closed".
func (e *Error) Error() string {
	object := e.Object
	switch {
	case e.Err == os.ErrClosed: // what wraps it has a text of its own
		if object == "" {
			object = "the object"
		}
		return e.Op + ": " + object + " is closed"
	case object == "":
		return e.Op + ": " + e.Err.Error()
	}
	return e.Op + " " + object + ": " + e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Errno returns the errno inside err, 0 if there is none.
func Errno(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return 0
}

// UnsupportedError says that a provider does not offer something, and why.
// errors.Is finds errors.ErrUnsupported and syscall.EOPNOTSUPP in it.
type UnsupportedError struct {
	Feature string // "atomic operations"
	Reason  string // "siw has none"
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	return e.Feature + " not supported: " + e.Reason
}

// Is implements the protocol of errors.Is.
func (e *UnsupportedError) Is(target error) bool {
	return target == errors.ErrUnsupported || target == syscall.EOPNOTSUPP
}

// WCError is the failure that a completion reports.
type WCError struct {
	Status    WCStatus
	WRID      uint64
	QPN       uint32
	VendorErr uint32
}

// Error implements error.
func (e *WCError) Error() string {
	return fmt.Sprintf("work request %#x of qp %d completed with %s", e.WRID, e.QPN, e.Status)
}

// ErrFlushed is what errors.Is finds in the WCError of a flushed work request:
// the normal end of what was still posted when a connection ended.
var ErrFlushed = errors.New("work request flushed")

// ErrNoneSignaled is what errors.Is finds in the ENOMEM of a send queue that is full of
// unsignalled work requests and stays so: the device gives back their places only when a
// signalled one that was posted after them is reported, and there is none.
var ErrNoneSignaled = fmt.Errorf("the send queue is full of unsignalled work requests, and this device never frees "+
	"their places: signal at least one in as many as the queue holds: %w", syscall.ENOMEM)

// Is implements the protocol of errors.Is.
func (e *WCError) Is(target error) bool {
	return target == ErrFlushed && e.Status == WCWRFlushErr
}

// TerminateError is a protocol failure that ended a connection: a Terminate
// message (RFC 5040 section 4.8) that the peer sent (Remote), or that we sent
// or would have sent about what the peer did.
type TerminateError struct {
	Remote bool
	Layer  uint8 // 0 RDMAP, 1 DDP, 2 LLP (MPA)
	EType  uint8
	ECode  uint8
	Text   string // the RFC's name of the code, and what was wrong
	Err    error  // what failed on our side, if that is why: the object of a region, a [*WorkError]; otherwise nil
}

// Error implements error.
func (e *TerminateError) Error() string {
	who := "we"
	if e.Remote {
		who = "the peer"
	}
	text := fmt.Sprintf("%s terminated the connection: %d/%d/0x%02x %s", who, e.Layer, e.EType, e.ECode, e.Text)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	if e.Remote && e.Layer == 0 && e.EType == 2 && e.ECode == 6 {
		text += "; the peer does not have the operation: atomic operations and immediate data need " +
			"engine.Options.Extensions at both ends"
	}
	return text
}

// Unwrap returns Err.
func (e *TerminateError) Unwrap() error { return e.Err }

// WorkError is a fault of a work request of our own, in the Err of the [*TerminateError] for it.
type WorkError struct {
	Recv   bool     // it is a receive; Opcode has no meaning then
	Opcode WROpcode // of a send

	// WRID is the work request's. Unknown says that it is not one of the program's: a package
	// posted the work request for the program. The text then leaves it out.
	WRID    uint64
	Unknown bool

	Text string // what is wrong with it, to follow its name
	Err  error  // what has failed: the object of a region; otherwise nil
}

// Error implements error: "work request 0x7 (IBV_WR_SEND), SGE 0: it has no lkey".
func (e *WorkError) Error() string {
	text := e.name() + ", " + e.Text
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns Err.
func (e *WorkError) Unwrap() error { return e.Err }

func (e *WorkError) name() string {
	switch {
	case e.Recv && e.Unknown:
		return "a receive"
	case e.Recv:
		return fmt.Sprintf("receive %#x", e.WRID)
	case e.Unknown:
		return e.Opcode.String()
	}
	return fmt.Sprintf("work request %#x (%s)", e.WRID, e.Opcode)
}

// RejectedError says that a connection was refused, by the peer's program or by the
// peer's host because nothing listens there.
type RejectedError struct {
	Status      int    // as in CMEvent
	PrivateData []byte // the peer's, owned by the error
	Cause       error  // as in CMEvent; nil where the provider does not know it
}

// rejInvalidServiceID is the reason of InfiniBand's REJ where no program listens at the port
// (IB_CM_REJ_INVALID_SERVICE_ID of the kernel's ib_cm.h).
const rejInvalidServiceID = 8

// Error implements error: "connection refused: nobody listens there".
func (e *RejectedError) Error() string {
	var b strings.Builder
	switch {
	case e.Status < 0:
		b.WriteString(syscall.Errno(-e.Status).Error())
	default:
		fmt.Fprintf(&b, "connection rejected, status %d", e.Status)
	}
	switch {
	case e.Cause != nil:
		b.WriteString(": " + e.Cause.Error())
	case e.Status == rejInvalidServiceID:
		b.WriteString(": nobody listens there")
		return b.String() // InfiniBand pads the private data, which is nobody's
	case len(e.PrivateData) > 0:
		b.WriteString(": the peer's program rejected it")
	case e.Status == -int(syscall.ECONNRESET):
		b.WriteString(": the peer's program rejected it, or the peer closed the connection without an answer")
	default:
		b.WriteString(": nobody listens there, or the peer's program rejected it")
	}
	if n := len(e.PrivateData); n > 0 {
		fmt.Fprintf(&b, " with %d bytes of private data", n)
	}
	return b.String()
}

// Unwrap returns ECONNREFUSED, the errno that a refused connection has.
func (e *RejectedError) Unwrap() error { return syscall.ECONNREFUSED }
