package ibverbs

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
