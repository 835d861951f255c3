package rdmacm

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
)

// Event is an event of an EventChannel (struct rdma_cm_event). It owns everything that it contains.
type Event struct {
	Type   EventType
	Status int // 0, a negative errno, or for Rejected librdmacm's status

	// Cause adds detail to a failure's Status if the provider has it: for instance, which option of
	// the start-up the peer did not agree to. The text of Err includes it.
	Cause error

	ID       *ID // the event's id; the new one with ConnectRequest
	ListenID *ID // with ConnectRequest the listening id, otherwise nil

	// The peer's data, with ConnectRequest, Established and Rejected. With ConnectRequest the
	// depths are the maximums to accept, as seen from this side: ResponderResources is the peer's
	// ORD. siw swaps the depths in Established.
	PrivateData        []byte
	ResponderResources int
	InitiatorDepth     int

	// RDMAC reports, with ConnectRequest and Established, that the connection uses the RDMA
	// Consortium's version of DDP and RDMAP (RFC 5044 appendix C). librdmacm has no equivalent;
	// engine.Options.Conformance.RDMAC permits it.
	RDMAC bool
}

// Err returns the failure that the event reports, nil if it reports none. The failure is an
// [*ibverbs.Error] of the call that led to the event, with a [*RejectedError] inside if the peer
// refused. Disconnected is not a failure.
func (e *Event) Err() error {
	if e == nil {
		return errNil("rdma_get_cm_event", "event")
	}
	var op string
	var errno syscall.Errno
	switch e.Type {
	case AddrError:
		op, errno = "rdma_resolve_addr", syscall.EHOSTUNREACH
	case RouteError:
		op, errno = "rdma_resolve_route", syscall.ENETUNREACH
	case ConnectError:
		op, errno = "rdma_connect", syscall.ECONNABORTED
	case Unreachable:
		op, errno = "rdma_connect", syscall.ETIMEDOUT
	case DeviceRemoval:
		op, errno = "rdma_connect", syscall.ENODEV
	case Rejected:
		return e.failed("rdma_connect", &RejectedError{Status: e.Status, PrivateData: e.PrivateData, Cause: e.Cause})
	default:
		return nil
	}
	if e.Status < 0 {
		errno = syscall.Errno(-e.Status)
	}
	// The error wraps only the errno of Status, because the cause may contain others.
	why := e.Type.String()
	if e.Cause != nil {
		why += ": " + strings.TrimSuffix(e.Cause.Error(), ": "+errno.Error())
	}
	return e.failed(op, fmt.Errorf("%s: %w", why, errno))
}

// failed returns err with the call and the peer.
func (e *Event) failed(op string, err error) error {
	failure := &ibverbs.Error{Op: op, Err: err}
	if e.ID != nil {
		failure.Object = e.ID.peer()
		if e.ID.passive && op == "rdma_connect" {
			failure.Op = "rdma_accept"
		}
	}
	return failure
}
