package ibverbs

// NewSend returns a signalled Send of what the SGEs name (IBV_WR_SEND). The work request keeps the
// slice src. Set WRID, and more flags, before posting it.
func NewSend(src ...SGE) SendWR {
	return SendWR{Opcode: WRSend, Flags: SendSignaled, SGList: src}
}

// NewSendWithImm is NewSend with 32 bits for the peer's completion, in WC.Imm there
// (IBV_WR_SEND_WITH_IMM). On the engine it needs engine.Options.Extensions at both ends, and takes
// no SGEs, because RFC 7306 has no Send with both. siw has no immediate data. What the device does
// not have is an [*UnsupportedError] of PostSend or Conn.Do.
func NewSendWithImm(imm uint32, src ...SGE) SendWR {
	return SendWR{Opcode: WRSendWithImm, Flags: SendSignaled, SGList: src, Imm: imm}
}

// NewWrite returns a signalled RDMA Write of what the SGEs name to the beginning of dst, which
// RemoteRegion.Part moves (IBV_WR_RDMA_WRITE). See NewSend.
func NewWrite(dst RemoteRegion, src ...SGE) SendWR {
	return SendWR{Opcode: WRRDMAWrite, Flags: SendSignaled, SGList: src, RemoteAddr: dst.Addr, RKey: dst.RKey}
}

// NewWriteWithImm is NewWrite with 32 bits for the peer, in whose receive queue the Write completes
// when it is in place (IBV_WR_RDMA_WRITE_WITH_IMM). It takes a receive, and puts nothing into it.
// It needs the devices of NewSendWithImm.
func NewWriteWithImm(dst RemoteRegion, imm uint32, src ...SGE) SendWR {
	wr := NewWrite(dst, src...)
	wr.Opcode, wr.Imm = WRRDMAWriteWithImm, imm
	return wr
}

// NewRead returns a signalled RDMA Read from the beginning of src to what the SGEs name, as many
// bytes as they have (IBV_WR_RDMA_READ). See NewSend.
func NewRead(src RemoteRegion, dst ...SGE) SendWR {
	return SendWR{Opcode: WRRDMARead, Flags: SendSignaled, SGList: dst, RemoteAddr: src.Addr, RKey: src.RKey}
}

// NewFetchAdd returns a signalled atomic operation that adds to the first word of target. What was
// there before goes to old, 8 bytes (IBV_WR_ATOMIC_FETCH_AND_ADD). See NewSend.
func NewFetchAdd(target RemoteRegion, add uint64, old SGE) SendWR {
	return SendWR{
		Opcode: WRAtomicFetchAdd, Flags: SendSignaled, SGList: []SGE{old},
		RemoteAddr: target.Addr, RKey: target.RKey, CompareAdd: add,
	}
}

// NewCompareAndSwap returns a signalled atomic operation that puts swap into the first word of
// target if compare is there. What was there before goes to old, 8 bytes
// (IBV_WR_ATOMIC_CMP_AND_SWP). See NewSend.
func NewCompareAndSwap(target RemoteRegion, compare, swap uint64, old SGE) SendWR {
	return SendWR{
		Opcode: WRAtomicCmpAndSwp, Flags: SendSignaled, SGList: []SGE{old},
		RemoteAddr: target.Addr, RKey: target.RKey, CompareAdd: compare, Swap: swap,
	}
}
