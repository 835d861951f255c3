package ibverbs

import (
	"context"
	"errors"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// Drain waits until all work that was posted to the send queue is complete, unsignalled work
// included (compare ib_drain_sq of the kernel's verbs). The connection goes on. Until Drain
// returns, nothing may be posted to the send queue.
//
// The completions still go to the program: it may go on polling, and Poll also returns the
// completions that Drain has taken. To learn when all work is complete, Drain posts its own
// zero-length RDMA Write, the marker. The peer's program does not see it: nothing is checked,
// nothing placed (RFC 5041 section 5.2). The send CQ needs room for its completion.
//
// If all work is complete, the error is nil, whatever the statuses. Other errors:
//
//   - An [*Error] with a [*WCError] that is ErrFlushed: the connection ended first.
//   - A [*PostError]: the QP is not connected (nil if nothing was ever posted), or its queue has no
//     place for the marker and never will ([ErrNoneSignaled]).
//   - EOVERFLOW: the marker's completion found no room in the CQ. Only the engine counts those.
//   - os.ErrClosed: the QP or the CQ was closed.
//   - An [*Error] that wraps ctx.Err(): ctx ended. It says so if the work is held until the peer's
//     first message.
//
// There is no C call for it.
func (qp *QP) Drain(ctx context.Context) error {
	if err := qp.ok("drain"); err != nil {
		return err
	}
	if err := qp.sendCQ.polled("drain"); err != nil {
		return err
	}
	if !qp.sent.Load() {
		return nil
	}
	placed, err := true, qp.awaitReads(ctx)
	if err == nil {
		// The fence makes the marker wait for RDMA Reads, too.
		placed, err = qp.mark(ctx, SendFence)
	}
	switch flushed := (*WCError)(nil); {
	case err != nil && ctx.Err() != nil: // check ctx first: the text costs calls of Stats
		err = object.GaveUp(ctx, "drain", qp.obj.Name(), err,
			"everything that was posted had completed"+qp.whyNotDrained(placed))
	case errors.As(err, &flushed):
		err = &Error{Op: "drain", Object: qp.obj.Name(), Err: &undrained{flushed, qp.Cause()}}
	}
	return err
}

// undrained is the error of a Drain whose connection ended. The text leaves out the marker's WRID,
// which the program does not know.
type undrained struct {
	marker *WCError
	cause  error // why the connection ended; nil if that is not known
}

// Error implements error.
func (e *undrained) Error() string {
	text := "the connection ended before everything that was posted had completed: " + e.marker.Status.String()
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

// Unwrap returns the [*WCError], and the cause of the connection's end if that is known.
func (e *undrained) Unwrap() []error {
	if e.cause == nil {
		return []error{e.marker}
	}
	return []error{e.marker, e.cause}
}

// awaitReads waits for outstanding Reads on a device where a queued work request that waits for
// them keeps the peer's Reads from being answered (provider.ReadCounter).
func (qp *QP) awaitReads(ctx context.Context) error {
	reads, ok := qp.p.(provider.ReadCounter)
	if !ok || reads.ReadsUnderWay() == 0 {
		return nil
	}
	cq := qp.sendCQ
	m := cq.expect(qp) // not posted; QP.Close closes its done
	defer cq.release(m)
	pause := newBackoff()
	defer pause.stop()
	for reads.ReadsUnderWay() > 0 {
		if err := cq.lookFor(m); err != nil {
			return err
		}
		select {
		case <-m.done:
			return m.result()
		default:
		}
		if err := pause.wait(ctx, m.done); err != nil {
			return err
		}
	}
	return nil
}

const lostOrNotTaken = "the peer does not take the data, or completions were lost in a full CQ, " +
	"which EventCQErr reports"

// whyNotDrained says what Drain waits for, "" if that is not known. placed reports whether the
// marker is posted.
func (qp *QP) whyNotDrained(placed bool) string {
	switch st, err := qp.Stats(); {
	case err == nil && st.HeldForPeer:
		return " (sends are held until the peer's first message: the side that dialled has to send first)"
	case !placed:
		return " (the send queue stays full: " + lostOrNotTaken + ")"
	case err != nil: // siw stops after it has lost completions
		return " (" + lostOrNotTaken + ")"
	}
	return ""
}
