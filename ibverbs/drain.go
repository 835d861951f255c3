package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// marker is a work request that Drain posts after all others, or rdmacm.Dial before them. Its
// completion, recognised by QPN and WRID, is not for the user.
type marker struct {
	qp   *QP // a new QP may have the number of one that is being closed
	qpn  uint32
	wrid uint64
	done chan struct{}
	wc   WC    // valid once done is closed
	lost error // instead of wc: the marker will not complete
}

// result says how the marker ended. done is closed.
func (m *marker) result() error {
	if m.lost != nil {
		return m.lost
	}
	return m.wc.Err()
}

// Drain waits until everything that was posted to the send queue before is
// complete, unsignalled work included (compare ib_drain_sq of the kernel's
// verbs). The connection goes on. Nothing may be posted to the send queue in
// the meantime.
//
// The completions remain the program's: it may go on polling, and the next Poll returns those that
// Drain has taken. To learn when all is complete, Drain posts a zero-length RDMA Write of its own,
// which the peer's program doesn't see (RFC 5041 section 5.2: nothing is checked, nothing placed);
// for it the send CQ needs room for one completion more.
//
// The error is nil if all is complete, whatever its status; an [*Error] with a [*WCError] that is
// ErrFlushed if the connection ended first; [*PostError] if the QP is not
// connected, unless nothing was ever posted to it, or if it has no place for the
// marker and never will ([ErrNoneSignaled]); EOVERFLOW if the marker's completion found no room in
// the CQ, on the engine, which counts those; os.ErrClosed if the QP or the CQ is closed meanwhile;
// or when ctx ends an [*Error] that wraps ctx.Err(), and says if the work is
// held until the peer's first message. There is no C call for it.
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
		// The fence has the marker wait for RDMA Reads, too.
		placed, err = qp.mark(ctx, SendFence)
	}
	switch flushed := (*WCError)(nil); {
	case err != nil && ctx.Err() != nil: // the text is made only then
		err = object.GaveUp(ctx, "drain", qp.obj.Name(), err,
			"everything that was posted had completed"+qp.whyNotDrained(placed))
	case errors.As(err, &flushed):
		err = &Error{Op: "drain", Object: qp.obj.Name(), Err: &undrained{flushed, qp.Cause()}}
	}
	return err
}

// undrained says that the connection ended during Drain. The text leaves out the marker's WRID,
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

// Unwrap returns the [*WCError], and why the connection ended.
func (e *undrained) Unwrap() []error {
	if e.cause == nil {
		return []error{e.marker}
	}
	return []error{e.marker, e.cause}
}

// awaitReads waits for the Reads before the marker on a device where it may not wait in the queue.
func (qp *QP) awaitReads(ctx context.Context) error {
	reads, ok := qp.p.(provider.ReadCounter)
	if !ok || reads.ReadsUnderWay() == 0 {
		return nil
	}
	cq := qp.sendCQ
	m := cq.expect(qp) // is never posted; QP.Close ends it
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

// whyNotDrained says what Drain waits for, if that is known. placed says that its marker is posted.
func (qp *QP) whyNotDrained(placed bool) string {
	switch st, err := qp.Stats(); {
	case err == nil && st.HeldForPeer:
		return " (sends are held until the peer's first message: the side that dialled has to send first)"
	case !placed:
		return " (the send queue stays full: " + lostOrNotTaken + ")"
	case err != nil: // siw does not go on after it has lost completions
		return " (" + lostOrNotTaken + ")"
	}
	return ""
}

// openStream sends the empty RDMA Write that rdmacm.Dial opens a stream with, and waits until
// it is complete, so that its places in send queue and CQ are free for the program. For Drain
// nothing has been posted by it.
func (qp *QP) openStream(ctx context.Context) error {
	if err := qp.ok("ibv_post_send"); err != nil {
		return err
	}
	_, err := qp.mark(ctx, 0)
	return err
}

// mark posts an RDMA Write of length 0, whose completion Poll does not return, and waits for it.
// placed says that there was a place for it.
func (qp *QP) mark(ctx context.Context, flags SendFlags) (placed bool, err error) {
	cq := qp.sendCQ
	m := cq.expect(qp)
	wr := [1]SendWR{{WRID: m.wrid, Opcode: WRRDMAWrite, Flags: SendSignaled | flags}}

	pause := newBackoff()
	defer pause.stop()
	for {
		n, err := qp.p.PostSend(wr[:])
		if err == nil {
			break
		}
		err = &PostError{Posted: n, Err: err}
		if n > 0 {
			return true, err // siw took it all the same: it is sifted out when it comes
		}
		// A full queue has to make progress first, if it can.
		if !errors.Is(err, syscall.ENOMEM) || errors.Is(err, ErrNoneSignaled) {
			cq.release(m)
			return false, err
		}
		if err = cq.lookFor(m); err == nil {
			err = pause.wait(ctx, m.done)
		}
		if err != nil {
			cq.release(m)
			return false, err
		}
	}
	pause.reset()
	for {
		overflow := qp.overflow()
		if err := cq.lookFor(m); err != nil {
			return true, err
		}
		select {
		case <-m.done:
			return true, m.result()
		default:
		}
		if overflow != nil {
			cq.release(m)
			return true, overflow
		}
		if err := pause.wait(ctx, m.done); err != nil {
			return true, err // the marker is still sifted out when it comes
		}
	}
}

// overflow returns an error if the send CQ has lost completions and everything that was posted is
// complete: what is not in the CQ then is lost, and will not come.
func (qp *QP) overflow() error {
	cq, err := qp.sendCQ.Stats()
	if err != nil || cq.Lost == 0 {
		return nil // or the device does not count
	}
	if st, err := qp.Stats(); err != nil || st.SendsPosted > 0 {
		return nil // after an error the QP is being closed, which ends the marker
	}
	return qp.sendCQ.obj.Errorf("ibv_poll_cq", syscall.EOVERFLOW,
		"it has room for %d completions and has lost %s, that of Drain among them: make it larger",
		cq.CQE, object.Count(cq.Lost, "completion"))
}

// expect makes Poll look for a marker from now on. Taking the lock waits for
// the Polls that don't.
func (cq *CQ) expect(qp *QP) *marker {
	m := &marker{qp: qp, qpn: qp.QPN(), wrid: rand.Uint64(), done: make(chan struct{})}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.markers = append(cq.markers, m)
	cq.aside, cq.long = true, true
	return m
}

// release forgets a marker that was not posted.
func (cq *CQ) release(m *marker) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.markers = slices.DeleteFunc(cq.markers, func(x *marker) bool { return x == m })
	cq.settle()
}

// abandon ends the wait for the markers of a QP that is closed. Those that have
// completed are taken out of the CQ, so that Poll does not come across them.
func (cq *CQ) abandon(qp *QP) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if !slices.ContainsFunc(cq.markers, func(m *marker) bool { return m.qp == qp }) {
		return
	}
	_ = cq.setAside(nil) // a CQ that fails has nothing for Poll either
	cq.markers = slices.DeleteFunc(cq.markers, func(m *marker) bool {
		if m.qp != qp {
			return false
		}
		m.lost = &Error{Op: "drain", Object: fmt.Sprintf("qp %d", m.qpn), Err: os.ErrClosed}
		close(m.done)
		return true
	})
	cq.settle()
}

// lookFor polls the CQ for m, and keeps what is not a marker for Poll.
func (cq *CQ) lookFor(m *marker) error {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	defer cq.settle()
	return cq.setAside(m.done)
}

// setAside moves what is in the CQ to held, markers left out, until enough is
// closed or the CQ empty. The caller has cq.mu.
func (cq *CQ) setAside(enough <-chan struct{}) error {
	var wc [16]WC
	for {
		select {
		case <-enough:
			return nil
		default:
		}
		n, err := cq.p.Poll(wc[:])
		if err != nil || n == 0 {
			return cq.called(err)
		}
		cq.held = append(cq.held, wc[:cq.sift(wc[:n])]...)
	}
}

// pollAside is Poll while there are markers to find or completions held back.
func (cq *CQ) pollAside(wc []WC) (int, error) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	defer cq.settle()
	if len(cq.held) > 0 {
		n := copy(wc, cq.held)
		if cq.held = cq.held[n:]; len(cq.held) == 0 {
			cq.held = nil // and its memory
		}
		return n, nil
	}
	for {
		n, err := cq.p.Poll(wc)
		if err != nil || n == 0 {
			return n, cq.called(err)
		}
		// 0 would say that the CQ is empty. After markers only, there may be more.
		if n = cq.sift(wc[:n]); n > 0 {
			return n, nil
		}
	}
}

// sift takes the completions of markers out of wc and says how many are left.
func (cq *CQ) sift(wc []WC) int {
	return len(slices.DeleteFunc(wc, func(c WC) bool {
		for i, m := range cq.markers {
			if c.WRID == m.wrid && c.QPN == m.qpn {
				m.wc = c
				close(m.done)
				cq.markers = slices.Delete(cq.markers, i, i+1)
				return true
			}
		}
		return false
	}))
}

// settle lets Poll take the short way again if it can.
func (cq *CQ) settle() {
	cq.aside = len(cq.markers) > 0 || len(cq.held) > 0
	cq.long = cq.aside || cq.taken != nil
}

// backoff spaces out looks at a CQ that may have no channel: from 20 us to 1 ms.
type backoff struct {
	timer *time.Timer
	next  time.Duration
}

const (
	backoffMin = 20 * time.Microsecond
	backoffMax = time.Millisecond
)

func newBackoff() *backoff { return &backoff{time.NewTimer(backoffMin), backoffMin} }

func (b *backoff) reset() { b.next = backoffMin }
func (b *backoff) stop()  { b.timer.Stop() }

// wait sleeps, until early is closed at most.
func (b *backoff) wait(ctx context.Context, early <-chan struct{}) error {
	b.timer.Reset(b.next)
	b.next = min(2*b.next, backoffMax)
	select {
	case <-b.timer.C:
	case <-early:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
