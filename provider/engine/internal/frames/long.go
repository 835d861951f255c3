package frames

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// On a network a long message is hundreds of FPDUs, each as long as a TCP segment,
// and what one of them costs beside its CRC counts. So those of a message that
// lies in one region are built in one loop. They have the bytes that AddResolved would give them.

// AddLong adds FPDUs of the resolved message of WQE wqe that seg divides, for as long as there is
// room and their payload is too long for the arena. It reports false if the message is not of this
// kind: it lies in several regions, or long reports false. completes is as with Add, for the last
// segment.
func (b *Batch) AddLong(head rdmap.Head, seg *ddp.Segmenter, wqe uint32, completes bool) bool {
	if b.nspans != 1 || !b.long(head, seg) {
		return false
	}
	message := b.spans[0].Bytes
	b.addSegments(head, seg, message[len(message)-int(seg.Remaining()):], wqe, completes)
	return true
}

// AddResponse adds FPDUs of the RDMA Read Response that seg divides: as many as AddLong would, or
// one. payload is what seg has not yet returned of the response. It lies in m, of which the peer
// has a use that the batch ends. If payload is empty, m is nil.
func (b *Batch) AddResponse(head rdmap.Head, seg *ddp.Segmenter, payload []byte, m *memory.Region) {
	if b.long(head, seg) {
		b.addSegments(head, seg, payload, 0, false)
	} else {
		b.addSegment(head, seg, payload)
	}
	switch {
	case m == nil:
	case b.inPlace:
		b.use(m, true)
	default:
		m.ReleaseRemote()
	}
}

// long reports whether addSegments can build the next FPDU of the message that seg divides: the
// message's rest and the MULPDU are too long for the arena, and there are no Markers.
func (b *Batch) long(head rdmap.Head, seg *ddp.Segmenter) bool {
	return !b.format.Markers && b.format.MULPDU-head.Len() > policy.CopyMost &&
		seg.Remaining() > policy.CopyMost
}

// addSegments adds FPDUs of rest, which is what seg has not yet returned of a message, for as long
// as there is room and long reports true. wqe and completes are as with Add, for the last segment.
func (b *Batch) addSegments(head rdmap.Head, seg *ddp.Segmenter, rest []byte, wqe uint32,
	completes bool) {
	f := b.format
	for seg.Remaining() > policy.CopyMost && b.Room() {
		s, _ := seg.Next(f.MULPDU) // there is room for payload
		head.Put(b.arena[b.used+mpa.HeaderLen:], s.MO(), s.Last)
		payload := rest[:s.Len]
		rest = rest[s.Len:]
		if f.CRC || len(payload) <= policy.CopyFPDU {
			b.copyFPDU(head.Len(), payload, wqe, s.Last && completes)
		} else {
			b.longFPDU(head.Len(), payload, wqe, s.Last && completes)
		}
	}
}

// addSegment adds the next FPDU of a Read Response. rest is as with addSegments.
func (b *Batch) addSegment(head rdmap.Head, seg *ddp.Segmenter, rest []byte) {
	s, ok := seg.Next(b.format.MULPDU)
	if !ok {
		panic("frames: the MULPDU has no room for payload")
	}
	h := head.Header(s.MO(), s.Last)
	b.begin(&h, s.Len)
	b.addPiece(rest[:s.Len], uint64(s.Len))
	b.finishFPDU(0, false)
}

// longFPDU makes an FPDU without CRC of the header in the arena, which follows room for the ULPDU's
// length, and of payload without a copy. wqe and completes are as with Add.
func (b *Batch) longFPDU(header int, payload []byte, wqe uint32, completes bool) {
	ulpdu := header + len(payload)
	head := b.arena[b.used : b.used+mpa.HeaderLen+header]
	binary.BigEndian.PutUint16(head, uint16(ulpdu))
	b.used += len(head)
	b.appendArena()
	b.append(payload)
	b.inPlace = true
	b.used += len(mpa.AppendTrailer(b.arena[b.used:b.used], ulpdu, 0, false))
	b.appendArena()
	b.addFPDU(fpduEnd{b.built, wqe, completes}, mpa.FPDULen(ulpdu), mpa.PadLen(ulpdu) > 0,
		b.format.EMSS)
}

// copyFPDU makes an FPDU of the header in the arena, which follows room for the ULPDU's length, and
// of a copy of payload, as snapshot does. The FPDU lies in a chunk, next to the FPDU before it: see
// policy.CopyFPDU. wqe and completes are as with Add.
func (b *Batch) copyFPDU(header int, payload []byte, wqe uint32, completes bool) {
	ulpdu, sum := header+len(payload), b.format.CRC
	fpdu := b.chunkRoom(mpa.FPDULen(ulpdu))
	n := copy(fpdu, b.arena[b.used:b.used+mpa.HeaderLen+header])
	binary.BigEndian.PutUint16(fpdu, uint16(ulpdu))
	var crc uint32
	if sum {
		crc = mpa.CopyCRC(mpa.CRC(0, fpdu[:n]), fpdu[n:][:len(payload)], payload)
	} else {
		copy(fpdu[n:], payload)
	}
	mpa.AppendTrailer(fpdu[:n+len(payload)], ulpdu, crc, sum)
	b.appendChunk(len(fpdu))
	b.addFPDU(fpduEnd{b.built, wqe, completes}, len(fpdu), mpa.PadLen(ulpdu) > 0, b.format.EMSS)
}

// appendChunk adds the n bytes that chunkRoom returned last to the vector.
func (b *Batch) appendChunk(n int) {
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
