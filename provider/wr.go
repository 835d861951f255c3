package provider

// SGE names Length bytes of a registered region (struct ibv_sge). Addr counts from MR.Addr. With a
// Length of zero, Addr and LKey are ignored.
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

	// SGList is the source of Sends and Writes and the destination of Reads and atomic operations.
	// For atomics it receives the word's old value, 8 bytes in host order. It must be empty with
	// SendInline.
	SGList []SGE

	// Inline is the payload with SendInline. PostSend copies it before it returns, and it needs no
	// registration.
	Inline []byte

	RemoteAddr uint64 // Write, Read, atomics: the tagged offset at the peer

	// RKey is the peer's STag for Writes, Reads and atomics. For WRBindMW and WRRegMR it is the new
	// key of the window or region. The upper 24 bits are its index and stay the same; the lowest
	// byte must differ from the current key (MW.RKey, MR.RKey). ibverbs.IncRKey makes such a key.
	RKey uint32

	InvalidateRKey uint32 // WRSendWithInv: the peer's STag; WRLocalInv: our own
	Imm            uint32 // with immediate data: host order
	Access         Access // WRRegMR: the region's new rights (struct ib_reg_wr)
	CompareAdd     uint64 // atomics: the value to compare with, or to add; host order
	Swap           uint64 // atomics: the value to store if CompareAdd matches; host order

	// CompareAddMask and SwapMask are for masked atomics only (struct ib_atomic_wr of the kernel):
	// the bits to compare and the bits to swap. For an add, CompareAddMask has the highest bit of
	// each field that is added separately (RFC 7306 section 5.1).
	CompareAddMask uint64
	SwapMask       uint64

	// Bind says what WRBindMW binds a window of type 2 to. The caller owns it again when PostSend
	// returns. With another opcode it is EINVAL, because nothing would be bound.
	Bind *MWBindInfo
}

// RecvWR is a work request of the receive queue (struct ibv_recv_wr).
type RecvWR struct {
	WRID   uint64
	SGList []SGE
}

// WC is a work completion (struct ibv_wc). With WCRecvRDMAWithImm, ByteLen is the length of the
// peer's Write. That may be more than the receive has room for, because the data is not in the
// receive.
type WC struct {
	WRID      uint64
	Status    WCStatus
	Opcode    WCOpcode // valid only if Status is WCSuccess
	Flags     WCFlags
	ByteLen   uint32 // receives, Reads and atomics: bytes that were placed
	QPN       uint32
	VendorErr uint32
	Imm       uint32 // with WCWithImm: host order

	InvalidatedRKey uint32 // with WCWithInv: our region or window that the peer invalidated
}

// Err returns nil for a success and otherwise a [*WCError] with the status.
func (wc *WC) Err() error {
	if wc.Status == WCSuccess {
		return nil
	}
	return &WCError{Status: wc.Status, WRID: wc.WRID, QPN: wc.QPN, VendorErr: wc.VendorErr}
}
