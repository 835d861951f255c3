package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// fillReadRequest sends the request of a Read. It adds the Read to the outstanding ones before it
// can be answered.
//
//rfc:5040 RDMAP-5.2.1-04 ReadReqs passed in ULP order
func (tx *sender) fillReadRequest() {
	sq := &tx.q.sq
	w := sq.at(tx.next)
	sges := sq.sgeRoom(tx.next)[:w.nsge]
	if !tx.sinkUsable(sges) && !tx.objectSink(sges, w.length) {
		tx.failWork()
		return
	}
	// On the wire the sink is one STag and one TO, which the peer only echoes. The receive side
	// knows the SGEs, so it decides where the bytes go.
	r := rdmap.ReadRequest{Size: w.length, SourceSTag: w.rkey, SourceTO: w.raddr}
	if len(sges) > 0 {
		r.SinkSTag, r.SinkTO = sges[0].LKey, sges[0].Addr
	}
	tx.s.outstanding.Push(rdmap.OutstandingRead{
		SinkSTag: r.SinkSTag, SinkTO: r.SinkTO, Size: r.Size, Cookie: uint64(tx.next),
	})
	tx.addReadRequest(&r)
	countOne(&tx.q.counters().sent.ReadRequest, r.Size)
	tx.task = taskNone
	tx.next++
}

// sinkUsable reports whether a Read can have these SGEs as its sink. They are looked up again when
// the bytes come.
func (tx *sender) sinkUsable(sges []provider.SGE) bool {
	var room [maxSGE]memory.Span
	spans, ok := tx.q.pd.Resolve(sges, provider.AccessLocalWrite, room[:0])
	if ok {
		if l := &tx.q.dev.log; l.to != nil {
			l.readSink(tx.q.qpn, spans)
		}
		memory.ReleaseSpans(spans)
	}
	return ok
}

func (tx *sender) addReadRequest(r *rdmap.ReadRequest) {
	h := rdmap.ReadRequestHeader(tx.readMSN)
	tx.readMSN++
	var room [rdmap.ReadRequestLen]byte
	tx.b.Add(&h, r.AppendTo(room[:0]), 0, false)
}

// fillRTR sends the RTR indication: an empty message after which a responder may send.
//
//rfc:6581 MPA2-9.2-08 Initiator emits one negotiated RTR after an accept with A=1
//rfc:6581 MPA2-9.2-15 Zero-length Write/Read RTR must not need a valid STag
func (tx *sender) fillRTR() {
	switch tx.rtr {
	case mpa.RTRRead:
		tx.s.outstanding.Push(rdmap.OutstandingRead{Cookie: rtrCookie})
		tx.addReadRequest(&rdmap.ReadRequest{})
	case mpa.RTRSend:
		h := rdmap.SendHeader(rdmap.OpSend, 0, tx.sendMSN, 0, true)
		tx.sendMSN++
		tx.b.Add(&h, nil, 0, false)
	default:
		h := rdmap.WriteHeader(0, 0, true)
		tx.b.Add(&h, nil, 0, false)
	}
	tx.rtr = 0
	tx.task = taskNone
}

// fillAtomicRequest sends the request of an atomic operation, which has its turn and its place
// among the requests of Reads. The peer checks the target, even its alignment, because that depends
// on where the peer's memory lies.
//
//rfc:7306 EXT-5.2-01 Atomic requests share QN1 MSN space and IRD/ORD with reads
//rfc:7306 EXT-5.2.1-08 Atomic requests sent in ULP order
//rfc:7306 EXT-5.2.2-04 Requester has QN3 buffers for all outstanding atomics
func (tx *sender) fillAtomicRequest() {
	sq := &tx.q.sq
	w := sq.at(tx.next)
	if !tx.sinkUsable(sq.sgeRoom(tx.next)[:w.nsge]) {
		tx.failWork()
		return
	}
	o := sq.atomicAt(tx.next)
	id := tx.next
	var r rdmap.AtomicRequest
	if w.op == provider.WRAtomicFetchAdd || w.op == provider.WRMaskedAtomicFetchAdd {
		r = rdmap.FetchAdd(id, w.rkey, w.raddr, o.compareAdd, o.addMask)
	} else {
		r = rdmap.CmpSwap(id, w.rkey, w.raddr, o.compareAdd, o.swap, o.compareMask, o.swapMask)
	}
	tx.s.outstanding.Push(rdmap.OutstandingRead{Atomic: true, ID: id, Size: rdmap.AtomicLen, Cookie: uint64(tx.next)})
	h := rdmap.AtomicRequestHeader(tx.readMSN)
	tx.readMSN++
	var room [rdmap.AtomicRequestLen]byte
	tx.b.Add(&h, r.AppendTo(room[:0]), 0, false)
	countOne(&tx.q.counters().sent.AtomicRequest, rdmap.AtomicLen)
	tx.task = taskNone
	tx.next++
}

// objectSink reports whether the sink of a Read is at least partly an object, and can be used.
func (tx *sender) objectSink(sges []provider.SGE, length uint32) bool {
	pieces, ok := tx.q.pd.Pieces(sges, provider.AccessLocalWrite, 0, uint64(length))
	memory.ReleasePieces(pieces)
	return ok
}
