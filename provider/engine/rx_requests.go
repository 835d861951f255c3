package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// handleReadRequest queues a Read Request of the peer. It checks the source now, so that faults are
// found in the order of arrival; each segment of the response checks it again. Nothing is allocated
// for the response, however long it is.
//
//rfc:5040 RDMAP-5.2.1-03 Valid ReadReq processed, not delivered to ULP
//rfc:5040 RDMAP-5.5-12-01 ReadReq not started before delivered by DDP
//rfc:5040 RDMAP-5.5-17-01 Read source fetched only after the request was delivered
func (rx *receiver) handleReadRequest(a *rdmap.Action, h *ddp.Header, payload []byte) {
	r, err := rdmap.ParseReadRequest(payload)
	if err != nil {
		rx.refuse(err, h, len(payload), nil)
		return
	}
	m, _, err := rx.q.peer.ReadSource(r.SourceSTag, r.SourceTO, r.Size)
	if err != nil {
		rx.refuse(err, h, len(payload), &r)
		return
	}
	if m != nil {
		m.ReleaseRemote()
	}
	rx.recv.Commit(a)
	countOne(&rx.q.counters().received.ReadRequest, r.Size)
	rx.s.inbound.Push(rdmap.InboundRead{ReadRequest: r, MSN: a.MSN})
	rx.resumeTx = true
}

// handleAtomicRequest performs the peer's atomic operation at once. So it follows everything that
// was delivered before, and precedes everything that comes later. Its response waits until the
// responses of earlier Reads are sent.
//
//rfc:7306 EXT-5.2.1-07 Valid atomic request not delivered to ULP
//rfc:7306 EXT-5.4-3-01 Atomic request not started before delivery
//rfc:7306 EXT-5.4-8-01 Ordering of several atomics
func (rx *receiver) handleAtomicRequest(a *rdmap.Action, h *ddp.Header, payload []byte) {
	req, err := rdmap.ParseAtomicRequest(payload)
	var original uint64
	if err == nil {
		rx.c.releaseWrite() // the first operation on a region may wait
		original, err = rx.q.peer.Atomic(&req)
	}
	if err != nil {
		//rfc:7306 EXT-8.1-2-01 Inbound extension error: DDP header, RDMA header zero
		rx.refuse(err, h, len(payload), nil)
		return
	}
	rx.recv.Commit(a)
	countOne(&rx.q.counters().received.AtomicRequest, rdmap.AtomicLen)
	//rfc:7306 EXT-5.2.1-09 Atomic requests processed in order
	//rfc:7306 EXT-5.2.1-10 Valid atomic request gets a valid response
	rx.s.inbound.Push(rdmap.InboundAtomic(a.MSN, rdmap.AtomicResponse{ID: req.ID, Original: original}))
	rx.resumeTx = true
}

// handleImmediate reports the peer's Immediate Data with the oldest receive. After a Write it
// completes as libibverbs' Write with immediate data, with the Write's length. Whether the peer
// posted it as one can't be seen.
//
//rfc:7306 EXT-6.3-02 Immediate consumes one receive buffer
//rfc:7306 EXT-6.3-03 Immediates delivered in order with Sends
//rfc:7306 EXT-6.4-01 Immediate: same ordering and completion rules as Send
func (rx *receiver) handleImmediate(a *rdmap.Action, h *ddp.Header, payload []byte) {
	data, err := rdmap.ParseImmediate(payload)
	if err == nil {
		w, _, _ := rx.q.frontRecv()
		err = ddp.CheckUntagged(0, 0, w != nil, 0)
	}
	if err != nil {
		//rfc:7306 EXT-8.1-2-01 Inbound extension error: DDP header, RDMA header zero
		rx.refuse(err, h, len(payload), nil)
		return
	}
	rx.recv.Commit(a)
	countOne(&rx.q.counters().received.Immediate, rdmap.ImmediateLen)
	wc := provider.WC{Flags: provider.WCWithImm, Imm: uint32(data >> immShift)}
	//rfc:7306 EXT-7-01 Immediate completes only after the Write before it
	if a.AfterWrite {
		wc.Opcode, wc.ByteLen = provider.WCRecvRDMAWithImm, a.Written
	}
	rx.q.finishRecv(wc, a.Opcode.Solicited())
}
