package rdmacm

import (
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// A full CQ loses completions, and a call whose completion is lost must not wait for it. A QP in
// ERR completes each work request at once, so a program that goes on posting can fill any CQ before
// somebody polls.

// lossLook is after how long one that polls looks again after a loss. Nothing else may wake it: not
// the end of unsignalled work, and not another call, whose completions are lost and which has the
// places that it waits for.
const lossLook = 10 * time.Millisecond

// afterLoss is called, by the one that has the token of lead, before a poll that may sleep. If
// the CQ has lost completions and everything that was posted is complete, it takes what is in the
// CQ. When that was all, a completion that has not come is lost: afterLoss ends the calls that were
// given up and whose completions are lost, and if the caller waits for one, too, it returns
// an error. over says that the caller has to look again at once, and soon after lossLook.
func (r *router) afterLoss(waits bool) (over, soon bool, err error) {
	cq, err := r.c.sendCQ.Stats()
	if err != nil || cq.Lost == 0 {
		return false, false, nil // or the device does not count
	}
	gone := r.givenUp()
	if qp, err := r.c.qp.Stats(); err != nil || qp.SendsPosted > 0 {
		return false, true, nil // after an error the QP is being closed, and the CQ will be
	}
	n, err := r.cq.Poll(r.wcs[:])
	r.handOut(r.wcs[:n])
	if n > 0 || err != nil {
		return true, false, err
	}
	r.endLost(gone)
	if !waits { // for completions, but for places, which one may have that does
		return false, true, nil
	}
	return true, false, object.Errorf("ibv_poll_cq", r.c.peer(), syscall.EOVERFLOW,
		"the send CQ has room for %d completions and has lost %s, of a call among others: "+
			"post less that nobody waits for, and nothing after the end of the connection",
		cq.CQE, object.Count(cq.Lost, "completion"))
}

// givenUp returns the calls that nobody waits for and that are not complete.
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

// endLost gives back the places of calls whose completions are lost.
func (r *router) endLost(calls []*call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range calls {
		x.left = 0
		r.release(x.places)
		r.free = append(r.free, x)
	}
}
