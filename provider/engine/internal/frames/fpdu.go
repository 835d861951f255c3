package frames

import (
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// Add makes an FPDU of the DDP header h and of a copy of payload, at most MULPDU bytes together. If
// completes is true, the operation of WQE wqe is over when the last byte of the FPDU is out.
func (b *Batch) Add(h *ddp.Header, payload []byte, wqe uint32, completes bool) {
	b.begin(h, len(payload))
	switch {
	case len(payload) <= policy.CopyMost:
		b.copyIn(payload)
	case b.format.CRC && !b.format.Markers:
		b.snapshot(payload)
	default:
		room := b.chunkRoom(len(payload))
		copy(room, payload)
		b.refer(room)
	}
	b.finishFPDU(wqe, completes)
}

// begin opens an FPDU with DDP header h and payloadLen bytes to follow.
func (b *Batch) begin(h *ddp.Header, payloadLen int) {
	b.open = h.Len() + payloadLen
	at := b.used
	if f := b.format; f.Markers {
		f.SetVersion(h) // the short paths need not, because such a stream has Markers
		b.npart = 0
		b.addPart(h.AppendTo(b.arena[at:at]))
		b.used += h.Len()
		return
	}
	b.crc = 0
	b.used += len(h.AppendTo(mpa.AppendHeader(b.arena[at:at], uint16(b.open))))
}

// coverArena puts the FPDU's bytes in the arena into the vector and the CRC. It takes adjacent
// pieces together, so the CRC of a short FPDU is one call.
func (b *Batch) coverArena() {
	if b.format.CRC {
		b.crc = mpa.CRC(b.crc, b.arena[b.from:b.used])
	}
	b.appendArena()
}

// appendArena puts bytes that the CRC does not cover into the vector.
func (b *Batch) appendArena() {
	n := b.used - b.from
	if n == 0 {
		return // the room left in iov does not count empty entries
	}
	b.built += uint64(n)
	if b.inArena {
		last := &b.iov[b.last-1]
		*last = (*last)[:len(*last)+n]
	} else {
		b.iov[b.last] = b.arena[b.from:b.used]
		b.last++
		b.inArena, b.inChunk = true, false
	}
	b.from = b.used
}

func (b *Batch) addPart(p []byte) {
	b.parts[b.npart] = p
	b.npart++
}

// copyIn adds a copy of payload, at most policy.CopyMost bytes. The caller may change p after that.
func (b *Batch) copyIn(p []byte) {
	at := b.used
	b.used += copy(b.arena[at:], p)
	if b.format.Markers {
		b.addPart(b.arena[at:b.used])
	}
}

// refer adds payload without a copy: it lies in a region in use, or in a chunk.
func (b *Batch) refer(p []byte) {
	if b.format.Markers {
		b.addPart(p)
		return
	}
	b.coverArena()
	if b.format.CRC {
		b.crc = mpa.CRC(b.crc, p)
	}
	b.inPlace = true
	b.append(p)
}

// append adds bytes outside of the arena to the vector.
func (b *Batch) append(p []byte) {
	b.iov[b.last] = p
	b.last++
	b.inArena, b.inChunk = false, false
	b.built += uint64(len(p))
}

// snapshot adds a copy of payload to an FPDU with CRC. The program, or a peer, may change the
// memory at any time, and a change between CRC and send would end the connection. So the CRC is
// calculated from the copy, in the same pass. An FPDU with Markers is laid out in a copy anyway.
func (b *Batch) snapshot(p []byte) {
	b.coverArena()
	room := b.chunkRoom(len(p))
	b.crc = mpa.CopyCRC(b.crc, room, p)
	b.append(room)
}

// chunkRoom returns n bytes of a chunk, at most its size. A batch with copies is short, because the
// kernel copies them again, from the cache as long as they fit into it.
func (b *Batch) chunkRoom(n int) []byte {
	b.limit = min(b.limit, policy.BatchOctets)
	if len(b.chunks) == 0 || b.chunkUsed+n > policy.Chunk {
		b.chunks = append(b.chunks, b.pool.Get())
		b.chunkUsed, b.inChunk = 0, false
	}
	c := b.chunks[len(b.chunks)-1]
	p := c[b.chunkUsed : b.chunkUsed+n : b.chunkUsed+n]
	b.chunkUsed += n
	return p
}

// finishFPDU completes the open FPDU. wqe and completes are as with Add.
func (b *Batch) finishFPDU(wqe uint32, completes bool) {
	f := b.format
	if f.Markers {
		b.finishMarked()
	} else {
		if b.from < b.used {
			b.coverArena()
		}
		at := b.used
		b.used += len(mpa.AppendTrailer(b.arena[at:at], b.open, b.crc, f.CRC))
		b.appendArena()
	}
	b.addFPDU(fpduEnd{b.built, wqe, completes}, int(b.built-b.startOf(b.nfpdus)),
		mpa.PadLen(b.open) > 0, f.EMSS)
}

// finishMarked lays the FPDU out with Markers, in a chunk. The MULPDU ensures that it is not too
// long.
func (b *Batch) finishMarked() {
	room := b.chunkRoom(b.format.framer.Len(b.open))
	fpdu, err := b.format.framer.AppendFPDU(room[:0], b.parts[:b.npart]...)
	if err != nil {
		panic("frames: " + err.Error())
	}
	clear(b.parts[:b.npart])
	b.append(fpdu)
	b.from = b.used
}
