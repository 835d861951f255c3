package model

import (
	"errors"
	"fmt"
	"slices"

	"github.com/govs-rdma/govs/ibverbs"
)

// The ways in which a connection ends. siw's changes to SQD and SQE are as its
// kernel-note says (siw-modify-qp.md), with nothing more than that to be sure of.
var (
	engineEnds = []string{"disconnect", "disconnect", "shutdown", "shutdown", "SQD", "SQE", "ERR", "close"}
	kernelEnds = []string{"disconnect", "shutdown", "ERR", "close"}
)

func (r *run) stepEnd(d *dice) {
	c := r.live(d)
	if c == nil {
		return
	}
	l := c.lanes[d.pick(2)]
	ways := engineEnds
	if l.s.kernel {
		ways = kernelEnds
	}
	r.end(d, c, l, one(d, ways))
}

// stepReset has the network break.
func (r *run) stepReset(d *dice) {
	if r.w.reset == nil || len(r.conns) == 0 {
		return
	}
	for _, c := range r.conns {
		r.prepareEnd(c)
	}
	r.note("the network resets %d connections", len(r.conns))
	for _, c := range r.conns {
		c.ending = true
	}
	r.w.reset(true)
	for _, c := range r.conns { // something has to move
		wr := ibverbs.SendWR{WRID: r.poke(c.lanes[0]), Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled}
		r.need("posting a Write of nothing", c.lanes[0].qp.PostSend(wr))
	}
	for len(r.conns) > 0 {
		r.over(d, r.conns[0], nil)
	}
	r.w.reset(false)
}

// poke enters a Write of nothing.
func (r *run) poke(l *lane) uint64 {
	j := &job{id: r.newID(), l: l, op: ibverbs.WRRDMAWrite, wcop: ibverbs.WCRDMAWrite, signalled: true}
	r.enter(j)
	return j.id
}

// prepareEnd sees to it that the end leaves no doubt about what an SRQ holds: a
// message that was sent and has not arrived may have taken a receive or not.
func (r *run) prepareEnd(c *conn) {
	for _, l := range c.lanes {
		if l.sh != nil && len(l.rq) > 0 {
			r.settle()
			return
		}
	}
}

// end ends a connection from the end l.
func (r *run) end(d *dice, c *conn, l *lane, how string) {
	r.prepareEnd(c)
	r.note("connection %d: side %d ends it (%s), with %d and %d posted to send", c.n, l.s.e, how, len(l.sq), len(l.peer().sq))
	c.ending = true
	// What the engine was given before it is asked to end in order is done and
	// arrives; siw makes no such promise, and of the peer's work nobody knows.
	l.faithful = (c.heard || l == c.active) && !l.s.kernel && !l.peer().s.kernel && slices.Contains([]string{"disconnect", "shutdown", "SQD"}, how)
	l.sendQ.unsure = true       // the drain's own completion
	for _, l := range c.lanes { // what completes and goes with a QP that is closed
		if how == "close" || l.s.kernel {
			l.sendQ.unsure, l.recvQ.unsure = true, true
		}
	}
	ctx, cancel := r.timeout()
	defer cancel()
	state := func(s ibverbs.QPState) error {
		return l.qp.Modify(ibverbs.QPAttr{State: s}, ibverbs.QPAttrState)
	}
	var err error
	var closed *lane
	notify := false
	switch how {
	case "disconnect":
		err = l.rc.Disconnect()
	case "shutdown":
		err = l.rc.Shutdown(ctx)
	case "SQD":
		notify = d.oneIn(2)
		err = l.qp.Modify(ibverbs.QPAttr{State: ibverbs.QPSQD, EnSQDAsyncNotify: notify}, ibverbs.QPAttrState|ibverbs.QPAttrEnSQDNotify)
	case "SQE":
		err = state(ibverbs.QPSQE)
		r.faults = true
	case "ERR":
		err = state(ibverbs.QPErr)
	case "close":
		closed = l
		l.closed = true
		err = l.rc.Close()
	}
	r.need(how, err)
	if notify && l.faithful {
		r.events(l.s, func() bool { return l.drained })
		r.seen("SQ drained")
	}
	r.over(d, c, closed)
}

// over waits for the end of a connection, takes all completions that it gives and
// closes it. closed is the end that is closed already.
func (r *run) over(d *dice, c *conn, closed *lane) {
	ctx, cancel := r.timeout()
	defer cancel()
	for _, l := range c.lanes {
		if l != closed {
			r.need(fmt.Sprintf("connection %d, side %d: waiting for the end", c.n, l.s.e), l.rc.Wait(ctx))
		}
	}
	r.until(fmt.Sprintf("the end of connection %d", c.n), func() bool {
		for _, l := range c.lanes {
			if l != closed && (l.pending() || len(l.rq) > 0) {
				return false
			}
		}
		return true
	})
	for _, l := range c.lanes {
		if l != closed {
			r.afterEnd(d, l)
		}
	}
	if closed != nil { // what completed before it was closed
		for r.poll(closed.sendQ, 8)+r.poll(closed.recvQ, 8) > 0 {
		}
	}
	for _, l := range c.lanes {
		r.forget(l)
	}
	for i := range r.conns {
		if r.conns[i] == c {
			r.conns = append(r.conns[:i], r.conns[i+1:]...)
			break
		}
	}
	for _, l := range c.lanes {
		r.need("closing a connection", l.rc.Close())
		l.sendQ.lanes--
		l.recvQ.lanes--
		if l.sh != nil {
			l.sh.lanes--
		}
	}
	r.parted(c)
}

// pending reports whether work is posted that has to complete.
func (l *lane) pending() bool {
	return slices.ContainsFunc(l.sq, func(j *job) bool { return j.signalled && !j.done && !j.vanishes() })
}

// vanishes reports whether a job may go without a completion at the end: siw's Reads that
// are not answered yet when its own program disconnects (kernel-notes/siw-no-flush.md).
func (j *job) vanishes() bool { return j.l.s.kernel && j.answered && j.l.c.ending }

// afterEnd posts to both queues of an end whose connection is over: all of it is
// flushed, behind everything that was posted before.
func (r *run) afterEnd(d *dice, l *lane) {
	last := &job{id: r.newID(), l: l, op: ibverbs.WRSend, signalled: d.oneIn(2)}
	wr := ibverbs.SendWR{WRID: last.id, Opcode: last.op}
	if last.signalled {
		wr.Flags = ibverbs.SendSignaled
	}
	last.may = []ibverbs.WCStatus{ibverbs.WCWRFlushErr}
	r.enter(last)
	last.signalled = true // it fails, so that it completes either way
	r.need("posting to a QP in ERR", l.qp.PostSend(wr))
	if l.sh == nil {
		rc := &receipt{id: r.newID()}
		r.receipts[rc.id] = rc
		r.queueReceive(l, rc)
		r.need("posting a receive to a QP in ERR", l.qp.PostRecv(ibverbs.RecvWR{WRID: rc.id}))
	}
	r.until(fmt.Sprintf("connection %d, side %d: work posted after the end", l.c.n, l.s.e), func() bool {
		return !l.pending() && len(l.rq) == 0
	})
	if !l.failed {
		r.fail("connection %d, side %d: work posted after the end did not fail", l.c.n, l.s.e)
	}
}

// forget gives up what is left of an end: work without a completion, and memory of
// which nobody knows.
func (r *run) forget(l *lane) {
	for _, j := range l.sq { // unsignalled and not flushed, or of an end that was closed
		if l.faithful {
			r.fail("%s: no completion, and no later one", r.name(j))
		}
		l.sendQ.load--
		j.done = true
		r.lose(j)
	}
	for _, j := range l.unplaced {
		if l.faithful {
			for _, u := range j.remote {
				u.done(r.name(j))
			}
		}
		r.lose(j)
	}
	for _, rc := range l.rq {
		l.recvQ.load--
		rc.done = true
		r.loseReceive(rc)
	}
	l.sq, l.unplaced, l.rq = nil, nil, nil
}

func (r *run) lose(j *job) {
	j.change.lost()
	for _, u := range slices.Concat(j.local, j.remote) {
		u.lost(r.name(j))
	}
}

func (r *run) loseReceive(rc *receipt) {
	rc.change.lost()
	for _, u := range rc.uses {
		u.lost(fmt.Sprintf("receive %d", rc.id))
	}
}

// sendFailed checks the completion of work that did not succeed.
func (r *run) sendFailed(j *job, wc *ibverbs.WC) {
	l := j.l
	may := []ibverbs.WCStatus{ibverbs.WCWRFlushErr}
	if j.may != nil && (!l.failed || !j.first) {
		may = j.may
	}
	if l.s.kernel { // kernel-notes/siw-error-reports.md
		may = append(slices.Clone(may), ibverbs.WCLocQPOpErr, ibverbs.WCGeneralErr, ibverbs.WCWRFlushErr)
	}
	switch {
	case !l.c.ending:
		r.fail("%s: %s (%v), and nothing is wrong", r.name(j), wc.Status, l.qp.Cause())
	case l.faithful && j.may == nil:
		r.fail("%s: %s (%v), though it was posted before an orderly end", r.name(j), wc.Status, l.qp.Cause())
	case !slices.Contains(may, wc.Status):
		r.fail("%s: %s (%v), want %v", r.name(j), wc.Status, l.qp.Cause(), may)
	case (wc.Status == ibverbs.WCWRFlushErr) != errors.Is(wc.Err(), ibverbs.ErrFlushed):
		r.fail("%s: %s is %v", r.name(j), wc.Status, wc.Err())
	}
	l.failed = true
	for _, before := range l.sq {
		if before == j {
			break
		}
		if before.vanishes() {
			continue
		}
		if before.signalled {
			r.fail("%s fails before work %d", r.name(j), before.id)
		}
		l.sendQ.load-- // it has succeeded without a word
		r.gone(before)
	}
	r.gone(j)
	l.prune()
}

// gone ends a job of which nobody knows whether it was done. Our own end does no more
// of it; the peer may until it has ended, too.
func (r *run) gone(j *job) {
	j.done = true
	j.change.lost()
	for _, u := range j.local {
		u.lost(r.name(j))
	}
	if j.answered && len(j.remote) > 0 {
		j.l.unplaced = append(j.l.unplaced, j)
	}
}

// receiveFailed checks the completion of a receive that did not succeed.
func (r *run) receiveFailed(rc *receipt, wc *ibverbs.WC) {
	l := rc.l
	may := []ibverbs.WCStatus{ibverbs.WCWRFlushErr}
	if !l.recvFailed && rc.may != nil {
		may = rc.may
		if l.s.kernel { // kernel-notes/siw-error-reports.md
			may = append(slices.Clone(may), ibverbs.WCGeneralErr)
		}
	}
	what := fmt.Sprintf("connection %d, side %d, receive %d", l.c.n, l.s.e, rc.id)
	switch {
	case !l.c.ending:
		r.fail("%s: %s (%v), and nothing is wrong", what, wc.Status, l.qp.Cause())
	case rc.from != nil && rc.from.l.faithful:
		r.fail("%s: %s (%v), though its message was sent before an orderly end", what, wc.Status, l.qp.Cause())
	case !slices.Contains(may, wc.Status):
		r.fail("%s: %s (%v), want %v", what, wc.Status, l.qp.Cause(), may)
	}
	l.recvFailed = true
	r.loseReceive(rc)
}
