package engine

import (
	"errors"
	"fmt"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// refuse ends the stream for a fault in what the peer sent: the segment with header h, nil if there
// is none to show, and payloadLen bytes of payload. read is the segment's Read Request, if it has
// one.
//
//rfc:5040 RDMAP-7.1-2-01 Inbound error on tagged or Send: DDP header, length
//rfc:5040 RDMAP-7.1-3-01 Inbound error on ReadReq: the RDMA header, too
//rfc:5041 DDP-6.2.2-01 Fatal errors of LLP or header indicated to ULP
//rfc:5041 DDP-7.1-02 Report includes DDP header, type, segment length
func (rx *receiver) refuse(err error, h *ddp.Header, payloadLen int, read *rdmap.ReadRequest) {
	segmentLen := 0
	if h != nil {
		segmentLen = h.Len() + payloadLen
	}
	e := endTerminate(err, h, segmentLen, read)
	switch err {
	case ddp.ErrNoBuffer:
		if r := rx.q.srq(); r != nil && (h == nil || h.QN == rdmap.QNSend) {
			r.foundEmpty()
		}
	case errRecvSGE:
		e.blame(rx.recvFault())
	case errSinkSGE:
		e.blame(rx.sinkFault())
	case ddp.ErrTooLong:
		e.blame(rx.tooLong(h, payloadLen))
	case ddp.ErrBaseBounds:
		e.explain(rx.outOfBounds("Write", h.STag, h.TO, payloadLen))
	case rdmap.ErrReadBaseBounds:
		e.explain(rx.outOfBounds("Read", read.SourceSTag, read.SourceTO, int(read.Size)))
	}
	e.recvStatus = rx.recvStatus(err)
	e.event, e.raise = eventOf(err)
	if read := rx.s.outstanding.Front(); err == rdmap.ErrResponseLong && read.Cookie != rtrCookie {
		rx.q.failSend(uint32(read.Cookie), provider.WCLocLenErr)
	}
	rx.recv.End()
	rx.s.fail(e)
}

// recvFault says which SGE of the receive in progress can't be written, and why.
func (rx *receiver) recvFault() *provider.WorkError {
	w, sges, pd := rx.q.frontRecv()
	if w == nil {
		return nil
	}
	why := pd.SGEFault(sges, provider.AccessLocalWrite)
	if why == "" {
		return nil
	}
	return &provider.WorkError{Recv: true, WRID: w.wrid, Text: why}
}

// tooLong compares a message, of which h is the header of a segment, with the receive in progress.
func (rx *receiver) tooLong(h *ddp.Header, payloadLen int) *provider.WorkError {
	w, sges, _ := rx.q.frontRecv()
	if w == nil {
		return nil
	}
	var room uint64
	for i := range sges {
		room += uint64(sges[i].Length)
	}
	atLeast := "at least "
	if h.Last {
		atLeast = ""
	}
	return &provider.WorkError{Recv: true, WRID: w.wrid, Text: fmt.Sprintf(
		"which has room for %d bytes: the peer's message has %s%d", room, atLeast,
		uint64(h.MO)+uint64(payloadLen))}
}

// outOfBounds describes an access of the peer to n bytes, and the region that it names.
func (rx *receiver) outOfBounds(access string, stag uint32, to uint64, n int) string {
	why := fmt.Sprintf("the peer's %s of %d bytes at address %#x is not within rkey %#x", access, n, to, stag)
	if m := rx.s.dev.memory.Local(stag); m != nil {
		why += fmt.Sprintf(", which has %d bytes at address %#x", m.Len(), m.Addr())
		m.Release()
	}
	return why
}

// sinkFault returns the workFault of the oldest Read or atomic operation.
func (rx *receiver) sinkFault() *provider.WorkError {
	read := rx.s.outstanding.Front()
	if read == nil || read.Cookie == rtrCookie {
		return nil
	}
	return rx.q.workFault(uint32(read.Cookie))
}

// recvStatus returns the status of the receive in progress after a fault. It is WCSuccess, for a
// flush, if the fault concerned something else.
func (rx *receiver) recvStatus(err error) provider.WCStatus {
	switch err {
	case ddp.ErrTooLong:
		return provider.WCLocLenErr
	case errRecvSGE:
		return provider.WCLocProtErr
	case rdmap.ErrCannotInvalidate, rdmap.ErrMayNotInvalidate:
		return provider.WCRemInvReqErr
	}
	return provider.WCSuccess
}

// handleTerminate ends the stream because of the peer's Terminate. It is never answered.
//
//rfc:5040 RDMAP-5.4-04 Terminate delivered to RDMAP and to the ULP
//rfc:5040 RDMAP-6.2.1-02 After Terminate outstanding WRs complete in error
func (rx *receiver) handleTerminate(a *rdmap.Action, h *ddp.Header, payload []byte) {
	phase := rdmap.PhaseBeforeFirstFPDU
	if rx.s.tx.moved.Load() > 0 {
		phase = rdmap.PhaseAfterFirstFPDU
	}
	t, err := rdmap.ParseTerminate(payload, phase)
	if err != nil {
		rx.refuse(err, h, len(payload), nil)
		return
	}
	rx.recv.Commit(a)
	rx.blame(&t)
	rx.s.fail(&ending{cause: &provider.TerminateError{
		Remote: true,
		Layer:  uint8(t.Layer), EType: uint8(t.EType), ECode: uint8(t.Code),
		Text: terminateText(&t),
	}})
}

// endOfStream ends the stream at the peer's FIN. As with siw, only our side can half-close: what we
// still had to send is flushed.
//
//rfc:5041 DDP-3-07 Graceful stream/connection teardown is signalled
//rfc:5044 MPA-3-08 Indicate FIN/close to DDP
//rfc:5044 MPA-7.2-02 FIN indication up to DDP
func (rx *receiver) endOfStream() {
	rx.s.peerClosed()
	e := &ending{cause: errPeerClosed}
	switch {
	case rx.s.closing():
		e.cause = errDisconnected
	case rx.midFPDU():
		e.cause = errPeerCut
	}
	rx.s.fail(rx.s.tx.withError(e))
}

// connectionLost ends the stream when reading fails.
//
//rfc:5044 MPA-8-1-01 Detect TCP close/lost/RST/FIN/timeouts (code 1)
func (rx *receiver) connectionLost(err error) {
	rx.s.fail(rx.s.tx.withError(&ending{cause: fmt.Errorf("the TCP connection broke: %w", err), lost: true}))
}

// framingError ends the stream for a fault of the FPDU itself.
//
//rfc:5044 MPA-8-01 Codes reported to DDP/consumer
//rfc:5044 MPA-8-02 After an MPA error no further FPDU of that half is passed up
func (rx *receiver) framingError(err error) {
	var e *iwarp.Error
	if !errors.As(err, &e) {
		e = mpa.ErrULPDULength
	}
	if e == mpa.ErrCRC {
		rx.q.counters().crcErrors.Add(1)
	}
	rx.refuse(e, nil, 0, nil)
}

// terminateText returns the name of a Terminate's code, and the message that the peer refused.
func terminateText(t *rdmap.ReceivedTerminate) string {
	return fmt.Sprintf("%s (bytes % x, %s layout)%s", iwarp.CodeName(t.Layer, t.EType, t.Code), t.Raw,
		t.Layout, terminateAbout(t))
}

// terminateAbout describes the message of ours that the peer refused, as far as its Terminate shows
// it, and what to do.
func terminateAbout(t *rdmap.ReceivedTerminate) string {
	noHeader := t.Layer == iwarp.LayerDDP && t.EType == iwarp.DDPUntaggedBuffer && !t.HaveDDP
	about := aboutHeaders(&t.Terminate, t.HaveDDP, t.HaveRead)
	switch {
	case t.HaveDDP && t.DDP.Tagged && t.DDP.STag == 0 && !t.HaveRead:
		return ", about a Write to rkey 0, which names nothing; a SendWR without Opcode is a Write"
	case about != "":
	case t.Layer != iwarp.LayerLLP && t.EType == 0:
		return ", about memory of the peer's own: a receive, the sink of a Read, what it sends, or a " +
			"region over an object or file that failed"
	case noHeader && t.Code == iwarp.DDPUntaggedNoBuffer:
		about = aboutNoReceive
	case noHeader && t.Code == iwarp.DDPUntaggedMessageTooLong:
		about = aboutTooLong
	default:
		return ""
	}
	return about + terminateAdvice(t, about)
}

// terminateAdvice says what to do about a Terminate that terminateAbout describes with about.
func terminateAdvice(t *rdmap.ReceivedTerminate, about string) string {
	tagged := t.Layer == iwarp.LayerDDP && t.EType == iwarp.DDPTaggedBuffer
	access := t.Layer == iwarp.LayerRDMAP && t.EType == iwarp.RDMAPRemoteProtection
	switch {
	case tagged && t.Code == iwarp.DDPTaggedInvalidSTag:
		return "; the key is wrong or closed, or its region lacks AccessRemoteWrite"
	case access && t.Code == iwarp.RDMAPInvalidSTag:
		return "; the key is wrong or closed"
	case access && t.Code == iwarp.RDMAPAccessRights:
		return "; its region lacks AccessRemoteRead or AccessRemoteAtomic"
	case tagged && t.Code == iwarp.DDPTaggedBaseBounds, access && t.Code == iwarp.RDMAPBaseBounds:
		return "; stay within the peer's region"
	case about == aboutNoReceive:
		return "; the peer has to post receives earlier, or this side to send less at once"
	case about == aboutTooLong:
		return "; agree with the peer on the longest message"
	}
	return ""
}

// eventOf returns the asynchronous event for a fault in what the peer sent. siw raises the same
// events: an access error for memory that the peer may not use, and a fatal error for a message
// that does not fit its queue. It raises none for an unknown STag, a lack of receives, or faults
// that are found before the message is known.
func eventOf(err error) (provider.AsyncEventType, bool) {
	switch err {
	case ddp.ErrSTagNotAssociated, ddp.ErrTaggedAccess, ddp.ErrTOWrap, ddp.ErrBaseBounds,
		errRecvSGE, errSinkSGE,
		rdmap.ErrAtomicNotAssociated, rdmap.ErrAtomicAccess, rdmap.ErrAtomicTOWrap, rdmap.ErrAtomicBaseBounds:
		return provider.EventQPAccessErr, true
	case rdmap.ErrReadInvalidSTag, rdmap.ErrReadNotAssociated, rdmap.ErrReadAccess,
		rdmap.ErrReadTOWrap, rdmap.ErrReadBaseBounds,
		rdmap.ErrAtomicOp, rdmap.ErrAtomicAlignment:
		return provider.EventQPReqErr, true
	case ddp.ErrInvalidQN, ddp.ErrMSNRange, ddp.ErrInvalidMO, ddp.ErrTooLong, ddp.ErrMessageLength,
		ddp.ErrSTagChanged,
		rdmap.ErrResponseSTag, rdmap.ErrResponseTO, rdmap.ErrResponseLong, rdmap.ErrResponseEnd:
		return provider.EventQPFatal, true
	}
	return 0, false
}
