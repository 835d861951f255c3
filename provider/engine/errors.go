package engine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Texts of failures that need more than the failing check has at hand. They are made after
// something has failed, so they may allocate.

// fullError says that a queue is full, and what frees places. It wraps ENOMEM.
type fullError struct {
	queue    string
	places   uint32
	silent   bool // all work requests are unsignalled
	awaiting bool // the peer's first message is awaited
}

// Error implements error.
func (e *fullError) Error() string {
	s := fmt.Sprintf("the %s queue is full: %d of %d work requests are outstanding", e.queue, e.places, e.places)
	if e.silent {
		s += ", all unsignalled"
	}
	switch {
	case e.awaiting:
		s += ", held until the peer's first message: the side that dialled has to send first"
	case e.queue != "send":
		s += "; a message of the peer takes one"
	case e.silent:
		s += "; places become free as the peer takes the data: signal every n-th and wait for its completion"
	default:
		s += "; poll the send CQ: a completion frees its place and those before it"
	}
	return s + ": " + syscall.ENOMEM.Error()
}

// Unwrap returns ENOMEM.
func (e *fullError) Unwrap() error { return syscall.ENOMEM }

// sendQueueFull returns the error of a full send queue. sq.mu is held. Programs fill queues on
// purpose, so a refusal must be cheap: long queues are not searched for a signalled work request.
func (q *qp) sendQueueFull(tail uint32) error {
	s := &q.sq
	e := &fullError{queue: "send", places: q.init.MaxSendWR}
	if st := q.stream.Load(); st != nil {
		e.awaiting = !st.maySend.Load()
	}
	if q.init.SQSigAll || e.places > 1024 {
		return e
	}
	e.silent = true
	for i := s.free.Load(); i != tail && e.silent; i++ {
		e.silent = s.at(i).flags&provider.SendSignaled == 0
	}
	return e
}

// tooMany returns EINVAL for n of something of which the QP was made to hold at most limit.
func tooMany(n int, what string, limit int, field string) error {
	return fmt.Errorf("%d %s, and the queue pair was made for %d (QPCap.%s): %w", n, what, limit, field, syscall.EINVAL)
}

// outside returns EINVAL for a value that must be from low to high.
func outside(name string, value, low, high int) error {
	return fmt.Errorf("%s is %d, and must be from %d to %d: %w", name, value, low, high, syscall.EINVAL)
}

// checkCap checks the sizes of a new QP.
func checkCap(c *provider.QPCap) error {
	for _, size := range []struct {
		name             string
		value, low, high int
	}{
		{"MaxSendWR", c.MaxSendWR, 1, maxQPWR}, // siw has no QP without a send queue either
		{"MaxRecvWR", c.MaxRecvWR, 0, maxQPWR},
		{"MaxSendSGE", c.MaxSendSGE, 0, maxSGE},
		{"MaxRecvSGE", c.MaxRecvSGE, 0, maxSGE},
		{"MaxInlineData", c.MaxInlineData, 0, maxInline},
	} {
		if size.value < size.low || size.value > size.high {
			return outside(size.name, size.value, size.low, size.high)
		}
	}
	return nil
}

// notConnected returns EINVAL for a post to the send queue of a QP in state.
func notConnected(state provider.QPState) error {
	if state == provider.QPSQD {
		return fmt.Errorf("this side is ending the connection, the queue pair is in %s; "+
			"post before Shutdown or Disconnect: %w", state, syscall.EINVAL)
	}
	return fmt.Errorf("not connected, the queue pair is in %s; post after Dial or Accept has returned: %w", state, syscall.EINVAL)
}

// terminateText returns the name of a Terminate's code, and the message that the peer refused.
func terminateText(t *rdmap.ReceivedTerminate) string {
	return fmt.Sprintf("%s (bytes % x, %s layout)%s", iwarp.CodeName(t.Layer, t.EType, t.Code), t.Raw,
		t.Layout, terminateAbout(t))
}

// terminateAbout describes the message of ours that the peer refused, as far as its Terminate shows
// it.
func terminateAbout(t *rdmap.ReceivedTerminate) string {
	noHeader := t.Layer == iwarp.LayerDDP && t.EType == iwarp.DDPUntaggedBuffer && !t.HaveDDP
	switch about := aboutHeaders(&t.Terminate, t.HaveDDP, t.HaveRead); {
	case t.HaveDDP && t.DDP.Tagged && t.DDP.STag == 0 && !t.HaveRead:
		return ", about a Write to rkey 0, which names nothing; a SendWR without Opcode is a Write"
	case t.Layer == iwarp.LayerDDP && t.EType == iwarp.DDPTaggedBuffer &&
		t.Code == iwarp.DDPTaggedInvalidSTag && about != "":
		return about + "; the key is wrong or closed, or its region lacks AccessRemoteWrite"
	case about != "":
		return about
	case t.Layer != iwarp.LayerLLP && t.EType == 0:
		return ", about memory of the peer's own: a receive, the sink of a Read, what it sends, or a " +
			"region over an object or file that failed"
	case noHeader && t.Code == iwarp.DDPUntaggedNoBuffer:
		return ", about a Send for which there was no receive"
	case noHeader && t.Code == iwarp.DDPUntaggedMessageTooLong:
		return ", about a Send that is longer than the receive for it"
	}
	return ""
}

// aboutHeaders says what the headers in a Terminate show of the message that it is about, in the
// same words at both ends.
func aboutHeaders(t *rdmap.Terminate, haveDDP, haveRead bool) string {
	h := &t.DDP
	op := rdmap.ParseControl(h.ULPCtl).Opcode
	switch untagged := t.Layer == iwarp.LayerDDP && t.EType == iwarp.DDPUntaggedBuffer; {
	case haveRead:
		return fmt.Sprintf(", about a Read of %d bytes from rkey %#x, address %#x",
			t.Read.Size, t.Read.SourceSTag, t.Read.SourceTO)
	case !haveDDP:
		return ""
	case h.Tagged && op == rdmap.OpReadResponse:
		return fmt.Sprintf(", about a Read Response to STag %#x, address %#x", h.STag, h.TO)
	case h.Tagged:
		return fmt.Sprintf(", about a Write to rkey %#x, address %#x", h.STag, h.TO)
	case h.QN == rdmap.QNReadRequest && op == rdmap.OpReadRequest:
		return ", about a Read"
	case h.QN == rdmap.QNReadRequest && op == rdmap.OpAtomicRequest:
		return ", about an atomic operation"
	case h.QN == rdmap.QNReadRequest:
		return ", about a Read or an atomic operation"
	case h.QN != rdmap.QNSend:
		return ""
	case untagged && t.Code == iwarp.DDPUntaggedNoBuffer:
		return ", about a Send for which there was no receive"
	case untagged && t.Code == iwarp.DDPUntaggedMessageTooLong:
		return ", about a Send that is longer than the receive for it"
	case t.Code == iwarp.RDMAPCannotInvalidate && op.Invalidates():
		return fmt.Sprintf(", about a Send that invalidates rkey %#x", h.ULP32)
	}
	return ""
}

// ending is why and how a stream ends.
type ending struct {
	cause error // for QP.Cause

	terminate []byte // payload of the Terminate to send, nil for none
	reset     bool   // RST instead of FIN
	lost      bool   // the connection is lost

	event      provider.AsyncEventType // to raise, if raise
	raise      bool
	recvStatus provider.WCStatus // status of the receive in progress, WCSuccess for a flush
}

// Faults of this side, about which the peer is sent a Terminate.
var (
	errLocalWork        = rdmap.LocalCatastrophe("a work request names memory that it may not use")
	errLocalCatastrophe = rdmap.LocalCatastrophe("the application ended the stream")
)

// ownEnd is the cause of an end that this side has made. It is os.ErrClosed for errors.Is, but has
// a text of its own, because the text of os.ErrClosed is about files.
type ownEnd string

func (e ownEnd) Error() string { return string(e) }

// Is implements the protocol of errors.Is.
func (e ownEnd) Is(target error) bool { return target == os.ErrClosed }

// Ends that this side made.
const (
	errModified     ownEnd = "this side moved the queue pair to IBV_QPS_ERR"
	errDisconnected ownEnd = "this side disconnected"
	errDestroyed    ownEnd = "this side closed the queue pair"
	errIDDestroyed  ownEnd = "this side closed the CM id of the connection"
)

// Other ends without a Terminate.
var (
	errPeerClosed   = fmt.Errorf("the peer closed the connection: %w", io.EOF)
	errPeerCut      = fmt.Errorf("the peer closed the connection inside an FPDU: %w", io.ErrUnexpectedEOF)
	errCloseTimeout = fmt.Errorf("the peer did not close its side in time, and the connection was "+
		"reset: %w", os.ErrDeadlineExceeded)
)

// endTerminate makes the ending of a stream with a Terminate to the peer about err, which is an
// *iwarp.Error. The arguments are those of rdmap.NewTerminate. It runs once per stream and
// allocates.
func endTerminate(err error, seg *ddp.Header, segmentLen int, read *rdmap.ReadRequest) *ending {
	var e *iwarp.Error
	if !errors.As(err, &e) {
		panic("engine: a protocol error without a code: " + err.Error())
	}
	t := rdmap.NewTerminate(e, seg, segmentLen, read)
	return &ending{
		cause: &provider.TerminateError{
			Layer: uint8(e.Layer), EType: uint8(e.EType), ECode: uint8(e.Code),
			Text: iwarp.CodeName(e.Layer, e.EType, e.Code) + ": " + e.Reason + aboutHeaders(&t, t.D, t.R),
		},
		terminate: t.AppendTo(nil),
	}
}

// explain replaces the text of a Terminate that we send by why, unless that is empty.
func (e *ending) explain(why string) {
	var t *provider.TerminateError
	if why != "" && errors.As(e.cause, &t) {
		t.Text = iwarp.CodeName(iwarp.Layer(t.Layer), iwarp.EType(t.EType), iwarp.Code(t.ECode)) + ": " + why
	}
}

// because records which error of ours caused an ending by Terminate.
func (e *ending) because(err error) *ending {
	t, is := e.cause.(*provider.TerminateError)
	if !is {
		return e
	}
	if w, is := t.Err.(*provider.WorkError); is {
		w.Err = err
	} else {
		t.Err = err
	}
	return e
}

// blame records the work request at fault as the reason of a Terminate that we send, unless it is
// nil.
func (e *ending) blame(w *provider.WorkError) {
	var t *provider.TerminateError
	if w != nil && errors.As(e.cause, &t) {
		t.Text = iwarp.CodeName(iwarp.Layer(t.Layer), iwarp.EType(t.EType), iwarp.Code(t.ECode))
		t.Err = w
	}
}

// errRecvSGE is DDP's local catastrophic error for a receive whose SGEs name memory that may not be
// written. errSinkSGE is the same error for the sink of a Read.
var (
	errRecvSGE = &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPLocalCatastrophic,
		Reason: "a receive names memory that may not be written"}
	errSinkSGE = &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPLocalCatastrophic,
		Reason: "the sink of a Read may not be written any more"}
)

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
