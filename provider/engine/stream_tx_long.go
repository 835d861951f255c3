package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// On a network a long message is hundreds of FPDUs, each as long as a TCP segment,
// and what one of them costs beside its CRC counts. So those of a message that
// lies in one region are built in one loop, which does nothing that the general
// path doesn't.

// fillLong adds FPDUs of the message of w for as long as there is room and their payload is too
// long for the arena. It reports false if it added none.
//
//rfc:5040 RDMAP-5.1-04 Writes issued in order
//rfc:5040 RDMAP-5.3-07 Sends issued in order
func (s *stream) fillLong(w *sendWQE) bool {
	t := &s.tx
	b := t.b
	whole := w.op != provider.WRRDMAWriteWithImm
	if t.markers || ddp.MaxPayload(t.mulpdu, w.isWrite()) <= policy.CopyMost || t.seg.Remaining() <= policy.CopyMost {
		return false
	}
	head := w.head(t.sendMSN)
	message := b.spans[0].Bytes
	for t.seg.Remaining() > policy.CopyMost && b.room() {
		seg, _ := t.seg.Next(t.mulpdu) // there is room for payload
		head.Put(b.arena[b.used+mpa.HeaderLen:], seg.MO(), seg.Last)
		payload := message[seg.Offset:][:seg.Len]
		if t.crc || len(payload) <= policy.CopyFPDU {
			b.copyFPDU(head.Len(), payload, t, t.next, seg.Last && whole)
		} else {
			b.longFPDU(head.Len(), payload, t, seg.Last && whole)
		}
		if seg.Last {
			s.endWork(w)
			break
		}
	}
	return true
}
