package model

import (
	"context"
	"errors"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// queue is a CQ. Its channel is either for PollWait, or for ReqNotify and Next, whose
// events the model counts.
type queue struct {
	s     *side
	cq    *ibverbs.CQ
	ch    *ibverbs.CompChannel
	waits bool // for PollWait
	lanes int  // that complete to it, each queue of one counted
	load  int  // work that may still give a completion, or has given one

	armed     bool
	solicited bool // only for those
	fired     bool // a completion came that an event is for
	unsure    bool // one may have come that the model doesn't see
}

// reserve is what is kept free of a CQ for each queue on it: for what settles it, and
// for a drain.
const reserve = 2

func (q *queue) room() int { return q.cq.CQE() - q.load - reserve*q.lanes }

// job is a work request of a send queue, from its post until nothing of it is on its
// way any more.
type job struct {
	id        uint64
	l         *lane
	op        ibverbs.WROpcode
	wcop      ibverbs.WCOpcode
	n         int
	signalled bool
	fence     bool
	answered  bool // it is a Read or an atomic operation
	local     []*use
	remote    []*use
	took      *receipt           // of the peer, for a message
	change    *change            // of a window or region of ours
	done      bool               // locally
	placed    bool               // what it wrote at the peer
	may       []ibverbs.WCStatus // how it may fail, if not by a flush
	never     bool               // it can't succeed
	first     bool               // nothing before it fails
}

// receipt is a receive that is posted.
type receipt struct {
	id     uint64
	l      *lane   // whose queue it is in, or which took it
	sh     *shared // the SRQ it was posted to
	turn   int     // among those that were taken from it
	uses   []*use
	change *change // of what its message invalidates
	length int
	from   *job // the message for it
	want   ibverbs.WC
	solic  bool
	done   bool
	may    []ibverbs.WCStatus
}

// lane is one end of a connection.
type lane struct {
	c        *conn
	s        *side
	d        *domain
	rc       *rdmacm.Conn
	qp       *ibverbs.QP
	cap      ibverbs.QPCap
	sigAll   bool
	last     ibverbs.WROpcode // posted
	sq       []*job           // posted and not known to be done, in order
	unplaced []*job           // Writes that may not have arrived
	rq       []*receipt       // posted and not complete, in order; with an SRQ those taken
	sh       *shared
	sendQ    *queue
	recvQ    *queue
	ord      int // Reads and atomic operations at a time; 0 for none ever

	failed     bool // a completion said that the connection is over
	recvFailed bool
	faithful   bool // at the end: everything in sq has to succeed
	closed     bool
	drained    bool // an event has told
}

func (l *lane) peer() *lane {
	if l.c.lanes[0] == l {
		return l.c.lanes[1]
	}
	return l.c.lanes[0]
}

// places are free places in the send queue, one kept back.
func (l *lane) places() int { return l.cap.MaxSendWR - len(l.sq) - 1 }

// conn is a connection.
type conn struct {
	n      int
	lanes  [2]*lane // by side
	active *lane    // the one that dialled
	heard  bool     // the other one has certainly received something, and so may send
	ending bool
}

func (r *run) newID() uint64 { r.lastID++; return r.lastID }

// poll takes up to n completions and checks each.
func (r *run) poll(q *queue, n int) int {
	wc := make([]ibverbs.WC, n)
	got, err := q.cq.Poll(wc)
	r.need("polling", err)
	for i := range wc[:got] {
		r.completion(q, &wc[i])
	}
	return got
}

// completion checks a completion against what is posted.
func (r *run) completion(q *queue, wc *ibverbs.WC) {
	q.load--
	if wc.Status != ibverbs.WCSuccess || !q.solicited {
		q.fired = true
	}
	if j := r.jobs[wc.WRID]; j != nil && j.l.sendQ == q {
		r.sent(j, wc)
		return
	}
	if rc := r.receipts[wc.WRID]; rc != nil && rc.l != nil && rc.l.recvQ == q {
		r.received(rc, wc)
		return
	}
	r.fail("side %d: a completion of nothing: %+v", q.s.e, *wc)
}

func (r *run) sent(j *job, wc *ibverbs.WC) {
	l := j.l
	if j.done && j.vanishes() {
		q := l.sendQ
		q.load++ // it was given up
		return
	}
	if j.done {
		r.fail("connection %d, side %d: work %d completes though it is done: %+v", l.c.n, l.s.e, j.id, *wc)
	}
	if wc.QPN != l.qp.QPN() {
		r.fail("work %d: a completion of QP %d, want %d", j.id, wc.QPN, l.qp.QPN())
	}
	if wc.Status != ibverbs.WCSuccess {
		r.sendFailed(j, wc)
		return
	}
	if !j.signalled || l.failed {
		r.fail("connection %d, side %d: work %d (signalled %v) succeeds, after a failure %v", l.c.n, l.s.e, j.id, j.signalled, l.failed)
	}
	if j.never {
		r.fail("%s succeeds, and can't", r.name(j))
	}
	if wc.Opcode != j.wcop || j.answered && int(wc.ByteLen) != j.n || wc.Flags != 0 {
		r.fail("connection %d, side %d: work %d: %+v, want opcode %s and %d bytes", l.c.n, l.s.e, j.id, *wc, j.wcop, j.n)
	}
	for _, before := range l.sq {
		if before == j {
			break
		}
		early := l.s.kernel && before.answered && !j.answered && !j.fence // kernel-notes/siw-completion-order.md
		switch {
		case early:
		case before.signalled:
			r.fail("connection %d, side %d: work %d completes before %d", l.c.n, l.s.e, j.id, before.id)
		default:
			r.finished(before)
			l.sendQ.load--
		}
	}
	r.finished(j)
	l.prune()
	l.c.heard = l.c.heard || l != l.c.active && !memoryOnly(j.op) || j.answered
}

// finished says that a job is locally done: its memory is the program's again, and if
// it was answered, all that was written before it is in place.
func (r *run) finished(j *job) {
	j.done = true
	j.change.known()
	for _, u := range j.local {
		u.done(r.name(j))
	}
	if j.answered {
		for _, u := range j.remote {
			u.done(r.name(j))
		}
		r.placed(j.l, j.id)
	}
}

// placed says that all Writes of l up to work id are in the peer's memory, and that what
// stands before them in the send queue has had its turn. A change after a Read that is not
// answered is not certain yet: if the connection ends before the answer, the change is
// flushed and undone. So is what stands after work that has failed.
func (r *run) placed(l *lane, id uint64) {
	for _, j := range l.sq {
		if j.id > id || j.answered && !j.done || l.failed {
			break
		}
		j.change.known()
	}
	rest := l.unplaced[:0]
	for _, j := range l.unplaced {
		if j.id > id {
			rest = append(rest, j)
			continue
		}
		j.placed = true
		for _, u := range j.remote {
			u.done(r.name(j))
		}
	}
	l.unplaced = rest
}

// prune forgets jobs that are done.
func (l *lane) prune() {
	rest := l.sq[:0]
	for _, j := range l.sq {
		if !j.done {
			rest = append(rest, j)
		}
	}
	l.sq = rest
}

func (r *run) received(rc *receipt, wc *ibverbs.WC) {
	l := rc.l
	if rc.done {
		r.fail("connection %d, side %d: receive %d completes twice: %+v", l.c.n, l.s.e, rc.id, *wc)
	}
	if wc.QPN != l.qp.QPN() || l.rq[0] != rc {
		r.fail("connection %d, side %d: receive %d completes out of turn: %+v, want %d", l.c.n, l.s.e, rc.id, *wc, l.rq[0].id)
	}
	l.rq = l.rq[1:]
	rc.done = true
	if rc.sh != nil {
		rc.sh.tookAtLast(rc)
	}
	if wc.Status != ibverbs.WCSuccess {
		r.receiveFailed(rc, wc)
		return
	}
	if rc.from == nil || l.recvFailed {
		r.fail("connection %d, side %d: receive %d succeeds, and nothing was sent to it (after a failure: %v): %+v", l.c.n, l.s.e, rc.id, l.recvFailed, *wc)
	}
	l.c.heard = l.c.heard || l != l.c.active
	if rc.solic {
		l.recvQ.fired = true
	}
	want, got := rc.want, *wc
	want.WRID, want.QPN = rc.id, l.qp.QPN()
	got.VendorErr = 0
	if l.s.kernel { // which doesn't tell: kernel-notes/siw-solicited-arming.md
		want.Flags, want.InvalidatedRKey = 0, 0
	}
	if got != want {
		r.fail("connection %d, side %d: receive %d: %+v, want %+v", l.c.n, l.s.e, rc.id, got, want)
	}
	for _, u := range rc.uses {
		u.done("receive " + r.name(rc.from))
	}
	rc.change.known()
	r.placed(rc.from.l, rc.from.id)
}

// pause waits after a poll that found nothing. In the simulated network it ends when something
// moves.
func (r *run) pause() { time.Sleep(50 * time.Microsecond) }

// until polls everything until done says so.
func (r *run) until(what string, done func() bool) {
	begin := time.Now()
	for !done() {
		got := 0
		for _, s := range r.sides {
			for _, q := range s.queues {
				got += r.poll(q, 4)
			}
		}
		if got > 0 {
			continue
		}
		if time.Since(begin) > r.w.patience {
			r.fail("%s: nothing comes any more\n%s", what, r.outstanding())
		}
		r.pause()
	}
}

// settle waits until nothing is on its way, and compares everything. A Read of the
// peer's bell is the last of each send queue.
func (r *run) settle() {
	for _, c := range r.conns {
		for _, l := range c.lanes {
			if len(l.sq) > 0 || len(l.unplaced) > 0 {
				r.flush(l)
			}
		}
	}
	r.until("settling", func() bool {
		for _, c := range r.conns {
			for _, l := range c.lanes {
				if len(l.sq) > 0 || len(l.unplaced) > 0 {
					return false
				}
				for _, rc := range l.rq {
					if rc.from != nil {
						return false
					}
				}
			}
		}
		return true
	})
	if r.w.idle != nil {
		r.w.idle()
	}
	for _, s := range r.sides {
		for _, q := range s.queues {
			r.poll(q, 4) // nothing, or it fails
		}
	}
	for _, s := range r.sides {
		s.compare()
		for _, q := range s.queues {
			r.checkEvents(q)
		}
		r.checkLimits(s)
		r.checkKeys(s)
	}
}

// flush posts the Read that settles a lane.
func (r *run) flush(l *lane) {
	if l.ord == 0 {
		r.flushBySend(l)
		return
	}
	r.until("room for a Read", func() bool { return len(l.sq) < l.cap.MaxSendWR })
	j := &job{id: r.newID(), l: l, op: ibverbs.WRRDMARead, wcop: ibverbs.WCRDMARead, n: bellOctets, signalled: true, answered: true}
	bell := l.peer().d.bell
	r.enter(j)
	r.need("posting a Read", l.qp.PostSend(ibverbs.SendWR{
		WRID: j.id, Opcode: j.op, Flags: ibverbs.SendSignaled, RemoteAddr: bell.Addr(), RKey: bell.RKey(),
		SGList: []ibverbs.SGE{{Addr: l.d.bell.Addr(), Length: bellOctets, LKey: l.d.bell.LKey()}},
	}))
}

// flushBySend posts a Send that settles a lane without Reads, with a receive for it if
// there is none.
func (r *run) flushBySend(l *lane) {
	p := l.peer()
	r.until("room for a Send", func() bool {
		room := len(p.rq) < p.cap.MaxRecvWR
		if p.sh != nil {
			room = len(p.sh.posted)+p.sh.taken() < p.sh.max
		}
		return len(l.sq) < l.cap.MaxSendWR && !p.contested() && (room || l.next() != nil)
	})
	j := &job{id: r.newID(), l: l, op: ibverbs.WRSend, wcop: ibverbs.WCSend, signalled: true}
	rc := l.next()
	if rc == nil {
		rc = &receipt{id: r.newID()}
		r.receipts[rc.id] = rc
		if wr := (ibverbs.RecvWR{WRID: rc.id}); p.sh != nil {
			p.sh.add(rc)
			r.need("posting to an SRQ", p.sh.srq.PostRecv(wr))
		} else {
			r.queueReceive(p, rc)
			r.need("posting a receive", p.qp.PostRecv(wr))
		}
	}
	j.match(rc, nil)
	r.enter(j)
	r.seen("settling by Send")
	r.need("posting a Send", l.qp.PostSend(ibverbs.SendWR{WRID: j.id, Opcode: j.op, Flags: ibverbs.SendSignaled}))
}

// enter makes a job one of its lane.
func (r *run) enter(j *job) {
	r.jobs[j.id] = j
	j.l.sq = append(j.l.sq, j)
	j.l.sendQ.load++
	if !memoryOnly(j.op) {
		j.l.last = j.op
	}
	if !j.answered && len(j.remote) > 0 {
		j.l.unplaced = append(j.l.unplaced, j)
	}
}

// checkEvents looks whether an armed CQ has told what it should have, and nothing
// else. All completions have been polled.
func (r *run) checkEvents(q *queue) {
	if !q.armed {
		return
	}
	limit := time.Millisecond
	if q.fired {
		limit = r.w.patience
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cq, err := q.ch.Next(ctx)
	switch {
	case err == nil && cq != q.cq:
		r.fail("side %d: an event of another CQ", q.s.e)
	case err == nil && !q.fired && !q.unsure:
		r.fail("side %d: an event (armed for solicited ones: %v) where none was due", q.s.e, q.solicited)
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		r.fail("waiting for an event: %w", err)
	case err != nil && q.fired:
		r.fail("side %d: no event (armed for solicited ones: %v)", q.s.e, q.solicited)
	}
	q.armed = err != nil
	q.fired, q.unsure = false, q.unsure && q.armed
}

func (r *run) stepArm(d *dice) {
	s := r.sides[d.pick(2)]
	q := one(d, s.queues)
	if q == nil || q.waits || q.armed {
		return
	}
	r.settle()
	q.solicited = d.oneIn(2) && !s.kernel // where it never fires for receives: kernel-notes/siw-solicited-arming.md
	q.armed, q.fired, q.unsure = true, false, false
	r.note("side %d arms a CQ, solicited only: %v", s.e, q.solicited)
	r.need("arming", q.cq.ReqNotify(q.solicited))
	for _, c := range r.conns {
		if l := c.lanes[s.e]; l.recvQ == q { // so that something may come
			r.post(d, l.peer())
		}
	}
}

func (r *run) stepPoll(d *dice) {
	if q := one(d, r.sides[d.pick(2)].queues); q != nil {
		n := r.poll(q, d.in(1, 8))
		r.note("side %d polls: %d", q.s.e, n)
	}
}

// stepWait waits for a completion that has to come.
func (r *run) stepWait(d *dice) {
	for _, c := range r.conns {
		for _, l := range c.lanes {
			for _, j := range l.sq {
				if !j.signalled || !l.sendQ.waits || j.done {
					continue
				}
				ctx, cancel := context.WithTimeout(context.Background(), r.w.patience)
				defer cancel()
				wc := make([]ibverbs.WC, d.in(1, 4))
				n, err := l.sendQ.cq.PollWait(ctx, wc)
				if err != nil || n == 0 {
					r.fail("waiting for %s: %d completions, %w\n%s", r.name(j), n, err, r.outstanding())
				}
				r.note("side %d waits for a completion: %d", l.s.e, n)
				for i := range wc[:n] {
					r.completion(l.sendQ, &wc[i])
				}
				return
			}
		}
	}
}

func (r *run) stepSettle(*dice) {
	r.note("settle")
	r.settle()
}
