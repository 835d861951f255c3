package rdmacm

import (
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
)

// EventType is a kind of event (enum rdma_cm_event_type).
type EventType = provider.CMEventType

// Kinds of events that iWARP has.
const (
	AddrResolved   = provider.CMAddrResolved
	AddrError      = provider.CMAddrError
	RouteResolved  = provider.CMRouteResolved
	RouteError     = provider.CMRouteError
	ConnectRequest = provider.CMConnectRequest
	ConnectError   = provider.CMConnectError
	Unreachable    = provider.CMUnreachable
	Rejected       = provider.CMRejected
	Established    = provider.CMEstablished
	Disconnected   = provider.CMDisconnected
	DeviceRemoval  = provider.CMDeviceRemoval
	AddrChange     = provider.CMAddrChange
	TimewaitExit   = provider.CMTimewaitExit
)

// IDOption is an option of an ID (RDMA_OPTION_ID_TOS and so on).
type IDOption = provider.IDOption

// Options of an ID, for ID.SetOption.
const (
	OptionTOS        = provider.IDOptionTOS        // type of service: 0 to 255
	OptionReuseAddr  = provider.IDOptionReuseAddr  // 1: others may bind the address, too
	OptionAFOnly     = provider.IDOptionAFOnly     // 1: a listener on :: takes IPv6 only
	OptionAckTimeout = provider.IDOptionAckTimeout // the QP's ACK timeout, 4.096 us * 2^value
)

// RejectedError says that the peer refused a connection: Status, and the
// peer's PrivateData. It unwraps to ECONNREFUSED. The fields and methods are in
// [provider.RejectedError].
type RejectedError = provider.RejectedError

// ConnParam holds what a connection is made with (struct rdma_conn_param).
type ConnParam struct {
	// PrivateData goes to the peer with the MPA request or reply; it is the caller's again when the
	// call returns. Up to 251 bytes are safe on iWARP: siw as sender garbles lengths of 252 to
	// 255, its longest. Between engines 508 bytes fit (RFC 6581), or 512 with MPA revision 1. On
	// InfiniBand and RoCE a request takes 56 bytes, an acceptance 196 and a rejection 148, and
	// that is how many arrive, the rest being zeros.
	PrivateData []byte

	// ResponderResources is the IRD: RDMA Reads of the peer that we serve at a time. On iWARP
	// Accept raises it to what the peer asks for, as ConnConfig says.
	ResponderResources int

	InitiatorDepth int // ORD: RDMA Reads that we have outstanding

	// RetryCount and RNRRetryCount are for InfiniBand and RoCE only. RetryCount is how often either
	// end sends a packet again that is not acknowledged; the end that connects sets it for both.
	// RNRRetryCount is how often the peer sends a message again that finds no receive posted here;
	// 7 is without end. 0 means 7 for both, negative never.
	RetryCount    int
	RNRRetryCount int

	// QP is the QP to connect, made by PD.CreateQP. It is nil if the id made
	// its own with CreateQP.
	QP *ibverbs.QP
}
