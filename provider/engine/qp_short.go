package engine

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Short messages come in lists, and what one costs in calls and copied structs is
// more than its octets do. So a run of them is built in one loop. It does nothing
// that the general path (nextMessage, fillWork) doesn't, and leaves to that
// whatever is not plain: what waits for a Read, what has several SGEs, what can't
// be sent.

// opSet is a set of opcodes, which are below 32.
type opSet uint32

func (s opSet) has(op provider.WROpcode) bool { return s>>(op&31)&1 != 0 }

// shortOps are the Sends and Writes that are one message.
const shortOps opSet = 1<<provider.WRRDMAWrite | 1<<provider.WRSend | 1<<provider.WRSendWithInv

// atomicOps are the atomic operations, answeredOps what a response of the peer ends.
const (
	atomicOps opSet = 1<<provider.WRAtomicCmpAndSwp | 1<<provider.WRAtomicFetchAdd |
		1<<provider.WRMaskedAtomicCmpAndSwp | 1<<provider.WRMaskedAtomicFetchAdd
	answeredOps opSet = 1<<provider.WRRDMARead | atomicOps
)

// memoryOps are the operations on our own memory, flaggedOps those that something else
// than their last octet ends.
const (
	memoryOps  opSet = 1<<provider.WRBindMW | 1<<provider.WRLocalInv | 1<<opRegMR
	flaggedOps       = answeredOps | memoryOps
)

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
	if t.markers || t.rtr != 0 {
		return
	}
	longest := uint32(min(copyOctets, t.mulpdu-ddp.MaxHeaderLen))
	run := shortRun{at: b.used}
	sent := &s.q.counters().sent
	var m *mr
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
		header := ddp.TaggedHeaderLen
		if w.op == provider.WRRDMAWrite {
			rdmap.PutWrite(ulpdu, w.rkey, w.raddr, true)
			countOne(&sent.Write, w.length)
		} else {
			rdmap.PutSend(ulpdu, sendOpcode(w), w.inv, t.sendMSN, 0, true)
			countOne(&sent.Send, w.length)
			t.sendMSN++
			header = ddp.UntaggedHeaderLen
		}
		copy(ulpdu[header:], payload)
		size := b.frame(header + len(payload))
		if size != run.size {
			run.end(b, t)
			run = shortRun{b.used, size}
		}
		t.answered = false
		b.endShort(size, mpa.PadLen(header+len(payload)) > 0, t)
	}
	run.end(b, t)
	b.appendArena()
}

// shortPayload returns the payload of WQE i and its region, which is in use until
// release; m is that of the one before. With false the general path has to see to
// the WQE.
func (b *txBatch) shortPayload(q *qp, w *sendWQE, i uint32, m *mr) ([]byte, *mr, bool) {
	switch {
	case w.length == 0:
		return nil, m, true
	case w.flags&provider.SendInline != 0:
		return q.sq.inlineRoom(i)[:w.length], m, true
	case w.nsge != 1:
		return nil, m, false
	}
	sge := &q.sq.sgeRoom(i)[0]
	if m == nil || m.stag != sge.LKey {
		if m = b.region(q.pd, sge.LKey); m == nil {
			return nil, nil, false
		}
	}
	p, ok := m.slice(sge.Addr, uint64(sge.Length))
	return p, m, ok
}

// frame makes the ULPDU that lies in the arena, behind room for its length, an
// FPDU without its CRC, and returns the FPDU's length.
func (b *txBatch) frame(ulpdu int) int {
	size := mpa.FPDULen(ulpdu)
	fpdu := b.arena[b.used : b.used+size]
	binary.BigEndian.PutUint16(fpdu, uint16(ulpdu))
	binary.LittleEndian.PutUint32(fpdu[mpa.HeaderLen+ulpdu:], 0) // the pad
	binary.LittleEndian.PutUint32(fpdu[size-mpa.CRCLen:], 0)     // what is there when CRCs are off
	return size
}

// endShort closes the FPDU of size octets that lies in the arena, which is all of
// the message of WQE next. It is in the vector when fillShort ends.
func (b *txBatch) endShort(size int, padded bool, t *txState) {
	b.used += size
	b.fpdus[b.nfpdus] = fpduEnd{at: b.built + uint64(b.used-b.from), wqe: t.next, finishes: true}
	b.nfpdus++
	b.addRecord(size, padded, int(t.emss))
}

// shortRun is where FPDUs of the same size begin in the arena. Their CRCs are
// calculated together.
type shortRun struct{ at, size int }

func (r *shortRun) end(b *txBatch, t *txState) {
	if fpdus := b.arena[r.at:b.used]; t.crc && len(fpdus) > 0 {
		mpa.SealFPDUs(fpdus, r.size)
	}
}
