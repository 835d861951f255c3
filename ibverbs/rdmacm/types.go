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

// RejectedError is the error of a connection that the peer refused: Status, and the peer's
// PrivateData. It unwraps to ECONNREFUSED. The fields and methods are in [provider.RejectedError].
type RejectedError = provider.RejectedError

// ConnParam holds the parameters of a connection (struct rdma_conn_param).
type ConnParam struct {
	// PrivateData goes to the peer with the MPA request or reply; the call does not keep it. Up to
	// 251 bytes are safe on iWARP, because siw garbles 252 to 255 bytes, its maximum, when it sends
	// them. Between engines 508 bytes fit (RFC 6581), or 512 with MPA revision 1. On InfiniBand and
	// RoCE a request has 56 bytes, an acceptance 196 and a rejection 148; shorter data arrives
	// padded with zeros to these lengths.
	PrivateData []byte

	// ResponderResources is the IRD: how many RDMA Reads of the peer we serve at a time. On iWARP
	// Accept raises it to what the peer requests: see ConnConfig.
	ResponderResources int

	InitiatorDepth int // ORD: how many RDMA Reads we may have outstanding

	// RetryCount and RNRRetryCount are for InfiniBand and RoCE only. RetryCount is how often each
	// end repeats a packet that is not acknowledged; the dialling end sets it for both.
	// RNRRetryCount is how often the peer repeats a message that finds no receive posted here; 7
	// means forever. 0 means 7 for both, and a negative value means never.
	RetryCount    int
	RNRRetryCount int

	// QP is the QP to connect, made by PD.CreateQP. It is nil if ID.CreateQP made the QP.
	QP *ibverbs.QP
}
