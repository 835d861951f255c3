package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
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
	longest := t.format.ShortMost()
	if longest < 0 || t.rtr != 0 || t.next == sq.tail.Load() {
		return // the counters, which an idle stream has not, are made below
	}
	sent := &s.q.counters().sent
	var m *memory.Region
	for tail := sq.tail.Load(); t.next != tail && b.Room(); t.next++ {
		w := sq.at(t.next)
		if w.length > uint32(longest) || w.flags&provider.SendFence != 0 ||
			!shortOps.has(w.op) || s.inbound.Front() != nil {
			break
		}
		var payload []byte
		var ok bool
		if payload, m, ok = s.shortPayload(w, m); !ok {
			break
		}
		b.AddShort(w.head(t.sendMSN), payload, t.next)
		if w.op == provider.WRRDMAWrite {
			countOne(&sent.Write, w.length)
		} else {
			countOne(&sent.Send, w.length)
			t.sendMSN++
		}
		t.answered = false
	}
	b.EndRun()
}

// shortPayload returns the payload of WQE next, w, and its region, which is in use until
// the batch releases it; m is the region of the WQE before. With false the general path has to see
// to the WQE.
func (s *stream) shortPayload(w *sendWQE, m *memory.Region) ([]byte, *memory.Region, bool) {
	q, t := s.q, &s.tx
	switch {
	case w.length == 0:
		return nil, m, true
	case w.flags&provider.SendInline != 0:
		return q.sq.inlineRoom(t.next)[:w.length], m, true
	case w.nsge != 1:
		return nil, m, false
	}
	sge := &q.sq.sgeRoom(t.next)[0]
	if m == nil || m.STag() != sge.LKey {
		if m = t.b.Region(&q.pd.Domain, sge.LKey); m == nil {
			return nil, nil, false
		}
	}
	p, ok := m.Octets(&q.pd.Domain, sge, 0)
	return p, m, ok
}
