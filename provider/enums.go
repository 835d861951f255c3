package provider

import "strconv"

// WROpcode is the operation of a send work request (enum ibv_wr_opcode).
type WROpcode uint32

// Opcodes of the send queue.
const (
	WRRDMAWrite        WROpcode = 0
	WRRDMAWriteWithImm WROpcode = 1
	WRSend             WROpcode = 2
	WRSendWithImm      WROpcode = 3
	WRRDMARead         WROpcode = 4
	WRAtomicCmpAndSwp  WROpcode = 5
	WRAtomicFetchAdd   WROpcode = 6
	WRLocalInv         WROpcode = 7
	WRBindMW           WROpcode = 8
	WRSendWithInv      WROpcode = 9

	// Atomic operations on fields of the word, numbered as in the kernel's enum ib_wr_opcode;
	// libibverbs lacks them.
	WRMaskedAtomicCmpAndSwp WROpcode = 12
	WRMaskedAtomicFetchAdd  WROpcode = 13

	// WRRegMR registers memory for an MR of PD.AllocFastRegMR: IB_WR_REG_MR in the kernel's verbs,
	// Fast-Register in the RDMA Consortium's. libibverbs lacks it.
	WRRegMR WROpcode = 0x20
)

var wrOpcodeNames = []string{
	"IBV_WR_RDMA_WRITE", "IBV_WR_RDMA_WRITE_WITH_IMM", "IBV_WR_SEND", "IBV_WR_SEND_WITH_IMM", "IBV_WR_RDMA_READ",
	"IBV_WR_ATOMIC_CMP_AND_SWP", "IBV_WR_ATOMIC_FETCH_AND_ADD", "IBV_WR_LOCAL_INV", "IBV_WR_BIND_MW", "IBV_WR_SEND_WITH_INV",
	"IBV_WR_TSO", "IBV_WR_DRIVER1", "IB_WR_MASKED_ATOMIC_CMP_AND_SWP", "IB_WR_MASKED_ATOMIC_FETCH_AND_ADD",
}

// String returns the C name.
func (o WROpcode) String() string {
	if o == WRRegMR {
		return "IB_WR_REG_MR"
	}
	return name(wrOpcodeNames, int(o), "ibv_wr_opcode")
}

// SendFlags is a set of flags of a send work request (enum ibv_send_flags).
type SendFlags uint32

// Flags of a send work request.
const (
	SendFence     SendFlags = 1 << 0 // wait for earlier RDMA Reads and atomics
	SendSignaled  SendFlags = 1 << 1 // completes even if it succeeds
	SendSolicited SendFlags = 1 << 2 // Send: solicited event at the peer
	SendInline    SendFlags = 1 << 3 // the payload is SendWR.Inline
)

// WCStatus is the result of a work request (enum ibv_wc_status).
type WCStatus uint32

// Statuses of a completion.
const (
	WCSuccess        WCStatus = 0
	WCLocLenErr      WCStatus = 1
	WCLocQPOpErr     WCStatus = 2
	WCLocEECOpErr    WCStatus = 3
	WCLocProtErr     WCStatus = 4
	WCWRFlushErr     WCStatus = 5
	WCMWBindErr      WCStatus = 6
	WCBadRespErr     WCStatus = 7
	WCLocAccessErr   WCStatus = 8
	WCRemInvReqErr   WCStatus = 9
	WCRemAccessErr   WCStatus = 10
	WCRemOpErr       WCStatus = 11
	WCRetryExcErr    WCStatus = 12
	WCRNRRetryExcErr WCStatus = 13
	WCLocRDDViolErr  WCStatus = 14
	WCRemInvRdReqErr WCStatus = 15
	WCRemAbortErr    WCStatus = 16
	WCInvEECNErr     WCStatus = 17
	WCInvEECStateErr WCStatus = 18
	WCFatalErr       WCStatus = 19
	WCRespTimeoutErr WCStatus = 20
	WCGeneralErr     WCStatus = 21
)

var wcStatusNames = []string{
	"IBV_WC_SUCCESS", "IBV_WC_LOC_LEN_ERR", "IBV_WC_LOC_QP_OP_ERR", "IBV_WC_LOC_EEC_OP_ERR", "IBV_WC_LOC_PROT_ERR",
	"IBV_WC_WR_FLUSH_ERR", "IBV_WC_MW_BIND_ERR", "IBV_WC_BAD_RESP_ERR", "IBV_WC_LOC_ACCESS_ERR", "IBV_WC_REM_INV_REQ_ERR",
	"IBV_WC_REM_ACCESS_ERR", "IBV_WC_REM_OP_ERR", "IBV_WC_RETRY_EXC_ERR", "IBV_WC_RNR_RETRY_EXC_ERR", "IBV_WC_LOC_RDD_VIOL_ERR",
	"IBV_WC_REM_INV_RD_REQ_ERR", "IBV_WC_REM_ABORT_ERR", "IBV_WC_INV_EECN_ERR", "IBV_WC_INV_EEC_STATE_ERR", "IBV_WC_FATAL_ERR",
	"IBV_WC_RESP_TIMEOUT_ERR", "IBV_WC_GENERAL_ERR",
}

// String returns the C name.
func (s WCStatus) String() string { return name(wcStatusNames, int(s), "ibv_wc_status") }

// WCOpcode is the operation that completed (enum ibv_wc_opcode).
type WCOpcode uint32

// Opcodes of completions.
const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRDMARead        WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCBindMW          WCOpcode = 5
	WCLocalInv        WCOpcode = 6
	WCRecv            WCOpcode = 1 << 7
	WCRecvRDMAWithImm WCOpcode = 1<<7 + 1

	// WCRegMR is the completion of a WRRegMR. It has the request's opcode, because the value of the
	// kernel's IB_WC_REG_MR changes from version to version.
	WCRegMR WCOpcode = 0x20
)

var wcOpcodeNames = []string{
	"IBV_WC_SEND", "IBV_WC_RDMA_WRITE", "IBV_WC_RDMA_READ", "IBV_WC_COMP_SWAP", "IBV_WC_FETCH_ADD", "IBV_WC_BIND_MW", "IBV_WC_LOCAL_INV",
}

// String returns the C name.
func (o WCOpcode) String() string {
	switch o {
	case WCRecv:
		return "IBV_WC_RECV"
	case WCRecvRDMAWithImm:
		return "IBV_WC_RECV_RDMA_WITH_IMM"
	case WCRegMR:
		return "IB_WC_REG_MR"
	}
	return name(wcOpcodeNames, int(o), "ibv_wc_opcode")
}

// WCFlags is a set of flags of a completion (enum ibv_wc_flags).
type WCFlags uint32

// Flags of a completion.
const (
	WCWithImm WCFlags = 1 << 1
	WCWithInv WCFlags = 1 << 3
)

// MWType is a kind of memory window (enum ibv_mw_type).
type MWType uint32

// Kinds of memory windows.
const (
	MWType1 MWType = 1 // bound with QP.BindMW, for all QPs of its PD
	MWType2 MWType = 2 // bound with WRBindMW, for the QP that bound it; ends by invalidation
)

var mwTypeNames = []string{"ibv_mw_type 0", "IBV_MW_TYPE_1", "IBV_MW_TYPE_2"}

// String returns the C name.
func (t MWType) String() string { return name(mwTypeNames, int(t), "ibv_mw_type") }

// QPType is a transport service (enum ibv_qp_type).
type QPType uint32

// QPTypeRC is reliable connected, the only type that iWARP has.
const QPTypeRC QPType = 2

// QPState is a state of a QP (enum ibv_qp_state).
type QPState uint32

// States of a QP.
const (
	QPReset   QPState = 0
	QPInit    QPState = 1
	QPRTR     QPState = 2
	QPRTS     QPState = 3
	QPSQD     QPState = 4
	QPSQE     QPState = 5
	QPErr     QPState = 6
	QPUnknown QPState = 7
)

var qpStateNames = []string{
	"IBV_QPS_RESET", "IBV_QPS_INIT", "IBV_QPS_RTR", "IBV_QPS_RTS", "IBV_QPS_SQD", "IBV_QPS_SQE", "IBV_QPS_ERR", "IBV_QPS_UNKNOWN",
}

// String returns the C name. The text of QPUnknown also names the device that reports no state.
func (s QPState) String() string {
	text := name(qpStateNames, int(s), "ibv_qp_state")
	if s == QPUnknown {
		text += " (siw reports a QP's state since Linux 6.8)"
	}
	return text
}

// PortState is a state of a port (enum ibv_port_state).
type PortState uint32

// States of a port.
const (
	PortNop    PortState = 0
	PortDown   PortState = 1
	PortInit   PortState = 2
	PortArmed  PortState = 3
	PortActive PortState = 4
)

var portStateNames = []string{"IBV_PORT_NOP", "IBV_PORT_DOWN", "IBV_PORT_INIT", "IBV_PORT_ARMED", "IBV_PORT_ACTIVE", "IBV_PORT_ACTIVE_DEFER"}

// String returns the C name.
func (s PortState) String() string { return name(portStateNames, int(s), "ibv_port_state") }

// NodeType is a kind of device (enum ibv_node_type).
type NodeType int32

// Kinds of devices.
const (
	NodeUnknown NodeType = -1
	NodeCA      NodeType = 1
	NodeRNIC    NodeType = 4
)

// String returns the C name.
func (t NodeType) String() string {
	switch t {
	case NodeCA:
		return "IBV_NODE_CA"
	case NodeRNIC:
		return "IBV_NODE_RNIC"
	case NodeUnknown:
		return "IBV_NODE_UNKNOWN"
	}
	return "ibv_node_type " + strconv.Itoa(int(t))
}

// TransportType is the family of a device (enum ibv_transport_type).
type TransportType int32

// Families of devices.
const (
	TransportUnknown TransportType = -1
	TransportIB      TransportType = 0
	TransportIWARP   TransportType = 1
)

// String returns the C name.
func (t TransportType) String() string {
	switch t {
	case TransportIB:
		return "IBV_TRANSPORT_IB"
	case TransportIWARP:
		return "IBV_TRANSPORT_IWARP"
	case TransportUnknown:
		return "IBV_TRANSPORT_UNKNOWN"
	}
	return "ibv_transport_type " + strconv.Itoa(int(t))
}

// AsyncEventType is a kind of asynchronous event (enum ibv_event_type).
type AsyncEventType uint32

// Kinds of asynchronous events.
const (
	EventCQErr            AsyncEventType = 0
	EventQPFatal          AsyncEventType = 1
	EventQPReqErr         AsyncEventType = 2
	EventQPAccessErr      AsyncEventType = 3
	EventCommEst          AsyncEventType = 4
	EventSQDrained        AsyncEventType = 5
	EventDeviceFatal      AsyncEventType = 8
	EventPortActive       AsyncEventType = 9
	EventPortErr          AsyncEventType = 10
	EventLIDChange        AsyncEventType = 11
	EventSRQErr           AsyncEventType = 14
	EventSRQLimitReached  AsyncEventType = 15
	EventQPLastWQEReached AsyncEventType = 16 // a QP with an SRQ takes no more receives from it
)

var asyncEventNames = []string{
	"IBV_EVENT_CQ_ERR", "IBV_EVENT_QP_FATAL", "IBV_EVENT_QP_REQ_ERR", "IBV_EVENT_QP_ACCESS_ERR", "IBV_EVENT_COMM_EST",
	"IBV_EVENT_SQ_DRAINED", "IBV_EVENT_PATH_MIG", "IBV_EVENT_PATH_MIG_ERR", "IBV_EVENT_DEVICE_FATAL", "IBV_EVENT_PORT_ACTIVE",
	"IBV_EVENT_PORT_ERR", "IBV_EVENT_LID_CHANGE", "IBV_EVENT_PKEY_CHANGE", "IBV_EVENT_SM_CHANGE", "IBV_EVENT_SRQ_ERR",
	"IBV_EVENT_SRQ_LIMIT_REACHED", "IBV_EVENT_QP_LAST_WQE_REACHED", "IBV_EVENT_CLIENT_REREGISTER", "IBV_EVENT_GID_CHANGE", "IBV_EVENT_WQ_FATAL",
}

// String returns the C name.
func (t AsyncEventType) String() string { return name(asyncEventNames, int(t), "ibv_event_type") }

// CMEventType is a kind of CM event (enum rdma_cm_event_type).
type CMEventType uint32

// Kinds of CM events that iWARP has.
const (
	CMAddrResolved   CMEventType = 0
	CMAddrError      CMEventType = 1
	CMRouteResolved  CMEventType = 2
	CMRouteError     CMEventType = 3
	CMConnectRequest CMEventType = 4
	CMConnectError   CMEventType = 6
	CMUnreachable    CMEventType = 7
	CMRejected       CMEventType = 8
	CMEstablished    CMEventType = 9
	CMDisconnected   CMEventType = 10
	CMDeviceRemoval  CMEventType = 11
	CMAddrChange     CMEventType = 14
	CMTimewaitExit   CMEventType = 15
)

var cmEventNames = []string{
	"RDMA_CM_EVENT_ADDR_RESOLVED", "RDMA_CM_EVENT_ADDR_ERROR", "RDMA_CM_EVENT_ROUTE_RESOLVED", "RDMA_CM_EVENT_ROUTE_ERROR",
	"RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE", "RDMA_CM_EVENT_CONNECT_ERROR", "RDMA_CM_EVENT_UNREACHABLE",
	"RDMA_CM_EVENT_REJECTED", "RDMA_CM_EVENT_ESTABLISHED", "RDMA_CM_EVENT_DISCONNECTED", "RDMA_CM_EVENT_DEVICE_REMOVAL",
	"RDMA_CM_EVENT_MULTICAST_JOIN", "RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE", "RDMA_CM_EVENT_TIMEWAIT_EXIT",
}

// String returns the C name.
func (t CMEventType) String() string { return name(cmEventNames, int(t), "rdma_cm_event_type") }

func name(names []string, i int, enum string) string {
	if i >= 0 && i < len(names) {
		return names[i]
	}
	return enum + " " + strconv.Itoa(i)
}
