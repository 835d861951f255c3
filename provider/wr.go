package provider

// SGE names Length bytes of a registered region (struct ibv_sge). Addr counts
// from MR.Addr. A Length of zero names nothing, whatever Addr and LKey say.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWR is a work request of the send queue (struct ibv_send_wr).
type SendWR struct {
	WRID   uint64
	Opcode WROpcode
	Flags  SendFlags

	// SGList is the source of Sends and Writes and the sink of Reads and atomic
	// operations, of which it holds the word's old value, 8 bytes in host order.
	// It must be empty with SendInline.
	SGList []SGE

	// Inline is the payload with SendInline, copied before PostSend returns.
	// It needs no registration.
	Inline []byte

	RemoteAddr uint64 // Write, Read, atomics: the tagged offset at the peer

	// RKey is the peer's STag for Writes, Reads and atomics. WRBindMW and WRRegMR have
	// here the window's or region's key as it is to be: its index, the upper 24 bits,
	// says which it is, and the lowest byte must differ from that of the key it has
	// (MW.RKey, MR.RKey; ibverbs.IncRKey makes such a key).
	RKey uint32

	InvalidateRKey uint32 // WRSendWithInv: the peer's STag; WRLocalInv: our own
	Imm            uint32 // with immediate data: host order
	Access         Access // WRRegMR: the rights that the region gets (struct ib_reg_wr)
	CompareAdd     uint64 // atomics: what to compare with, or to add; host order
	Swap           uint64 // atomics: what to put there if CompareAdd is there; host order

	// Of the masked atomics only (struct ib_atomic_wr of the kernel): the bits to
	// compare and the bits to swap, or in CompareAddMask the highest bit of each
	// field that is added apart from the others (RFC 7306 section 5.1).
	CompareAddMask uint64
	SwapMask       uint64

	// Bind says what WRBindMW binds a window of type 2 to. It is the caller's again
	// when PostSend returns. With another opcode it is EINVAL, as nothing would be bound.
	Bind *MWBindInfo
}

// RecvWR is a work request of the receive queue (struct ibv_recv_wr).
type RecvWR struct {
	WRID   uint64
	SGList []SGE
}

// WC is a work completion (struct ibv_wc). With WCRecvRDMAWithImm ByteLen is the length of the
// peer's Write, which may be more than the receive has room for, and is not in the receive.
type WC struct {
	WRID      uint64
	Status    WCStatus
	Opcode    WCOpcode // valid only if Status is WCSuccess
	Flags     WCFlags
	ByteLen   uint32 // receives, Reads and atomics: bytes that were placed
	QPN       uint32
	VendorErr uint32
	Imm       uint32 // with WCWithImm: host order

	InvalidatedRKey uint32 // with WCWithInv: our STag that the peer invalidated, of a region or a window
}

// Err returns nil for a success and otherwise a [*WCError] with the status.
func (wc *WC) Err() error {
	if wc.Status == WCSuccess {
		return nil
	}
	return &WCError{Status: wc.Status, WRID: wc.WRID, QPN: wc.QPN, VendorErr: wc.VendorErr}
}
