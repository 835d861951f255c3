package provider

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"time"
)

// EventChannel carries the events of the CM ids that were made on it or
// migrated to it (struct rdma_event_channel).
type EventChannel interface {
	// CreateID makes an id in the RDMA_PS_TCP port space (rdma_create_id).
	CreateID(cookie any) (ID, error)

	// Next waits for an event, copies it, private data included, and
	// acknowledges it (rdma_get_cm_event, rdma_ack_cm_event).
	Next(ctx context.Context) (CMEvent, error)

	Close() error // rdma_destroy_event_channel; EBUSY while ids are on it
}

// ID is a communication identifier (struct rdma_cm_id). Calls that say "event"
// return when the work has begun; its end is an event on the id's channel.
type ID interface {
	BindAddr(addr netip.AddrPort) error // rdma_bind_addr; port 0 picks one

	// ResolveAddr finds the way to dst (rdma_resolve_addr). Event: ADDR_RESOLVED
	// or ADDR_ERROR. A zero src leaves the choice to the provider.
	ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error

	ResolveRoute(timeout time.Duration) error // rdma_resolve_route; event: ROUTE_RESOLVED or ROUTE_ERROR

	// CreateQP makes the QP of this id (rdma_create_qp). The QP must be closed
	// before the id. pd must be of the device that the id is bound to.
	CreateQP(pd PD, init QPInitAttr) (QP, error)

	// Listen (rdma_listen). Events: CONNECT_REQUEST, each with a new id.
	Listen(backlog int) error

	// Connect (rdma_connect). Event: ESTABLISHED, REJECTED, UNREACHABLE or
	// CONNECT_ERROR. On iWARP the TCP handshake and the MPA request are part of the call.
	// With the kernel the handshake's failure is the call's error.
	Connect(param ConnParam) error

	Accept(param ConnParam) error // rdma_accept; event: ESTABLISHED or CONNECT_ERROR
	Reject(private []byte) error  // rdma_reject
	Disconnect() error            // rdma_disconnect; event: DISCONNECTED on both sides

	Migrate(ch EventChannel) error // rdma_migrate_id

	SetOption(option IDOption, value int) error // rdma_set_option at RDMA_OPTION_ID

	LocalAddr() netip.AddrPort  // rdma_get_local_addr; zero if not bound
	RemoteAddr() netip.AddrPort // rdma_get_peer_addr; zero if not known

	// DeviceName is the device that the id is bound to, empty before.
	DeviceName() string

	// Cookie is rdma_cm_id.context. An id that comes with a CONNECT_REQUEST
	// starts with its listener's.
	Cookie() any
	SetCookie(cookie any)

	// Close destroys the id (rdma_destroy_id) and whatever connection it has.
	// EBUSY while its QP exists. No event of it is delivered afterwards.
	Close() error
}

// IDOption is an option of a CM id (RDMA_OPTION_ID_TOS and so on), with the C
// numbers.
type IDOption int

// Options of a CM id.
const (
	IDOptionTOS        IDOption = 0 // type of service of the packets: 0 to 255
	IDOptionReuseAddr  IDOption = 1 // 1: the address may be bound by others, too
	IDOptionAFOnly     IDOption = 2 // 1: a listener on :: takes IPv6 only, 0: IPv4, too
	IDOptionAckTimeout IDOption = 3 // 0 to 31: the QP's ACK timeout, 4.096 us * 2^value
)

// String returns the C name.
func (o IDOption) String() string {
	names := [...]string{"RDMA_OPTION_ID_TOS", "RDMA_OPTION_ID_REUSEADDR", "RDMA_OPTION_ID_AFONLY", "RDMA_OPTION_ID_ACK_TIMEOUT"}
	if o < 0 || int(o) >= len(names) {
		return fmt.Sprintf("RDMA_OPTION_ID_%d", int(o))
	}
	return names[o]
}

// Check says whether the option exists (ENOSYS, as with the kernel) and can have the
// value (EINVAL).
func (o IDOption) Check(value int) error {
	limit := 1
	switch o {
	case IDOptionTOS:
		limit = 255
	case IDOptionReuseAddr, IDOptionAFOnly:
	case IDOptionAckTimeout:
		limit = 31
	default:
		return fmt.Errorf("%s is no option: %w", o, syscall.ENOSYS)
	}
	if value < 0 || value > limit {
		return fmt.Errorf("%s = %d, must be 0 to %d: %w", o, value, limit, syscall.EINVAL)
	}
	return nil
}

// ConnParam holds what a connection is made with (struct rdma_conn_param).
type ConnParam struct {
	// PrivateData goes to the peer with the MPA request or reply. What fits
	// depends on provider and MPA revision: 252 bytes between any two, 508
	// between engines (RFC 5044 section 7.1, less four bytes of RFC 6581).
	// siw as sender corrupts lengths 252 to 255 (kernel-notes). On InfiniBand and
	// RoCE a request takes 56 bytes, an acceptance 196 and a rejection 148, and
	// that is how many arrive, the rest being zeros.
	PrivateData []byte

	ResponderResources int // IRD: RDMA Reads we serve at a time
	InitiatorDepth     int // ORD: RDMA Reads we have outstanding

	// Of InfiniBand and RoCE: how often either end sends a packet again that is not
	// acknowledged, which Connect says for both, and how often the peer sends a
	// message again that finds no receive posted here, where 7 is without end. 0
	// means 7, negative never. iWARP leaves the first to TCP; the second ends a
	// connection there.
	RetryCount    int
	RNRRetryCount int

	// QP connects a QP that PD.CreateQP made; nil if the id owns one.
	QP QP
}

// CMEvent is an event of an EventChannel (struct rdma_cm_event). It owns all it
// holds.
type CMEvent struct {
	Type CMEventType

	// Status is 0, a negative errno, or for REJECTED what librdmacm gives.
	Status int

	// Cause describes a failure in more detail than Status, for example which option the
	// peer did not agree to. Its text is for people. It may be nil.
	Cause error

	ID       ID // the id that the event is about; with CONNECT_REQUEST the new id
	ListenID ID // with CONNECT_REQUEST the listener, otherwise nil

	// Param is what the peer sent. With CONNECT_REQUEST its
	// ResponderResources and InitiatorDepth are what to accept at most.
	Param ConnParam

	// RDMAC says with CONNECT_REQUEST and ESTABLISHED that the connection speaks the
	// RDMA Consortium's version of DDP and RDMAP (RFC 5044 appendix C), not the
	// IETF's. Only a provider with an option for it permits it; siw doesn't have it.
	RDMAC bool
}
