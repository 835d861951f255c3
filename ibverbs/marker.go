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
)

// marker is an empty RDMA Write, whose completion Poll does not return: it shows that the send
// queue has come that far. QPN and WRID identify the completion.
type marker struct {
	qp   *QP // identifies the QP: a new one may reuse the number of one that is being closed
	qpn  uint32
	wrid uint64
	done chan struct{}
	wc   WC    // valid once done is closed
	lost error // instead of wc: the marker will not complete
}

// result returns the marker's error, nil if it succeeded. done must be closed.
func (m *marker) result() error {
	if m.lost != nil {
		return m.lost
	}
	return m.wc.Err()
}

// mark posts a marker and waits for its completion. placed reports whether the queue had a place
// for it. Drain does not count markers as posted work.
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
			return true, err // siw posted it nevertheless; its completion is still removed
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
			return true, err // the marker's completion is still removed when it comes
		}
	}
}

// overflow returns an error if the send CQ has lost completions and all posted work is complete.
// Then a completion that is not in the CQ is lost.
func (qp *QP) overflow() error {
	cq, err := qp.sendCQ.Stats()
	if err != nil || cq.Lost == 0 {
		return nil // none lost, or the device does not count
	}
	if st, err := qp.Stats(); err != nil || st.SendsPosted > 0 {
		return nil // after an error of Stats the QP is being closed, which ends the marker
	}
	return qp.sendCQ.obj.Errorf("ibv_poll_cq", syscall.EOVERFLOW,
		"it has room for %d completions and has lost %s, among them Drain's; make it larger",
		cq.CQE, object.Count(cq.Lost, "completion"))
}

// expect adds a marker, which Poll removes from now on. Taking the lock waits for running Polls
// that do not know the marker.
func (cq *CQ) expect(qp *QP) *marker {
	m := &marker{qp: qp, qpn: qp.QPN(), wrid: rand.Uint64(), done: make(chan struct{})}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.markers = append(cq.markers, m)
	cq.aside, cq.long = true, true
	return m
}

// release removes a marker that was not posted.
func (cq *CQ) release(m *marker) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.markers = slices.DeleteFunc(cq.markers, func(x *marker) bool { return x == m })
	cq.settle()
}

// abandon ends the wait for the markers of a closed QP. It removes markers that have completed from
// the CQ, so that Poll does not return them.
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

// lookFor polls the CQ for m. It keeps the completions of other work for Poll.
func (cq *CQ) lookFor(m *marker) error {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	defer cq.settle()
	return cq.setAside(m.done)
}

// setAside polls the CQ into held, without markers, until enough is closed or the CQ is empty. The
// caller holds cq.mu.
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

// pollAside implements Poll while there are markers to find or completions in held.
func (cq *CQ) pollAside(wc []WC) (int, error) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	defer cq.settle()
	if len(cq.held) > 0 {
		n := copy(wc, cq.held)
		if cq.held = cq.held[n:]; len(cq.held) == 0 {
			cq.held = nil // free its memory
		}
		return n, nil
	}
	for {
		n, err := cq.p.Poll(wc)
		if err != nil || n == 0 {
			return n, cq.called(err)
		}
		// Do not return 0, which means that the CQ is empty: there may be more after markers.
		if n = cq.sift(wc[:n]); n > 0 {
			return n, nil
		}
	}
}

// sift removes the completions of markers from wc and returns how many are left.
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

// settle recomputes aside and long after a change: without either, Poll polls the device directly.
func (cq *CQ) settle() {
	cq.aside = len(cq.markers) > 0 || len(cq.held) > 0
	cq.long = cq.aside || cq.taken != nil
}

// backoff is the delay between polls of a CQ that may have no channel: from 20 us to 1 ms.
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

// wait sleeps for the next delay, or until early is closed or ctx ends.
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
