package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
)

// A run of short messages is built in one loop (see frames.Batch.AddShort). It does nothing
// that the general path (nextMessage, fillWork) doesn't, and leaves to that
// whatever is not plain: what waits for a Read, what has several SGEs, what can't
// be sent.

// fillShort adds the next messages of the send queue as long as they are Sends and Writes of one
// FPDU with copied payload. The transmit side is between two messages.
//
//rfc:5040 RDMAP-5.1-04 Writes issued in order
//rfc:5040 RDMAP-5.3-07 Sends issued in order
func (tx *sender) fillShort() {
	b := tx.b
	sq := &tx.q.sq
	longest := tx.format.ShortMost()
	if longest < 0 || tx.rtr != 0 || tx.next == sq.tail.Load() {
		return // an idle stream has no counters; they are made below
	}
	sent := &tx.q.counters().sent
	domain := &tx.q.pd.Domain
	var m *memory.Region // region of the WQE before
	for tail := sq.tail.Load(); tx.next != tail && b.Room(); tx.next++ {
		w := sq.at(tx.next)
		if w.length > uint32(longest) || w.flags&provider.SendFence != 0 ||
			!shortOps.has(w.op) || tx.s.inbound.Front() != nil {
			break
		}
		payload, ok := []byte(nil), w.length == 0
		switch {
		case ok:
		case w.flags&provider.SendInline != 0:
			payload, ok = sq.inlineRoom(tx.next)[:w.length], true
		case w.nsge == 1:
			sge := &sq.sgeRoom(tx.next)[0]
			if m == nil || m.STag() != sge.LKey {
				m = b.Region(domain, sge.LKey)
			}
			if m != nil {
				payload, ok = m.Octets(domain, sge, 0)
			}
		}
		if !ok {
			break
		}
		head := w.head(tx.sendMSN)
		if w.op == provider.WRRDMAWrite {
			countOne(&sent.Write, w.length)
		} else {
			countOne(&sent.Send, w.length)
			tx.sendMSN++
		}
		tx.answered = false
		b.AddShort(head, payload, tx.next)
	}
	b.EndRun()
}
