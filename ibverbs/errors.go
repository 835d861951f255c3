package ibverbs

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// The errors of both providers. They come as pointers: errors.As finds a
// *Error, *UnsupportedError, *WCError, *TerminateError, *WorkError, *PostError.
type (
	// Error is a failed call: Op is the C call, Object what it was called on,
	// and Err unwraps to the errno that the C call gives, or to os.ErrClosed. The fields
	// and methods are in [provider.Error].
	Error = provider.Error

	// UnsupportedError says that a provider does not offer something: Feature,
	// and Reason. It is errors.ErrUnsupported. See [provider.UnsupportedError].
	UnsupportedError = provider.UnsupportedError

	// WCError is what WC.Err returns for a completion that is not a success:
	// Status, WRID, QPN and VendorErr. Flushed ones are ErrFlushed. The fields and methods
	// are in [provider.WCError].
	WCError = provider.WCError

	// TerminateError is a protocol failure that ended a connection (RFC 5040
	// section 4.8): who terminated (Remote: the peer), Layer, EType, ECode,
	// and Text, which names the code. QP.Cause returns it. The fields and methods are in
	// [provider.TerminateError].
	TerminateError = provider.TerminateError

	// WorkError is a fault of a work request of this side, in the Err of a *TerminateError: WRID,
	// Opcode or Recv, and Text. The fields and methods are in [provider.WorkError].
	WorkError = provider.WorkError
)

// ErrFlushed is what errors.Is finds in the error of a completion with status
// WCWRFlushErr: its work request was still posted when the connection ended.
var ErrFlushed = provider.ErrFlushed

// ErrNoneSignaled is what errors.Is finds in the ENOMEM of PostSend, and in the error of
// Drain, if the send queue is full of unsignalled work and the device, unlike the engine,
// siw and rxe, gives back a place only when signalled work that was posted later is reported.
var ErrNoneSignaled = provider.ErrNoneSignaled

// Errno returns the errno inside err, 0 if there is none.
func Errno(err error) syscall.Errno { return provider.Errno(err) }

// PostError says that PostSend or PostRecv refused a work request, the one after
// those that are Posted. A QP that has no connection yet refuses the first send:
// EINVAL. If all are Posted, none was refused, but the driver couldn't notify the
// device of them: siw does so, with ENOTCONN, when its connection is ending at
// that moment. They may then never complete; see the limitations of package
// provider/kernel.
type PostError struct {
	Posted int   // how many of the call's WRs are posted
	Err    error // why, unwrapping to an errno
}

// Error implements error.
func (e *PostError) Error() string {
	return fmt.Sprintf("%v (%d posted by this call)", e.Err, e.Posted)
}

// Unwrap returns Err.
func (e *PostError) Unwrap() error { return e.Err }

// called returns err, a provider's error about o, with the name that o has here: providers know of
// a CQ or SRQ only that it is one, which they call noun.
func called(err error, o *object.Object, noun string) error {
	e, ok := err.(*Error) // what wraps one names another object
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
