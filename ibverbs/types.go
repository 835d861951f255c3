package ibverbs

import "github.com/govs-rdma/govs/provider"

// Devices and ports.
type (
	// DeviceInfo describes a device that is not open: Name, Provider,
	// NodeType, Transport, NodeGUID, Netdev (struct ibv_device). The fields are in
	// [provider.DeviceInfo].
	DeviceInfo = provider.DeviceInfo

	// DeviceAttr holds a device's limits and capabilities (struct
	// ibv_device_attr): MaxQP, MaxQPWR, MaxSGE, MaxSGERd, MaxCQE,
	// MaxQPRdAtom, MaxQPInitRdAtom, MaxInline, DeviceCapFlags and more. The fields are in
	// [provider.DeviceAttr].
	DeviceAttr = provider.DeviceAttr

	// PortAttr describes a port (struct ibv_port_attr): State, MaxMTU,
	// ActiveMTU, MaxMsgSz and more. The fields are in [provider.PortAttr].
	PortAttr = provider.PortAttr

	// GID is a global identifier in network order (union ibv_gid).
	GID = provider.GID

	// GIDEntry is a valid entry of a GID table (struct ibv_gid_entry): GID,
	// Index, Port, Type, Ifindex. See [provider.GIDEntry].
	GIDEntry = provider.GIDEntry

	// GIDType is a kind of GID (enum ibv_gid_type).
	GIDType = provider.GIDType

	// DeviceCap is a set of capabilities (enum ibv_device_cap_flags).
	DeviceCap = provider.DeviceCap

	// AtomicCap says with which other accesses atomic operations are atomic (enum ibv_atomic_cap).
	AtomicCap = provider.AtomicCap

	// CompletionSink receives a CQ's completions instead of Poll, on the engine: a program can keep
	// them in its own memory and share that memory. See [provider.CompletionSink].
	CompletionSink = provider.CompletionSink

	// SinkUse is a CompletionSink that also sees what the program does with the completions. See
	// [provider.SinkUse].
	SinkUse = provider.SinkUse

	// RecvSource supplies the receives of a QP or an SRQ instead of PostRecv, on the engine. See
	// [provider.RecvSource].
	RecvSource = provider.RecvSource

	// NodeType is a kind of device (enum ibv_node_type).
	NodeType = provider.NodeType

	// TransportType is a family of devices (enum ibv_transport_type).
	TransportType = provider.TransportType

	// PortState is a state of a port (enum ibv_port_state).
	PortState = provider.PortState
)

// Memory, work requests and completions.
type (
	// Access is a set of rights of an MR (enum ibv_access_flags).
	Access = provider.Access

	// ReregFlags says what MR.Rereg changes (enum ibv_rereg_mr_flags).
	ReregFlags = provider.ReregFlags

	// MWType is a kind of memory window (enum ibv_mw_type).
	MWType = provider.MWType

	// MWBindInfo says what a window is bound to (struct ibv_mw_bind_info): LKey of the region, Addr
	// and Length in it, and the window's rights. MR.BindInfo makes one. The fields are in
	// [provider.MWBindInfo].
	MWBindInfo = provider.MWBindInfo

	// SGE names registered memory (struct ibv_sge): Addr, Length in bytes,
	// LKey. MR.SGE makes one. See [provider.SGE].
	SGE = provider.SGE

	// SendWR is a work request of the send queue (struct ibv_send_wr). NewSend, NewSendWithImm,
	// NewWrite, NewWriteWithImm, NewRead, NewFetchAdd and NewCompareAndSwap make the usual ones.
	// Its fields, most of which can be left zero, with the opcodes that use them:
	//
	//	WRID           uint64      // all: comes back in WC.WRID
	//	Opcode         WROpcode    // what to do; the zero value is WRRDMAWrite, a Send is WRSend
	//	Flags          SendFlags   // SendSignaled, SendFence, SendSolicited, SendInline
	//	SGList         []SGE       // Send, Write: the payload; Read, atomics: where the answer goes
	//	Inline         []byte      // Send, Write with SendInline: the payload, instead of SGList
	//	RemoteAddr     uint64      // Write, Read, atomics: the address at the peer
	//	RKey           uint32      // Write, Read, atomics: the peer's key; WRBindMW, WRRegMR: the new key
	//	Imm            uint32      // WRSendWithImm, WRRDMAWriteWithImm: host order
	//	InvalidateRKey uint32      // WRSendWithInv: the peer's key; WRLocalInv: one of ours
	//	CompareAdd     uint64      // atomics: what to compare with, or to add
	//	Swap           uint64      // WRAtomicCmpAndSwp: what to put there
	//	CompareAddMask uint64      // masked atomics: which bits are compared, or where fields end
	//	SwapMask       uint64      // masked atomics: which bits are swapped
	//	Bind           *MWBindInfo // WRBindMW: what the window is bound to
	//	Access         Access      // WRRegMR: the rights of the region
	//
	// [provider.SendWR] has the details of each.
	SendWR = provider.SendWR

	// RecvWR is a work request of the receive queue (struct ibv_recv_wr):
	//
	//	WRID   uint64 // comes back in WC.WRID
	//	SGList []SGE  // where the message goes
	RecvWR = provider.RecvWR

	// WC is a work completion (struct ibv_wc). Its method Err is nil for a success and otherwise a
	// *WCError.
	//
	//	WRID            uint64   // of the work request
	//	QPN             uint32   // whose work request it was: QP.QPN
	//	Status          WCStatus // WCSuccess, or what went wrong
	//	Opcode          WCOpcode // with a success: WCSend, WCRecv and so on
	//	ByteLen         uint32   // receives, Reads, atomics: how many bytes came
	//	Flags           WCFlags  // WCWithImm, WCWithInv
	//	Imm             uint32   // with WCWithImm: host order
	//	InvalidatedRKey uint32   // with WCWithInv: the key that the peer invalidated
	//	VendorErr       uint32   // with a failure: the driver's own code
	//
	// With WCRecvRDMAWithImm, ByteLen is the length of the peer's Write. None of it is in the
	// receive, and it may be longer than the receive's memory: do not slice that memory with it.
	WC = provider.WC

	// WROpcode is what a send WR does (enum ibv_wr_opcode).
	WROpcode = provider.WROpcode

	// SendFlags is a set of flags of a send WR (enum ibv_send_flags).
	SendFlags = provider.SendFlags

	// WCStatus is how a WR ended (enum ibv_wc_status).
	WCStatus = provider.WCStatus

	// WCOpcode is what a completed WR did (enum ibv_wc_opcode).
	WCOpcode = provider.WCOpcode

	// WCFlags is a set of flags of a completion (enum ibv_wc_flags).
	WCFlags = provider.WCFlags
)

// Queue pairs and events.
type (
	// QPCap holds a QP's sizes (struct ibv_qp_cap): MaxSendWR, MaxRecvWR,
	// MaxSendSGE, MaxRecvSGE, MaxInlineData in bytes. The fields are in [provider.QPCap].
	QPCap = provider.QPCap

	// QPAttr is what QP.Modify sets and QP.Query returns (struct ibv_qp_attr):
	// State, CurState, Access, Cap, MaxRdAtomic (ORD), MaxDestRdAtomic (IRD),
	// EnSQDAsyncNotify. The fields are in [provider.QPAttr].
	QPAttr = provider.QPAttr

	// QPAttrMask says which fields of a QPAttr count (enum ibv_qp_attr_mask).
	QPAttrMask = provider.QPAttrMask

	// QPType is a transport service (enum ibv_qp_type).
	QPType = provider.QPType

	// QPState is a state of a QP (enum ibv_qp_state).
	QPState = provider.QPState

	// SRQAttr holds an SRQ's sizes and its limit (struct ibv_srq_attr): MaxWR,
	// MaxSGE, Limit in receives. The fields are in [provider.SRQAttr].
	SRQAttr = provider.SRQAttr

	// SRQAttrMask says which fields of an SRQAttr count (enum ibv_srq_attr_mask).
	SRQAttrMask = provider.SRQAttrMask

	// AsyncEventType is a kind of asynchronous event (enum ibv_event_type).
	AsyncEventType = provider.AsyncEventType
)

// NewSend returns a signalled Send of the memory in src (IBV_WR_SEND). The work request keeps the
// slice src. Set WRID, and more flags, before posting it.
func NewSend(src ...SGE) SendWR {
	return SendWR{Opcode: WRSend, Flags: SendSignaled, SGList: src}
}

// NewSendWithImm returns a signalled Send with 32 bits of immediate data, which the peer finds in
// its completion's WC.Imm (IBV_WR_SEND_WITH_IMM). On the engine it needs engine.Options.Extensions
// at both ends, and must have no SGEs, because RFC 7306 has no Send with payload and immediate
// data. siw has no immediate data. On a device without it, PostSend and Conn.Do return an
// [*UnsupportedError]. See NewSend.
func NewSendWithImm(imm uint32, src ...SGE) SendWR {
	return SendWR{Opcode: WRSendWithImm, Flags: SendSignaled, SGList: src, Imm: imm}
}

// NewWrite returns a signalled RDMA Write of the memory in src to the beginning of dst
// (IBV_WR_RDMA_WRITE). RemoteRegion.Part selects another place. See NewSend.
func NewWrite(dst RemoteRegion, src ...SGE) SendWR {
	return SendWR{Opcode: WRRDMAWrite, Flags: SendSignaled, SGList: src, RemoteAddr: dst.Addr, RKey: dst.RKey}
}

// NewWriteWithImm returns a signalled RDMA Write with 32 bits of immediate data
// (IBV_WR_RDMA_WRITE_WITH_IMM). When the data is in place, the Write completes in the peer's
// receive queue; it takes a receive there, and puts nothing into it. It needs the devices of
// NewSendWithImm. See NewSend.
func NewWriteWithImm(dst RemoteRegion, imm uint32, src ...SGE) SendWR {
	wr := NewWrite(dst, src...)
	wr.Opcode, wr.Imm = WRRDMAWriteWithImm, imm
	return wr
}

// NewRead returns a signalled RDMA Read from the beginning of src into the memory in dst, as many
// bytes as dst has (IBV_WR_RDMA_READ). See NewSend.
func NewRead(src RemoteRegion, dst ...SGE) SendWR {
	return SendWR{Opcode: WRRDMARead, Flags: SendSignaled, SGList: dst, RemoteAddr: src.Addr, RKey: src.RKey}
}

// NewFetchAdd returns a signalled atomic operation that adds to the first word of target. The
// former value goes to old, 8 bytes (IBV_WR_ATOMIC_FETCH_AND_ADD). See NewSend.
func NewFetchAdd(target RemoteRegion, add uint64, old SGE) SendWR {
	return SendWR{
		Opcode: WRAtomicFetchAdd, Flags: SendSignaled, SGList: []SGE{old},
		RemoteAddr: target.Addr, RKey: target.RKey, CompareAdd: add,
	}
}

// NewCompareAndSwap returns a signalled atomic operation that stores swap in the first word of
// target if the word equals compare. The former value goes to old, 8 bytes
// (IBV_WR_ATOMIC_CMP_AND_SWP). See NewSend.
func NewCompareAndSwap(target RemoteRegion, compare, swap uint64, old SGE) SendWR {
	return SendWR{
		Opcode: WRAtomicCmpAndSwp, Flags: SendSignaled, SGList: []SGE{old},
		RemoteAddr: target.Addr, RKey: target.RKey, CompareAdd: compare, Swap: swap,
	}
}
