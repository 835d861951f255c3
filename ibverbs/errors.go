package ibverbs

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// The errors of both providers. They are pointers: errors.As finds an *Error, *UnsupportedError,
// *WCError, *TerminateError, *WorkError or *PostError.
type (
	// Error is a failed call: Op is the C call, Object what it was called on,
	// and Err unwraps to the errno that the C call gives, or to os.ErrClosed. The fields
	// and methods are in [provider.Error].
	Error = provider.Error

	// UnsupportedError says that a provider lacks a Feature, and the Reason. errors.Is finds
	// errors.ErrUnsupported in it. See [provider.UnsupportedError].
	UnsupportedError = provider.UnsupportedError

	// WCError is what WC.Err returns for a completion that is not a success: Status, WRID, QPN and
	// VendorErr. errors.Is finds ErrFlushed if the WR was flushed. The fields and methods are in
	// [provider.WCError].
	WCError = provider.WCError

	// TerminateError is a protocol failure that ended a connection (RFC 5040 section 4.8): Remote
	// (the peer terminated), Layer, EType, ECode, and Text, which names the code. QP.Cause returns
	// it. The fields and methods are in [provider.TerminateError].
	TerminateError = provider.TerminateError

	// WorkError is the fault of one of our own work requests, in the Err of a *TerminateError:
	// WRID, Opcode or Recv, and Text. The fields and methods are in [provider.WorkError].
	WorkError = provider.WorkError
)

// ErrFlushed is in the error of a completion with status WCWRFlushErr (errors.Is): its work request
// was still posted when the connection ended.
var ErrFlushed = provider.ErrFlushed

// ErrNoneSignaled is in the ENOMEM of PostSend and in the error of Drain (errors.Is) if the send
// queue is full of unsignalled work. It comes from devices that free a place only when a later
// signalled work request completes; the engine, siw and rxe are not among them.
var ErrNoneSignaled = provider.ErrNoneSignaled

// Errno returns the errno inside err, 0 if there is none.
func Errno(err error) syscall.Errno { return provider.Errno(err) }

// PostError says that PostSend or PostRecv refused the work request after the Posted ones. A QP
// that is not connected yet refuses the first send with EINVAL. If all were posted, none was
// refused, but the driver could not notify the device: siw does this, with ENOTCONN, while its
// connection is ending. The posted work may then never complete; see the limitations of package
// provider/kernel.
type PostError struct {
	Posted int   // how many of the call's WRs were posted
	Err    error // the cause; unwraps to an errno
}

// Error implements error. It names the number of posted work requests if there are any, unless the
// cause names the position of the refused one, as the engine's does.
func (e *PostError) Error() string {
	refused, ok := e.Err.(*Error)
	switch {
	case e.Posted == 0 || ok && strings.Contains(refused.Object, "work request "):
		return e.Err.Error()
	case !ok:
		return fmt.Sprintf("%d posted by this call: %v", e.Posted, e.Err)
	}
	after := *refused
	after.Object += fmt.Sprintf(", %d posted by this call", e.Posted)
	return after.Error()
}

// Unwrap returns Err.
func (e *PostError) Unwrap() error { return e.Err }

// called returns err, a provider's error about o, with the name of o in this package. Providers do
// not know the names of CQs and SRQs, and write only the noun.
func called(err error, o *object.Object, noun string) error {
	e, ok := err.(*Error) // an error that wraps an *Error names another object
	if !ok {
		return err
	}
	named := *e
	rest, of := strings.CutPrefix(e.Object, noun)
	switch {
	case e.Object == "" || strings.HasPrefix(rest, " of "):
		named.Object = o.Name()
	case of:
		named.Object = o.Name() + rest
	default:
		named.Object = o.Name() + ", " + e.Object
	}
	return &named
}
