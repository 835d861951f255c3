package rdmacm

import (
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// A full CQ loses completions, and a call must not wait for a lost one. A QP in ERR completes each
// work request at once, so a program that goes on posting can fill any CQ before the next poll.

// lossLook is how long a poll sleeps at most after a loss. Nothing else may wake it: not the end of
// unsignalled work, and not a call whose completions are lost and which has the places that the
// poller waits for.
const lossLook = 10 * time.Millisecond

// afterLoss handles lost completions. The holder of the token of lead calls it before a poll that
// may sleep. If the CQ has lost completions and all posted work is complete, afterLoss takes what
// is in the CQ. If the CQ was empty, any missing completion is lost. Then afterLoss ends the
// given-up calls whose completions are lost. If the caller also waits for completions, afterLoss
// returns an error. over means that the caller has to check again at once; soon means that it has
// to poll for at most lossLook.
func (r *router) afterLoss(waits bool) (over, soon bool, err error) {
	cq, err := r.c.sendCQ.Stats()
	if err != nil || cq.Lost == 0 {
		return false, false, nil // or the device does not count
	}
	gone := r.givenUp()
	if qp, err := r.c.qp.Stats(); err != nil || qp.SendsPosted > 0 {
		return false, true, nil // after an error of Stats QP and CQ are being closed
	}
	n, err := r.cq.Poll(r.wcs[:])
	r.handOut(r.wcs[:n])
	if n > 0 || err != nil {
		return true, false, err
	}
	r.endLost(gone)
	if !waits { // the caller waits for places of a call that does wait
		return false, true, nil
	}
	return true, false, object.Errorf("ibv_poll_cq", r.c.peer(), syscall.EOVERFLOW,
		"the send CQ has room for %d completions and has lost %s, among them this call's; post at most "+
			"Cap.MaxSendWR requests of your own at a time, and none after the end of the connection",
		cq.CQE, object.Count(cq.Lost, "completion"))
}

// givenUp returns the incomplete calls that no goroutine waits for.
func (r *router) givenUp() (calls []*call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.calls {
		if x.givenUp && x.left > 0 {
			calls = append(calls, x)
		}
	}
	return calls
}

// endLost frees the places of calls whose completions are lost.
func (r *router) endLost(calls []*call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range calls {
		x.left = 0
		r.release(x.places)
		r.free = append(r.free, x)
	}
}
