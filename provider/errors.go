package provider

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Error is a failed call.
type Error struct {
	Op     string // the corresponding C call: "ibv_reg_mr"
	Object string // the object or argument of the call: "qp 17", "192.0.2.1:7471"; may be empty
	Err    error  // a syscall.Errno, os.ErrClosed, or an error that wraps one with a longer text
}

// Error implements error: "ibv_reg_mr 4096 bytes: cannot allocate memory",
// "ibv_poll_cq: cq of siw0 is closed".
func (e *Error) Error() string {
	object := e.Object
	switch {
	case e.Err == os.ErrClosed: // an error that wraps it has its own text
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

// Errno returns the errno that err wraps, or 0 if it wraps none.
func Errno(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return 0
}

// UnsupportedError reports a feature that a provider does not offer, and why. errors.Is matches it
// with errors.ErrUnsupported and syscall.EOPNOTSUPP.
type UnsupportedError struct {
	Feature string // "atomic operations"
	Reason  string // "siw has none"
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	return e.Feature + " not supported: " + e.Reason
}

// Is makes errors.Is match errors.ErrUnsupported and EOPNOTSUPP.
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

// ErrFlushed matches, with errors.Is, the WCError of a flushed work request. Flushing is the normal
// end of work that was still posted when a connection ended.
var ErrFlushed = errors.New("work request flushed")

// ErrNoneSignaled matches, with errors.Is, the ENOMEM of a send queue that unsignalled work
// requests fill forever. The device frees their places only when a later signalled one is reported,
// and none is posted.
var ErrNoneSignaled = fmt.Errorf("the send queue is full of unsignalled work requests, and this device never frees "+
	"their places: signal at least one in as many as the queue holds: %w", syscall.ENOMEM)

// Is makes errors.Is match ErrFlushed.
func (e *WCError) Is(target error) bool {
	return target == ErrFlushed && e.Status == WCWRFlushErr
}

// TerminateError is a protocol failure that ended a connection. It holds a Terminate message (RFC
// 5040 section 4.8): one that the peer sent (Remote), or one that we sent, or would have sent, for
// what the peer did.
type TerminateError struct {
	Remote bool
	Layer  uint8 // 0 RDMAP, 1 DDP, 2 LLP (MPA)
	EType  uint8
	ECode  uint8
	Text   string // the RFC's name of the code, and the details
	Err    error  // the local cause: an error of a region's object, or a [*WorkError]; otherwise nil
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

// WorkError is a fault in a local work request. [*TerminateError] has it in Err.
type WorkError struct {
	Recv   bool     // a receive; Opcode has no meaning then
	Opcode WROpcode // of a send

	// WRID identifies the program's work request. Unknown is set if a package posted the work
	// request on the program's behalf; the text then omits the WRID.
	WRID    uint64
	Unknown bool

	Text string // what is wrong; follows the work request's name
	Err  error  // the error of a region's object; otherwise nil
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

// RejectedError reports that a connection was refused, by the peer's program or by the peer's host
// because nothing listens there.
type RejectedError struct {
	Status      int    // as in CMEvent
	PrivateData []byte // the peer's, owned by the error
	Cause       error  // as in CMEvent; nil if the provider does not know it
}

// rejInvalidServiceID is the reason in InfiniBand's REJ if no program listens on the port
// (IB_CM_REJ_INVALID_SERVICE_ID of the kernel's ib_cm.h).
const rejInvalidServiceID = 8

// Error implements error: "nobody listens there; start the server first: connection refused".
func (e *RejectedError) Error() string {
	private := len(e.PrivateData)
	var why string
	switch {
	case e.Cause != nil:
		why = e.Cause.Error()
	case e.Status == rejInvalidServiceID:
		why = "nobody listens there; start the server first"
		private = 0 // InfiniBand's is only padding
	case private > 0:
		why = "the peer's program rejected it"
	case e.Status == -int(syscall.ECONNRESET):
		why = "the peer's program rejected it, or the peer closed the connection without an answer; " +
			"the peer's log may say why"
	default:
		why = "nobody listens there, or the peer's program rejected it; start the server first, or read its log"
	}
	if private > 0 {
		why += fmt.Sprintf(" with %d bytes of private data; RejectedError.PrivateData may say why", private)
	}
	if e.Status < 0 {
		return why + ": " + syscall.Errno(-e.Status).Error()
	}
	return fmt.Sprintf("%s: connection rejected, status %d", why, e.Status)
}

// Unwrap returns ECONNREFUSED.
func (e *RejectedError) Unwrap() error { return syscall.ECONNREFUSED }
