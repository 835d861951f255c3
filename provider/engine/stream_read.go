package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// takeReadRequest queues a Read Request of the peer. It checks the source now, so that faults are
// found in the order of arrival; each segment of the response checks it again. Nothing is allocated
// for the response, however long it is.
//
//rfc:5040 RDMAP-5.2.1-03 Valid ReadReq processed, not delivered to ULP
//rfc:5040 RDMAP-5.5-12-01 ReadReq not started before delivered by DDP
//rfc:5040 RDMAP-5.5-17-01 Read source fetched only after the request was delivered
func (s *stream) takeReadRequest(a *rdmap.Action, h *ddp.Header, payload []byte) {
	r, err := rdmap.ParseReadRequest(payload)
	if err != nil {
		s.refuse(err, h, len(payload), nil)
		return
	}
	m, _, err := s.q.peer.ReadSource(r.SourceSTag, r.SourceTO, r.Size)
	if err != nil {
		s.refuse(err, h, len(payload), &r)
		return
	}
	if m != nil {
		m.ReleaseRemote()
	}
	s.rx.recv.Commit(a)
	countOne(&s.q.counters().received.ReadRequest, r.Size)
	s.inbound.Push(rdmap.InboundRead{ReadRequest: r, MSN: a.MSN})
	s.rx.resumeTx = true
}

// nextResponse begins the answer to the peer's oldest Read Request.
//
//rfc:5040 RDMAP-5.2.1-05 ReadReqs processed in order
//rfc:5040 RDMAP-5.2.2-04 Responses in request order
//rfc:5040 RDMAP-5.5-20-01 Multiple reads: Responses in request order
func (s *stream) nextResponse() bool {
	t := &s.tx
	r := s.inbound.Front()
	if r == nil {
		return false
	}
	t.resp = *r
	t.answered = true
	if _, atomic := r.Atomic(); atomic {
		t.task = taskAtomicResponse
		return true
	}
	t.seg = ddp.NewSegmenter(r.Size, true)
	t.task = taskReadResponse
	return true
}

// fillResponse adds the next FPDU of the response under way.
//
//rfc:5040 RDMAP-5.2.1-07 Valid ReadReq gets a valid Response
//rfc:5040 RDMAP-5.2.1-10 Zero size: zero-length Response sent
//rfc:5040 RDMAP-4.4-05 Read size is 32-bit; whole size returned
func (s *stream) fillResponse() {
	t := &s.tx
	r := &t.resp
	before := t.seg
	seg, ok := t.seg.Next(t.format.MULPDU)
	if !ok {
		panic("engine: the MULPDU has no room for payload")
	}
	m, p, err := s.q.peer.ReadSource(r.SourceSTag, r.SourceTO+uint64(seg.Offset), uint32(seg.Len))
	if err != nil {
		s.failResponse(err, seg.Offset)
		return
	}
	if m != nil && m.IsObject() {
		m.ReleaseRemote()
		t.seg = before
		s.fillObjectResponse()
		return
	}
	if seg.Last {
		countOne(&s.q.counters().sent.ReadResponse, r.Size)
		// The peer may ask again as soon as this segment is out.
		s.inbound.Pop()
		t.task = taskNone
	}
	h := rdmap.ReadResponseHeader(r.SinkSTag, seg.TO(r.SinkTO), seg.Last)
	t.b.AddResponse(&h, p, m)
}

// failResponse ends the stream because the source of a Read is gone. The Terminate shows the
// request with the part that is not yet answered.
//
//rfc:5040 RDMAP-4.8-11 Partly processed ReadReq: header updated to progress
func (s *stream) failResponse(err error, done uint32) {
	r := &s.tx.resp
	h := rdmap.ReadRequestHeader(r.MSN)
	s.tx.format.SetVersion(&h) // as the peer's request has it
	left := r.Advance(done)
	e := endTerminate(err, &h, ddp.UntaggedHeaderLen+rdmap.ReadRequestLen, &left)
	e.event, e.raise = provider.EventQPReqErr, true
	s.tx.fault = e
}

// readSink prepares the payload of a response segment to be placed in the sink of the Read that it
// answers. If it reports false, the fault is ours, not the peer's.
func (s *stream) readSink(a *rdmap.Action) bool {
	if a.Len == 0 {
		return true
	}
	i := uint32(a.Read.Cookie)
	sges := s.q.sq.sgeRoom(i)[:s.q.sq.at(i).nsge]
	return s.resolve(s.q.pd, sges, a)
}

// finishAnswered completes the Read or atomic operation whose response has been placed. A Read that
// was the RTR indication has no WQE.
//
//rfc:5040 RDMAP-5.5-01 Response delivery alone completes the Read
//rfc:5040 RDMAP-5.5-19-01 Read complete only when the Response is delivered
//rfc:5040 RDMAP-5.2.2-03 Response delivered to ULP
func (s *stream) finishAnswered(a *rdmap.Action) {
	s.rx.resumeTx = true // a Read or a fenced WQE may have waited for this
	if a.Read.Cookie != rtrCookie {
		s.q.finishWQE(uint32(a.Read.Cookie))
	}
}

// blame records what the peer's Terminate says about work of ours. The Read whose request it
// carries, or the atomic operation whose header it carries, fails with the peer's reason. All other
// work is flushed. A refused Write has usually been reported as complete before the peer saw it, so
// blame would hit another Write to the same place.
func (s *stream) blame(t *rdmap.ReceivedTerminate) {
	status := remoteStatus(t)
	// A responder that can't read its memory shows only the request's DDP header. It answers Reads
	// in order, so the request is the oldest one.
	oldest := t.HaveDDP && !t.DDP.Tagged && t.DDP.QN == rdmap.QNReadRequest &&
		(t.Code == iwarp.RDMAPCatastrophicStream || t.Code == iwarp.RDMAPCatastrophicGlobal)
	if status == provider.WCSuccess || s.blameAtomic(t) || !t.HaveRead && !oldest {
		return
	}
	q := s.q
	q.sq.done.Lock()
	defer q.sq.done.Unlock()
	if w := s.requested(t); w != nil {
		w.status = status
		return
	}
	for i, tail := q.sq.head, q.sq.tail.Load(); i != tail; i++ {
		w := q.sq.at(i)
		if oldest && !w.finished && answeredOps.has(w.op) {
			w.status = status
			return
		}
		if w.op == provider.WRRDMARead && !w.finished && t.Read.SourceSTag == w.rkey && t.Read.SourceTO-w.raddr <= uint64(w.length) {
			w.status = status
			return
		}
	}
}

// requested returns the Read whose request has the MSN that the Terminate shows. It returns nil if
// there is none, or if the Terminate shows another request, because siw sometimes fills in another
// header. The request alone does not identify the Read, because several Reads may name the same
// memory. sq.done is held.
func (s *stream) requested(t *rdmap.ReceivedTerminate) *sendWQE {
	if !t.HaveRead || !t.HaveDDP || t.DDP.Tagged || t.DDP.QN != rdmap.QNReadRequest {
		return nil
	}
	r := s.outstanding.WithMSN(t.DDP.MSN)
	if r == nil || r.Atomic || r.Cookie == rtrCookie {
		return nil
	}
	w := s.q.sq.at(uint32(r.Cookie))
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
