package engine

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// handleAtomicResponse stores the old value where the WQE asks for it, in the CPU's byte order, and
// completes the WQE.
//
//rfc:7306 EXT-5.2.2-05 Atomic response delivered to ULP
//rfc:7306 EXT-5.4-1-01 Requester assumes nothing before the atomic response
//rfc:7306 EXT-5.4-7-01 Atomic not complete before its response is delivered
func (rx *receiver) handleAtomicResponse(a *rdmap.Action, h *ddp.Header, payload []byte) {
	r, err := rdmap.ParseAtomicResponse(payload)
	if err == nil && r.ID != a.Read.ID {
		err = rdmap.ErrAtomicResponseID
	}
	i := uint32(a.Read.Cookie)
	if err == nil {
		sges := rx.q.sq.sgeRoom(i)[:rx.q.sq.at(i).nsge]
		if !rx.c.resolve(&rx.q.pd.Domain, sges, 0, rdmap.AtomicLen) {
			rx.q.failSend(i, provider.WCLocProtErr)
			err = errSinkSGE
		}
	}
	if err != nil {
		//rfc:7306 EXT-5.2.2-06 Invalid atomic response surfaces an error
		rx.refuse(err, h, len(payload), nil)
		return
	}
	var room [rdmap.AtomicLen]byte
	//rfc:7306 EXT-5.1.1-05 Operation in target endianness, wire big-endian
	binary.NativeEndian.PutUint64(room[:], r.Original)
	rx.c.copyIn(room[:])
	rx.c.release()
	rx.recv.Commit(a)
	countOne(&rx.q.counters().received.AtomicResponse, rdmap.AtomicLen)
	rx.finishAnswered(a)
}

// blameAtomic makes the atomic operation fail that a Terminate is about, and reports whether there
// is one. The Terminate has the operation's DDP header. A misaligned target, above all, is what
// InfiniBand calls an invalid request.
func (rx *receiver) blameAtomic(t *rdmap.ReceivedTerminate) bool {
	if !t.HaveDDP || t.DDP.Tagged || t.DDP.QN != rdmap.QNReadRequest {
		return false
	}
	r := rx.s.outstanding.WithMSN(t.DDP.MSN)
	if r == nil || !r.Atomic {
		return false
	}
	status := provider.WCRemInvReqErr
	if t.EType == iwarp.RDMAPRemoteProtection {
		status = provider.WCRemAccessErr
	}
	rx.q.failSend(uint32(r.Cookie), status)
	return true
}

// readSink prepares the payload of a response segment to be placed in the sink of the Read that it
// answers. If it reports false, the fault is ours, not the peer's.
func (rx *receiver) readSink(a *rdmap.Action) bool {
	if a.Len == 0 {
		return true
	}
	i := uint32(a.Read.Cookie)
	sges := rx.q.sq.sgeRoom(i)[:rx.q.sq.at(i).nsge]
	return rx.resolve(&rx.q.pd.Domain, sges, a)
}

// finishAnswered completes the Read or atomic operation whose response has been placed. A Read that
// was the RTR indication has no WQE.
//
//rfc:5040 RDMAP-5.5-01 Response delivery alone completes the Read
//rfc:5040 RDMAP-5.5-19-01 Read complete only when the Response is delivered
//rfc:5040 RDMAP-5.2.2-03 Response delivered to ULP
func (rx *receiver) finishAnswered(a *rdmap.Action) {
	rx.resumeTx = true // a Read or a fenced WQE may have waited for this
	if a.Read.Cookie != rtrCookie {
		rx.q.finishWQE(uint32(a.Read.Cookie))
	}
}

// blame records what the peer's Terminate says about work of ours. The Read whose request it
// carries, or the atomic operation whose header it carries, fails with the peer's reason. All other
// work is flushed. A refused Write has usually been reported as complete before the peer saw it, so
// blame would hit another Write to the same place.
func (rx *receiver) blame(t *rdmap.ReceivedTerminate) {
	status := remoteStatus(t)
	// A responder that can't read its memory shows only the request's DDP header. It answers Reads
	// in order, so the request is the oldest one.
	oldest := t.HaveDDP && !t.DDP.Tagged && t.DDP.QN == rdmap.QNReadRequest &&
		(t.Code == iwarp.RDMAPCatastrophicStream || t.Code == iwarp.RDMAPCatastrophicGlobal)
	if status == provider.WCSuccess || rx.blameAtomic(t) || !t.HaveRead && !oldest {
		return
	}
	q := rx.q
	q.sq.done.Lock()
	defer q.sq.done.Unlock()
	if w := rx.requested(t); w != nil {
		w.status = status
		return
	}
	for i, tail := q.sq.head, q.sq.tail.Load(); i != tail; i++ {
		w := q.sq.at(i)
		if oldest && !w.finished && answeredOps.has(w.op) {
			w.status = status
			return
		}
		if w.op == provider.WRRDMARead && !w.finished && t.Read.SourceSTag == w.rkey &&
			t.Read.SourceTO-w.raddr <= uint64(w.length) {
			w.status = status
			return
		}
	}
}

// requested returns the Read whose request has the MSN that the Terminate shows. It returns nil if
// there is none, or if the Terminate shows another request, because siw sometimes fills in another
// header. The request alone does not identify the Read, because several Reads may name the same
// memory. sq.done is held.
func (rx *receiver) requested(t *rdmap.ReceivedTerminate) *sendWQE {
	if !t.HaveRead || !t.HaveDDP || t.DDP.Tagged || t.DDP.QN != rdmap.QNReadRequest {
		return nil
	}
	r := rx.s.outstanding.WithMSN(t.DDP.MSN)
	if r == nil || r.Atomic || r.Cookie == rtrCookie {
		return nil
	}
	w := rx.q.sq.at(uint32(r.Cookie))
	if t.Read.SourceSTag != w.rkey || t.Read.SourceTO != w.raddr {
		return nil
	}
	return w
}

// remoteStatus returns the completion status of a Read that a Terminate is about.
func remoteStatus(t *rdmap.ReceivedTerminate) provider.WCStatus {
	switch {
	case t.Layer == iwarp.LayerRDMAP && t.EType == iwarp.RDMAPRemoteProtection:
		return provider.WCRemAccessErr
	case t.Layer == iwarp.LayerRDMAP && t.EType == iwarp.RDMAPRemoteOperation:
		return provider.WCRemOpErr
	}
	return provider.WCSuccess
}
