package ibverbs

import "github.com/govs-rdma/govs/provider"

// Opcodes of the send queue.
const (
	WRRDMAWrite        = provider.WRRDMAWrite
	WRRDMAWriteWithImm = provider.WRRDMAWriteWithImm
	WRSend             = provider.WRSend
	WRSendWithImm      = provider.WRSendWithImm
	WRRDMARead         = provider.WRRDMARead
	WRAtomicCmpAndSwp  = provider.WRAtomicCmpAndSwp
	WRAtomicFetchAdd   = provider.WRAtomicFetchAdd
	WRLocalInv         = provider.WRLocalInv
	WRBindMW           = provider.WRBindMW
	WRSendWithInv      = provider.WRSendWithInv

	// Atomic operations on fields of the word, from the kernel's enum ib_wr_opcode; libibverbs
	// lacks them.
	WRMaskedAtomicCmpAndSwp = provider.WRMaskedAtomicCmpAndSwp
	WRMaskedAtomicFetchAdd  = provider.WRMaskedAtomicFetchAdd

	// WRRegMR registers the memory that MR.Map mapped (IB_WR_REG_MR of the kernel's verbs;
	// libibverbs lacks it).
	WRRegMR = provider.WRRegMR
)

// Flags of a send work request.
const (
	SendFence     = provider.SendFence     // wait for earlier RDMA Reads and atomics
	SendSignaled  = provider.SendSignaled  // report a success as well
	SendSolicited = provider.SendSolicited // Send: solicited event at the peer
	SendInline    = provider.SendInline    // the payload is SendWR.Inline
)

// Statuses of a completion.
const (
	WCSuccess        = provider.WCSuccess
	WCLocLenErr      = provider.WCLocLenErr
	WCLocQPOpErr     = provider.WCLocQPOpErr
	WCLocEECOpErr    = provider.WCLocEECOpErr
	WCLocProtErr     = provider.WCLocProtErr
	WCWRFlushErr     = provider.WCWRFlushErr
	WCMWBindErr      = provider.WCMWBindErr
	WCBadRespErr     = provider.WCBadRespErr
	WCLocAccessErr   = provider.WCLocAccessErr
	WCRemInvReqErr   = provider.WCRemInvReqErr
	WCRemAccessErr   = provider.WCRemAccessErr
	WCRemOpErr       = provider.WCRemOpErr
	WCRetryExcErr    = provider.WCRetryExcErr
	WCRNRRetryExcErr = provider.WCRNRRetryExcErr
	WCLocRDDViolErr  = provider.WCLocRDDViolErr
	WCRemInvRdReqErr = provider.WCRemInvRdReqErr
	WCRemAbortErr    = provider.WCRemAbortErr
	WCInvEECNErr     = provider.WCInvEECNErr
	WCInvEECStateErr = provider.WCInvEECStateErr
	WCFatalErr       = provider.WCFatalErr
	WCRespTimeoutErr = provider.WCRespTimeoutErr
	WCGeneralErr     = provider.WCGeneralErr
)

// Opcodes of completions.
const (
	WCSend            = provider.WCSend
	WCRDMAWrite       = provider.WCRDMAWrite
	WCRDMARead        = provider.WCRDMARead
	WCCompSwap        = provider.WCCompSwap
	WCFetchAdd        = provider.WCFetchAdd
	WCBindMW          = provider.WCBindMW
	WCLocalInv        = provider.WCLocalInv
	WCRecv            = provider.WCRecv
	WCRecvRDMAWithImm = provider.WCRecvRDMAWithImm
	WCRegMR           = provider.WCRegMR // of WRRegMR
)

// Flags of a completion.
const (
	WCWithImm = provider.WCWithImm
	WCWithInv = provider.WCWithInv
)

// QPTypeRC is the reliable connected type, the only one of iWARP.
const QPTypeRC = provider.QPTypeRC

// States of a QP.
const (
	QPReset   = provider.QPReset
	QPInit    = provider.QPInit
	QPRTR     = provider.QPRTR
	QPRTS     = provider.QPRTS
	QPSQD     = provider.QPSQD
	QPSQE     = provider.QPSQE
	QPErr     = provider.QPErr
	QPUnknown = provider.QPUnknown
)

// States of a port.
const (
	PortNop    = provider.PortNop
	PortDown   = provider.PortDown
	PortInit   = provider.PortInit
	PortArmed  = provider.PortArmed
	PortActive = provider.PortActive
)

// Kinds of devices.
const (
	NodeUnknown = provider.NodeUnknown
	NodeCA      = provider.NodeCA
	NodeRNIC    = provider.NodeRNIC
)

// Families of devices.
const (
	TransportUnknown = provider.TransportUnknown
	TransportIB      = provider.TransportIB
	TransportIWARP   = provider.TransportIWARP
)

// Kinds of asynchronous events.
const (
	EventCQErr           = provider.EventCQErr
	EventQPFatal         = provider.EventQPFatal
	EventQPReqErr        = provider.EventQPReqErr
	EventQPAccessErr     = provider.EventQPAccessErr
	EventCommEst         = provider.EventCommEst
	EventSQDrained       = provider.EventSQDrained
	EventDeviceFatal     = provider.EventDeviceFatal
	EventPortActive      = provider.EventPortActive
	EventPortErr         = provider.EventPortErr
	EventLIDChange       = provider.EventLIDChange
	EventSRQErr          = provider.EventSRQErr
	EventSRQLimitReached = provider.EventSRQLimitReached

	// EventQPLastWQEReached: a QP in QPErr takes no more receives from its SRQ.
	EventQPLastWQEReached = provider.EventQPLastWQEReached
)

// What SRQ.Modify can change.
const (
	SRQAttrMaxWR = provider.SRQAttrMaxWR // IBV_SRQ_MAX_WR: resize
	SRQAttrLimit = provider.SRQAttrLimit // IBV_SRQ_LIMIT: arm, or disarm with 0
)

// DeviceSRQResize is the bit of DeviceAttr.DeviceCapFlags that a device sets if SRQ.Modify can
// resize (IBV_DEVICE_SRQ_RESIZE).
const DeviceSRQResize = provider.DeviceSRQResize

// Values of DeviceAttr.AtomicCap.
const (
	AtomicNone = provider.AtomicNone // no atomic operations
	AtomicHCA  = provider.AtomicHCA  // atomic among operations of this device
	AtomicGlob = provider.AtomicGlob // atomic with operations of the CPU, too
)

// Rights of an MR. Local read is always allowed.
const (
	AccessLocalWrite   = provider.AccessLocalWrite
	AccessRemoteWrite  = provider.AccessRemoteWrite
	AccessRemoteRead   = provider.AccessRemoteRead
	AccessRemoteAtomic = provider.AccessRemoteAtomic
	AccessMWBind       = provider.AccessMWBind // windows may be bound to it
	AccessZeroBased    = provider.AccessZeroBased

	// AccessReadSink has the rights that the sink of an RDMA Read (the memory that it reads into)
	// needs on every device. iWARP answers a Read with a tagged message to the sink's key (RFC 5040
	// section 5.2), for which RNICs require the remote write right. On the engine, siw and RoCE
	// AccessLocalWrite is enough. The peer learns the key from the request and can use the region
	// until it is closed, so give the right to the sink alone, not to memory around it. At the
	// first Read without it the engine logs a warning to engine.Options.Logger.
	AccessReadSink = AccessLocalWrite | AccessRemoteWrite

	// AccessRemoteInvalidate lets the peer invalidate the region's key with a Send with Invalidate.
	// It is govs' own flag; libibverbs has none. The engine requires it, because RFC 5040 section
	// 8.1.1 asks for control over who may invalidate. The kernel provider drops it.
	AccessRemoteInvalidate = provider.AccessRemoteInvalidate
)

// Kinds of memory windows.
const (
	MWType1 = provider.MWType1 // bound with QP.BindMW, for all QPs of its PD
	MWType2 = provider.MWType2 // bound with WRBindMW, for the peer of that QP
)

// Bits of DeviceAttr.DeviceCapFlags that are about windows and registration by work
// request.
const (
	DeviceMemWindow        = provider.DeviceMemWindow        // windows of type 1
	DeviceMemWindowType2A  = provider.DeviceMemWindowType2A  // of type 2, for the QP number that bound it
	DeviceMemWindowType2B  = provider.DeviceMemWindowType2B  // of type 2, for the QP and the PD
	DeviceMemMgtExtensions = provider.DeviceMemMgtExtensions // local invalidate, Send with Invalidate, registration by work request
)

// What MR.Rereg can change.
const (
	ReregTranslation = provider.ReregTranslation // the memory
	ReregPD          = provider.ReregPD
	ReregAccess      = provider.ReregAccess
)

// The attributes that mean something on iWARP.
const (
	QPAttrState           = provider.QPAttrState
	QPAttrCurState        = provider.QPAttrCurState
	QPAttrEnSQDNotify     = provider.QPAttrEnSQDNotify // IBV_QP_EN_SQD_ASYNC_NOTIFY
	QPAttrAccessFlags     = provider.QPAttrAccessFlags
	QPAttrMaxRdAtomic     = provider.QPAttrMaxRdAtomic // IBV_QP_MAX_QP_RD_ATOMIC
	QPAttrMaxDestRdAtomic = provider.QPAttrMaxDestRdAtomic
	QPAttrCap             = provider.QPAttrCap
)
