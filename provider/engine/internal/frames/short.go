package frames

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Short messages come in lists, and the calls and copied structs of each cost more than its bytes.
// So a run of them is laid out in sequence, and closed together.

// shortRun is where FPDUs of the same size begin in the arena. Their CRCs are calculated together.
type shortRun struct{ at, size int }

// ShortMost returns the longest payload that AddShort takes, in bytes. It is negative if AddShort
// takes none.
func (f *Format) ShortMost() int {
	if f.Markers {
		return -1
	}
	return min(policy.CopyMost, f.MULPDU-ddp.MaxHeaderLen)
}

// AddShort makes one FPDU of a message of WQE wqe, with a copy of payload, which has at most
// ShortMost bytes. EndRun puts the FPDU into the vector, and must come before any other call but
// Room and Region.
func (b *Batch) AddShort(head rdmap.Head, payload []byte, wqe uint32) {
	ulpdu := b.arena[b.used+mpa.HeaderLen:]
	head.Put(ulpdu, 0, true)
	header := head.Len()
	copy(ulpdu[header:], payload)
	size := b.frame(header + len(payload))
	if size != b.run.size {
		b.sealRun()
		b.run = shortRun{b.used, size}
	}
	b.used += size
	b.addFPDU(fpduEnd{b.built + uint64(b.used-b.from), wqe, true}, size,
		mpa.PadLen(header+len(payload)) > 0, b.format.EMSS)
}

// frame makes an FPDU without CRC of the ULPDU in the arena, which follows room for its length, and
// returns the FPDU's length.
func (b *Batch) frame(ulpdu int) int {
	size := mpa.FPDULen(ulpdu)
	fpdu := b.arena[b.used : b.used+size]
	binary.BigEndian.PutUint16(fpdu, uint16(ulpdu))
	binary.LittleEndian.PutUint32(fpdu[mpa.HeaderLen+ulpdu:], 0) // the pad
	binary.LittleEndian.PutUint32(fpdu[size-mpa.CRCLen:], 0)     // its value if CRCs are off
	return size
}

// sealRun writes the CRCs of the run.
func (b *Batch) sealRun() {
	if b.run.size > 0 && b.format.CRC {
		mpa.SealFPDUs(b.arena[b.run.at:b.used], b.run.size)
	}
	b.run.size = 0
}

// EndRun puts the messages of AddShort into the vector.
func (b *Batch) EndRun() {
	b.sealRun()
	b.appendArena()
}
