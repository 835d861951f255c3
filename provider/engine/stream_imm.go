package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// The verbs use only part of RFC 7306's Immediate Data. The message has eight bytes, and libibverbs
// has four: they are the first four, in network order, as with cxgb4. The others are zero.
const immShift = 32

// fillImmediate adds the Immediate Data of WQE next: after its Write, or alone.
//
//rfc:7306 EXT-6.3-04 Exactly 8 octets of immediate data sent
//rfc:7306 EXT-6.3-06 Immediates issued in order
func (s *stream) fillImmediate() {
	t := &s.tx
	w := s.q.sq.at(t.next)
	h := rdmap.ImmediateHeader(w.flags&provider.SendSolicited != 0, t.sendMSN)
	t.sendMSN++
	var room [rdmap.ImmediateLen]byte
	t.b.Add(&h, rdmap.AppendImmediate(room[:0], uint64(w.immOrInv)<<immShift), t.next, true)
	countOne(&s.q.counters().sent.Immediate, rdmap.ImmediateLen)
	t.task = taskNone
	t.next++
}

// takeImmediate reports the peer's Immediate Data with the oldest receive. After a Write it
// completes as libibverbs' Write with immediate data, with the Write's length. Whether the peer
// posted it as one can't be seen.
//
//rfc:7306 EXT-6.3-02 Immediate consumes one receive buffer
//rfc:7306 EXT-6.3-03 Immediates delivered in order with Sends
//rfc:7306 EXT-6.4-01 Immediate: same ordering and completion rules as Send
func (s *stream) takeImmediate(a *rdmap.Action, h *ddp.Header, payload []byte) {
	data, err := rdmap.ParseImmediate(payload)
	if err == nil {
		w, _, _ := s.q.frontRecv()
		err = ddp.CheckUntagged(0, 0, w != nil, 0)
	}
	if err != nil {
		//rfc:7306 EXT-8.1-2-01 Inbound extension error: DDP header, RDMA header zero
		s.refuse(err, h, len(payload), nil)
		return
	}
	s.rx.recv.Commit(a)
	countOne(&s.q.counters().received.Immediate, rdmap.ImmediateLen)
	wc := provider.WC{Flags: provider.WCWithImm, Imm: uint32(data >> immShift)}
	//rfc:7306 EXT-7-01 Immediate completes only after the Write before it
	if a.AfterWrite {
		wc.Opcode, wc.ByteLen = provider.WCRecvRDMAWithImm, a.Written
	}
	s.finishRecv(wc, a.Opcode.Solicited())
}
