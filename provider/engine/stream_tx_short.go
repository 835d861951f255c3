package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// Short messages come in lists, and what one costs in calls and copied structs is
// more than its octets do. So a run of them is built in one loop. It does nothing
// that the general path (nextMessage, fillWork) doesn't, and leaves to that
// whatever is not plain: what waits for a Read, what has several SGEs, what can't
// be sent.

// fillShort adds the next messages of the send queue for as long as they are
// Sends and Writes of one FPDU with copied payload. The transmit side is between
// two messages.
//
//rfc:5040 RDMAP-5.1-04 Writes issued in order
//rfc:5040 RDMAP-5.3-07 Sends issued in order
func (s *stream) fillShort() {
	t := &s.tx
	b := t.b
	sq := &s.q.sq
	if t.markers || t.rtr != 0 || t.next == sq.tail.Load() {
		return // the counters, which an idle stream has not, are made below
	}
	longest := uint32(min(policy.CopyMost, t.mulpdu-ddp.MaxHeaderLen))
	run := shortRun{at: b.used}
	sent := &s.q.counters().sent
	var m *memory.Region
	for tail := sq.tail.Load(); t.next != tail && b.room(); t.next++ {
		w := sq.at(t.next)
		if w.length > longest || w.flags&provider.SendFence != 0 || !shortOps.has(w.op) || s.inbound.Front() != nil {
			break
		}
		var payload []byte
		var ok bool
		if payload, m, ok = b.shortPayload(s.q, w, t.next, m); !ok {
			break
		}
		ulpdu := b.arena[b.used+mpa.HeaderLen:]
		head := w.head(t.sendMSN)
		head.Put(ulpdu, 0, true)
		header := head.Len()
		if w.op == provider.WRRDMAWrite {
			countOne(&sent.Write, w.length)
		} else {
			countOne(&sent.Send, w.length)
			t.sendMSN++
		}
		copy(ulpdu[header:], payload)
		size := b.frame(header + len(payload))
		if size != run.size {
			run.end(b, t)
			run = shortRun{b.used, size}
		}
		t.answered = false
		b.used += size // in the vector when the loop has ended
		b.addFPDU(fpduEnd{b.built + uint64(b.used-b.from), t.next, true}, size,
			mpa.PadLen(header+len(payload)) > 0, int(t.emss))
	}
	run.end(b, t)
	b.appendArena()
}
