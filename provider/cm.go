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

// ID is a communication identifier (struct rdma_cm_id). Calls whose comment names an event start
// work and return; an event on the id's channel reports how the work ended.
type ID interface {
	BindAddr(addr netip.AddrPort) error // rdma_bind_addr; port 0 chooses a free one

	// ResolveAddr finds the device and the local address for dst (rdma_resolve_addr). Event:
	// ADDR_RESOLVED or ADDR_ERROR. With a zero src the provider chooses the source address.
	ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error

	ResolveRoute(timeout time.Duration) error // rdma_resolve_route; event: ROUTE_RESOLVED or ROUTE_ERROR

	// CreateQP makes the QP of this id (rdma_create_qp). The QP must be closed before the id. pd
	// must belong to the device that the id is bound to.
	CreateQP(pd PD, init QPInitAttr) (QP, error)

	// Listen (rdma_listen). Events: CONNECT_REQUEST, each with a new id.
	Listen(backlog int) error

	// Connect (rdma_connect). Event: ESTABLISHED, REJECTED, UNREACHABLE or CONNECT_ERROR. On iWARP
	// the call itself makes the TCP handshake and sends the MPA request. With the kernel provider,
	// the call returns an error if the handshake fails.
	Connect(param ConnParam) error

	Accept(param ConnParam) error // rdma_accept; event: ESTABLISHED or CONNECT_ERROR
	Reject(private []byte) error  // rdma_reject
	Disconnect() error            // rdma_disconnect; event: DISCONNECTED on both sides

	Migrate(ch EventChannel) error // rdma_migrate_id

	SetOption(option IDOption, value int) error // rdma_set_option at RDMA_OPTION_ID

	LocalAddr() netip.AddrPort  // rdma_get_local_addr; zero if not bound
	RemoteAddr() netip.AddrPort // rdma_get_peer_addr; zero if not known

	// DeviceName returns the name of the device that the id is bound to, or "" if it is not bound.
	DeviceName() string

	// Cookie returns rdma_cm_id.context. The id of a CONNECT_REQUEST starts with its listener's
	// cookie.
	Cookie() any
	SetCookie(cookie any)

	// Close destroys the id (rdma_destroy_id) and ends its connection, if any. It fails with EBUSY
	// while the id's QP exists. No event of the id is delivered after Close.
	Close() error
}

// IDOption is an option of a CM id (RDMA_OPTION_ID_TOS and so on), with the C
// numbers.
type IDOption int

// Options of a CM id.
const (
	IDOptionTOS        IDOption = 0 // type of service of the packets: 0 to 255
	IDOptionReuseAddr  IDOption = 1 // 1: others may bind the address too
	IDOptionAFOnly     IDOption = 2 // for a listener on ::. 1: IPv6 only, 0: IPv4 too
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

// Check returns ENOSYS if the option does not exist, as the kernel does, and EINVAL if it cannot
// have the value.
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

// ConnParam holds the parameters of a connection (struct rdma_conn_param).
type ConnParam struct {
	// PrivateData goes to the peer with the MPA request or reply. Its limit depends on provider and
	// MPA revision: 252 bytes to siw, 508 between two engines (RFC 5044 section 7.1, less four
	// bytes of RFC 6581). siw corrupts the private data it sends if its length is 252 to 255
	// (kernel-notes). On InfiniBand and RoCE the limits are 56 bytes in a request, 196 in an
	// acceptance and 148 in a rejection. The peer always receives that many bytes, padded with
	// zeros.
	PrivateData []byte

	ResponderResources int // IRD: RDMA Reads that we serve at the same time
	InitiatorDepth     int // ORD: RDMA Reads we have outstanding

	// RetryCount and RNRRetryCount are for InfiniBand and RoCE; 0 means 7, negative means never.
	// RetryCount is how often either end retransmits a packet that is not acknowledged; Connect
	// sets it for both ends. RNRRetryCount is how often the peer retransmits a message that finds
	// no receive posted here; 7 means forever. iWARP ignores both: TCP retransmits, and a message
	// that finds no receive ends the connection.
	RetryCount    int
	RNRRetryCount int

	// QP is the QP to connect if PD.CreateQP made it; nil if the id owns one.
	QP QP
}

// CMEvent is an event of an EventChannel (struct rdma_cm_event). It owns the memory that it refers
// to.
type CMEvent struct {
	Type CMEventType

	// Status is 0, a negative errno, or for REJECTED the status that librdmacm reports.
	Status int

	// Cause describes a failure in more detail than Status, for example which option the
	// peer did not agree to. Its text is for people. It may be nil.
	Cause error

	ID       ID // the id that the event is about; with CONNECT_REQUEST the new id
	ListenID ID // with CONNECT_REQUEST the listener, otherwise nil

	// Param is what the peer sent. With CONNECT_REQUEST its ResponderResources and InitiatorDepth
	// are upper limits for Accept.
	Param ConnParam

	// RDMAC says with CONNECT_REQUEST and ESTABLISHED that the connection uses the RDMA
	// Consortium's version of DDP and RDMAP (RFC 5044 appendix C) instead of the IETF's. A provider
	// permits it only with an option; siw has no such option.
	RDMAC bool
}
