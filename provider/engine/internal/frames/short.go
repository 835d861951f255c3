package frames

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Short messages come in lists, and what one costs in calls and copied structs is more than its
// bytes do. So a run of them is laid out one next to the other, and closed together.

// shortRun is where FPDUs of the same size begin in the arena. Their CRCs are calculated together.
type shortRun struct{ at, size int }

// ShortMost returns up to which length AddShort takes payload, a negative number if it takes none.
func (f *Format) ShortMost() int {
	if f.Markers {
		return -1
	}
	return min(policy.CopyMost, f.MULPDU-ddp.MaxHeaderLen)
}

// AddShort makes an FPDU of a message of WQE wqe of one segment, with a copy of payload, which has
// at most ShortMost bytes. It is in the vector after EndRun, which comes before any other call but
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

// frame makes the ULPDU that lies in the arena, after room for its length, an
// FPDU without its CRC, and returns the FPDU's length.
func (b *Batch) frame(ulpdu int) int {
	size := mpa.FPDULen(ulpdu)
	fpdu := b.arena[b.used : b.used+size]
	binary.BigEndian.PutUint16(fpdu, uint16(ulpdu))
	binary.LittleEndian.PutUint32(fpdu[mpa.HeaderLen+ulpdu:], 0) // the pad
	binary.LittleEndian.PutUint32(fpdu[size-mpa.CRCLen:], 0)     // what is there when CRCs are off
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
