package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// nextResponse begins the answer to the peer's oldest Read Request.
//
//rfc:5040 RDMAP-5.2.1-05 ReadReqs processed in order
//rfc:5040 RDMAP-5.2.2-04 Responses in request order
//rfc:5040 RDMAP-5.5-20-01 Multiple reads: Responses in request order
func (tx *sender) nextResponse() bool {
	r := tx.s.inbound.Front()
	if r == nil {
		return false
	}
	tx.resp = *r
	tx.answered = true
	if _, atomic := r.Atomic(); atomic {
		tx.task = taskAtomicResponse
		return true
	}
	tx.seg = ddp.NewSegmenter(r.Size, true)
	tx.task = taskReadResponse
	return true
}

// fillResponse adds FPDUs of the response under way.
//
//rfc:5040 RDMAP-5.2.1-07 Valid ReadReq gets a valid Response
//rfc:5040 RDMAP-5.2.1-10 Zero size: zero-length Response sent
//rfc:5040 RDMAP-4.4-05 Read size is 32-bit; whole size returned
func (tx *sender) fillResponse() {
	r := &tx.resp
	left := tx.seg.Remaining()
	done := r.Size - left
	m, p, err := tx.q.peer.ReadSource(r.SourceSTag, r.SourceTO+uint64(done), left)
	if err != nil {
		tx.failResponse(err, done)
		return
	}
	if m != nil && m.IsObject() {
		m.ReleaseRemote()
		tx.fillObjectResponse()
		return
	}
	tx.b.AddResponse(rdmap.ReadResponseHead(r.SinkSTag, r.SinkTO), &tx.seg, p, m)
	if tx.seg.Done() {
		countOne(&tx.q.counters().sent.ReadResponse, r.Size)
		// The peer may ask again as soon as the last segment is out.
		tx.s.inbound.Pop()
		tx.task = taskNone
	}
}

// failResponse ends the stream because the source of a Read is gone. The Terminate shows the
// request with the part that is not yet answered.
//
//rfc:5040 RDMAP-4.8-11 Partly processed ReadReq: header updated to progress
func (tx *sender) failResponse(err error, done uint32) {
	r := &tx.resp
	h := rdmap.ReadRequestHeader(r.MSN)
	tx.format.SetVersion(&h) // as the peer's request has it
	left := r.Advance(done)
	e := endTerminate(err, &h, ddp.UntaggedHeaderLen+rdmap.ReadRequestLen, &left)
	e.event, e.raise = provider.EventQPReqErr, true
	tx.fault = e
}

// fillAtomicResponse sends the result of an operation of the peer.
//
//rfc:7306 EXT-5.2.1-11 Atomic request identifier echoed
//rfc:7306 EXT-5.2.2-01 Atomic response untagged, QN 3, MSN from 1
//rfc:7306 EXT-5.2.2-07 Atomic responses in request order
func (tx *sender) fillAtomicResponse() {
	r, _ := tx.resp.Atomic()
	tx.s.inbound.Pop() // the peer may ask again as soon as this is out
	h := rdmap.AtomicResponseHeader(tx.atomicMSN)
	tx.atomicMSN++
	var room [rdmap.AtomicResponseLen]byte
	tx.b.Add(&h, r.AppendTo(room[:0]), 0, false)
	countOne(&tx.q.counters().sent.AtomicResponse, rdmap.AtomicLen)
	tx.task = taskNone
}
