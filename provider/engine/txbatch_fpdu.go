package engine

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// begin opens an FPDU with DDP header h and payloadLen octets to follow.
func (b *txBatch) begin(h *ddp.Header, payloadLen int, t *txState) {
	b.open = h.Len() + payloadLen
	at := b.used
	if t.markers {
		if t.rdmac { // there are Markers on every such stream, so that the short paths know nothing of it
			rdmap.SetRDMAC(h)
		}
		b.npart = 0
		b.addPart(h.AppendTo(b.arena[at:at]))
		b.used += h.Len()
		return
	}
	b.crc = 0
	b.used += len(h.AppendTo(mpa.AppendHeader(b.arena[at:at], uint16(b.open))))
}

// takeArena puts what is in the arena of the FPDU into the vector. Pieces that lie
// next to each other are taken together: the CRC of a short FPDU is one call.
func (b *txBatch) takeArena(t *txState) {
	if t.crc {
		b.crc = mpa.CRC(b.crc, b.arena[b.from:b.used])
	}
	b.appendArena()
}

// appendArena is takeArena for what the CRC does not cover.
func (b *txBatch) appendArena() {
	n := b.used - b.from
	if n == 0 {
		return // the room for iov that is left is counted without empty entries
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

func (b *txBatch) addPart(p []byte) {
	b.parts[b.npart] = p
	b.npart++
}

// copyIn adds payload of at most policy.CopyMost, which may change as soon as copyIn
// has returned.
func (b *txBatch) copyIn(p []byte, t *txState) {
	at := b.used
	b.used += copy(b.arena[at:], p)
	if t.markers {
		b.addPart(b.arena[at:b.used])
	}
}

// refer adds payload where it lies: in a region in use, or in a chunk.
func (b *txBatch) refer(p []byte, t *txState) {
	if t.markers {
		b.addPart(p)
		return
	}
	b.takeArena(t)
	if t.crc {
		b.crc = mpa.CRC(b.crc, p)
	}
	b.inPlace = true
	b.append(p)
}

// append adds what lies outside of the arena to the vector.
func (b *txBatch) append(p []byte) {
	b.iov[b.last] = p
	b.last++
	b.inArena, b.inChunk = false, false
	b.built += uint64(len(p))
}

// snapshot adds a copy of payload to an FPDU with CRC. The program, or a peer, may change the
// memory at any time; a change between CRC and send would end the connection. The CRC is of what
// was copied, in the same pass. An FPDU with markers is laid out in a copy anyway.
func (b *txBatch) snapshot(p []byte, t *txState) {
	b.takeArena(t)
	room := b.chunkRoom(len(p))
	b.crc = mpa.CopyCRC(b.crc, room, p)
	b.append(room)
}

// addCopy adds payload that may change as soon as addCopy has returned.
func (b *txBatch) addCopy(p []byte, t *txState) {
	switch {
	case len(p) <= policy.CopyMost:
		b.copyIn(p, t)
	case t.crc && !t.markers:
		b.snapshot(p, t)
	default:
		room := b.chunkRoom(len(p))
		copy(room, p)
		b.refer(room, t)
	}
}

// chunkRoom returns n octets of chunk, at most the size of one. A batch that has copies is
// short: the kernel copies them again, from the cache while they are not more than that keeps.
func (b *txBatch) chunkRoom(n int) []byte {
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

// end closes the FPDU. If finishes is true, the operation of WQE wqe is over when
// the FPDU's last octet is out.
func (b *txBatch) end(t *txState, wqe uint32, finishes bool) {
	if t.markers {
		b.endMarked(t)
	} else {
		if b.from < b.used {
			b.takeArena(t)
		}
		at := b.used
		b.used += len(mpa.AppendTrailer(b.arena[at:at], b.open, b.crc, t.crc))
		b.appendArena()
	}
	start := uint64(0)
	if b.nfpdus > 0 {
		start = b.fpdus[b.nfpdus-1].at
	}
	b.addFPDU(fpduEnd{b.built, wqe, finishes}, int(b.built-start), mpa.PadLen(b.open) > 0, int(t.emss))
}

// endMarked lays the FPDU out with markers, in a chunk. That it is not too long
// has been seen to by the MULPDU.
func (b *txBatch) endMarked(t *txState) {
	room := b.chunkRoom(t.framer.Len(b.open))
	fpdu, err := t.framer.AppendFPDU(room[:0], b.parts[:b.npart]...)
	if err != nil {
		panic("engine: " + err.Error())
	}
	clear(b.parts[:b.npart])
	b.append(fpdu)
	b.from = b.used
}

// longFPDU makes an FPDU without CRC of WQE next: of the header that lies in the arena, after room
// for the ULPDU's length, and of payload, where it lies. finishes is as with end.
func (b *txBatch) longFPDU(header int, payload []byte, t *txState, finishes bool) {
	ulpdu := header + len(payload)
	head := b.arena[b.used : b.used+mpa.HeaderLen+header]
	binary.BigEndian.PutUint16(head, uint16(ulpdu))
	b.used += len(head)
	b.appendArena()
	b.append(payload)
	b.inPlace = true
	b.used += len(mpa.AppendTrailer(b.arena[b.used:b.used], ulpdu, 0, false))
	b.appendArena()
	b.addFPDU(fpduEnd{b.built, t.next, finishes}, mpa.FPDULen(ulpdu), mpa.PadLen(ulpdu) > 0, int(t.emss))
}

// copyFPDU makes an FPDU of the header that lies in the arena, after room for the ULPDU's length,
// and of a copy of payload, as snapshot does. It is whole in a chunk, next to the FPDU before it:
// see policy.CopyFPDU. finishes is as with end.
func (b *txBatch) copyFPDU(header int, payload []byte, t *txState, wqe uint32, finishes bool) {
	ulpdu := header + len(payload)
	fpdu := b.chunkRoom(mpa.FPDULen(ulpdu))
	n := copy(fpdu, b.arena[b.used:b.used+mpa.HeaderLen+header])
	binary.BigEndian.PutUint16(fpdu, uint16(ulpdu))
	var crc uint32
	if t.crc {
		crc = mpa.CopyCRC(mpa.CRC(0, fpdu[:n]), fpdu[n:][:len(payload)], payload)
	} else {
		copy(fpdu[n:], payload)
	}
	mpa.AppendTrailer(fpdu[:n+len(payload)], ulpdu, crc, t.crc)
	b.appendChunk(len(fpdu))
	b.addFPDU(fpduEnd{b.built, wqe, finishes}, len(fpdu), mpa.PadLen(ulpdu) > 0, int(t.emss))
}

// appendChunk adds the n octets that chunkRoom returned last to the vector.
func (b *txBatch) appendChunk(n int) {
	c := b.chunks[len(b.chunks)-1]
	if !b.inChunk {
		b.append(c[b.chunkUsed-n : b.chunkUsed])
		b.inChunk = true
		return
	}
	last := &b.iov[b.last-1]
	*last = (*last)[:len(*last)+n]
	b.built += uint64(n)
}

// frame makes the ULPDU that lies in the arena, after room for its length, an
// FPDU without its CRC, and returns the FPDU's length.
func (b *txBatch) frame(ulpdu int) int {
	size := mpa.FPDULen(ulpdu)
	fpdu := b.arena[b.used : b.used+size]
	binary.BigEndian.PutUint16(fpdu, uint16(ulpdu))
	binary.LittleEndian.PutUint32(fpdu[mpa.HeaderLen+ulpdu:], 0) // the pad
	binary.LittleEndian.PutUint32(fpdu[size-mpa.CRCLen:], 0)     // what is there when CRCs are off
	return size
}

// shortRun is where FPDUs of the same size begin in the arena. Their CRCs are
// calculated together.
type shortRun struct{ at, size int }

func (r *shortRun) end(b *txBatch, t *txState) {
	if fpdus := b.arena[r.at:b.used]; t.crc && len(fpdus) > 0 {
		mpa.SealFPDUs(fpdus, r.size)
	}
}
