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

	ulpdu []byte // Terminate to send, nil for none
	reset bool   // RST instead of FIN
	lost  bool   // there is no connection any more

	event      provider.AsyncEventType // to raise, if raise
	raise      bool
	recvStatus provider.WCStatus // of the receive in progress, WCSuccess for a flush
}

// Faults of this side for which the peer is sent a Terminate.
var (
	errLocalWork        = rdmap.LocalCatastrophe("a work request names memory that it may not use")
	errLocalCatastrophe = rdmap.LocalCatastrophe("the application ended the stream")
)

// ownEnd is the cause of an end that this side has made. It is os.ErrClosed for errors.Is, and does
// not have the text of that, which is about files.
type ownEnd string

func (e ownEnd) Error() string { return string(e) }

// Is implements the protocol of errors.Is.
func (e ownEnd) Is(target error) bool { return target == os.ErrClosed }

// Ends that this side has made.
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

// endTerminate makes the end of a stream with a Terminate to the peer about err,
// which is an *iwarp.Error: as rdmap.NewTerminate. It runs once per stream and
// allocates.
func endTerminate(err error, seg *ddp.Header, segmentLen int, read *rdmap.ReadRequest, rdmac bool) *ending {
	var e *iwarp.Error
	if !errors.As(err, &e) {
		panic("engine: a protocol error without a code: " + err.Error())
	}
	t := rdmap.NewTerminate(e, seg, segmentLen, read)
	h := rdmap.TerminateHeader()
	if rdmac {
		rdmap.SetRDMAC(&h)
	}
	return &ending{
		cause: &provider.TerminateError{
			Layer: uint8(e.Layer), EType: uint8(e.EType), ECode: uint8(e.Code),
			Text: iwarp.CodeName(e.Layer, e.EType, e.Code) + ": " + e.Reason + aboutHeaders(&t, t.D, t.R),
		},
		ulpdu: t.AppendTo(h.AppendTo(nil)),
	}
}

// explain replaces what a Terminate of ours says was wrong by why, unless it is "".
func (e *ending) explain(why string) {
	var t *provider.TerminateError
	if why != "" && errors.As(e.cause, &t) {
		t.Text = iwarp.CodeName(iwarp.Layer(t.Layer), iwarp.EType(t.EType), iwarp.Code(t.ECode)) + ": " + why
	}
}

// because notes in an ending by Terminate what of ours has failed.
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

// blame replaces what a Terminate of ours says was wrong by the work request that was, unless that
// is nil.
func (e *ending) blame(w *provider.WorkError) {
	var t *provider.TerminateError
	if w != nil && errors.As(e.cause, &t) {
		t.Text = iwarp.CodeName(iwarp.Layer(t.Layer), iwarp.EType(t.EType), iwarp.Code(t.ECode))
		t.Err = w
	}
}

// errRecvSGE is DDP's local catastrophic error for a receive whose SGEs name
// memory that may not be written, errSinkSGE the same for the sink of a Read.
var (
	errRecvSGE = &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPLocalCatastrophic,
		Reason: "a receive names memory that may not be written"}
	errSinkSGE = &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPLocalCatastrophic,
		Reason: "the sink of a Read may not be written any more"}
)

// eventOf is the asynchronous event for a fault in what the peer sent. siw raises
// the same ones: an access error for memory that the peer may not use, a fatal
// one for a message that does not fit its queue, none for an unknown STag, for
// a lack of receives and for the faults that are found before the message is
// known.
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
