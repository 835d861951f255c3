package provider

// SGE names Length octets of a registered region (struct ibv_sge). Addr counts
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

	// SGList is the source of Sends and Writes and the sink of Reads. It must
	// be empty with SendInline.
	SGList []SGE

	// Inline is the payload with SendInline, copied before PostSend returns.
	// It needs no registration.
	Inline []byte

	RemoteAddr uint64 // Write, Read, atomics: the tagged offset at the peer
	RKey       uint32 // Write, Read, atomics: the peer's STag

	InvalidateRKey uint32 // WRSendWithInv: the peer's STag; WRLocalInv: our own
	Imm            uint32 // with immediate: host order
	CompareAdd     uint64 // atomics
	Swap           uint64 // atomics
}

// RecvWR is a work request of the receive queue (struct ibv_recv_wr).
type RecvWR struct {
	WRID   uint64
	SGList []SGE
}

// WC is a work completion (struct ibv_wc).
type WC struct {
	WRID      uint64
	Status    WCStatus
	Opcode    WCOpcode // valid only if Status is WCSuccess
	Flags     WCFlags
	ByteLen   uint32 // receives and Reads: octets that were placed
	QPN       uint32
	VendorErr uint32
	Imm       uint32 // with WCWithImm: host order

	InvalidatedRKey uint32 // with WCWithInv: our STag that the peer invalidated
}

// Err returns nil for a success and otherwise a [*WCError] with the status.
func (wc *WC) Err() error {
	if wc.Status == WCSuccess {
		return nil
	}
	return &WCError{Status: wc.Status, WRID: wc.WRID, QPN: wc.QPN, VendorErr: wc.VendorErr}
}
