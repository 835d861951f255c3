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

// RejectedError says that the peer refused a connection: Status, and the
// peer's PrivateData. It unwraps to ECONNREFUSED.
type RejectedError = provider.RejectedError

// ConnParam holds what a connection is made with (struct rdma_conn_param).
type ConnParam struct {
	// PrivateData goes to the peer with the MPA request or reply; it is the
	// caller's again when the call returns. 252 octets fit between any two
	// providers, except that siw as sender garbles lengths of 252 to 255: up
	// to 251 is safe everywhere.
	PrivateData []byte

	ResponderResources int // IRD: RDMA Reads of the peer that we serve at a time
	InitiatorDepth     int // ORD: RDMA Reads that we have outstanding

	// QP is the QP to connect, made by PD.CreateQP. It is nil if the id made
	// its own with CreateQP.
	QP *ibverbs.QP
}
