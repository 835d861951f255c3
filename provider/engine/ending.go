package engine

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

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
	errCloseTimeout = fmt.Errorf("the peer did not close its side in time, and the connection was reset: %w", os.ErrDeadlineExceeded)
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
