package engine

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/govs-rdma/govs/provider"
)

// Completions: there is one for each work request, in order, and what it promises is so.

// polled is a completion, and what was in memory when it was seen.
type polled struct {
	wc      provider.WC
	o       *op
	r       *receive
	own     []seen      // of the work request's own spans
	barrier []rightEnds // rights that have ended
}

// rightEnds is a right that has ended, and what was then in the spans that were reached
// through it.
type rightEnds struct {
	r    *right
	seen []seen
}

// ends looks at the spans that were reached through r, which has just ended.
func (r *right) ends(which func(*extent) bool) rightEnds {
	return rightEnds{r, lookAt(r.p.mem.through(func(s *extent) bool { return s.via == r && (which == nil || which(s)) }))}
}

// take polls once and looks at memory. Other calls may run at the same time.
func (c *complQueue) take(w *world, wc []provider.WC, got []polled) ([]polled, int) {
	n, err := c.cq.Poll(wc)
	if err != nil {
		w.failLater("polling: %v", err)
		return got, 0
	}
	for _, x := range wc[:n] {
		p := polled{wc: x, o: w.ops[x.WRID], r: w.recvs[x.WRID]}
		switch {
		case p.o != nil:
			p.own = lookAt(p.o.local)
			if m := p.o.ends; m != nil && (x.Status == provider.WCSuccess || !m.isThere()) {
				p.barrier = append(p.barrier, m.ends(nil))
			}
			if m := p.o.begins; m != nil && x.Status != provider.WCSuccess && !m.isThere() {
				p.barrier = append(p.barrier, m.ends(nil))
			}
		case p.r != nil:
			p.own = lookAt(p.r.spans)
			if x.Flags&provider.WCWithInv != 0 {
				if m := c.p.keyed(x.InvalidatedRKey); m != nil {
					p.barrier = append(p.barrier, m.ends(func(s *extent) bool { return m.moving || s.conn != nil }))
				}
			}
		}
		got = append(got, p)
	}
	return got, n
}

// keyed returns the right with a key, unless it has ended.
func (p *proc) keyed(key uint32) *right {
	for _, r := range p.rights {
		if r.key == key && r.state != dead {
			return r
		}
	}
	return nil
}

// poll is a call that polls a queue once or several times.
func (w *world) poll(c *complQueue) *call {
	if c == nil || c.closed {
		return nil
	}
	d := w.d
	wc := make([]provider.WC, d.in(1, 8))
	times := one(d, []int{1, 1, 2, 5, 20})
	var got []polled
	return &call{
		name: fmt.Sprintf("%s polls a CQ %d times", c.p, times),
		rank: rankPoll,
		run: func() {
			for range times {
				got, _ = c.take(w, wc, got)
			}
		},
		finish: func() { w.completed(c, got) },
	}
}

// spin is a call that again and again polls a queue and then is about to sleep.
func (w *world) spin(c *complQueue) *call {
	if c == nil || c.closed {
		return nil
	}
	wc := make([]provider.WC, 4)
	times := w.d.in(1, 40)
	var got []polled
	return &call{
		name: fmt.Sprintf("%s polls a CQ twice and arms it, %d times", c.p, times),
		rank: rankPoll,
		run: func() {
			for range times {
				got, _ = c.take(w, wc, got)
				got, _ = c.take(w, wc, got)
				if err := c.cq.ReqNotify(false); err != nil {
					w.failLater("arming a CQ: %v", err)
				}
				c.p.dev.poller.BeforeSleep() // as that does if it has a channel
			}
		},
		finish: func() { w.completed(c, got) },
	}
}

// wait is a call that arms a queue and sleeps until a completion event comes, or a limit has
// passed.
func (w *world) wait(c *complQueue) *call {
	if c == nil || c.closed || c.ch == nil {
		return nil
	}
	limit := time.Duration(w.d.upTo(int(3 * time.Millisecond)))
	solicited := w.d.oneIn(5)
	wc := make([]provider.WC, 4)
	var got []polled
	return &call{
		name: fmt.Sprintf("%s waits for a CQ for %v", c.p, limit),
		rank: rankPoll,
		run: func() {
			if err := c.cq.ReqNotify(solicited); err != nil {
				w.failLater("arming a CQ: %v", err)
			}
			n := 0
			if got, n = c.take(w, wc, got); n == 0 {
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				_, _ = c.ch.Next(ctx)
				cancel()
			}
			got, _ = c.take(w, wc, got)
		},
		finish: func() { w.completed(c, got) },
	}
}

// drain polls a queue until it is empty.
func (w *world) drain(c *complQueue) int {
	if c.closed {
		return 0
	}
	var got []polled
	wc := make([]provider.WC, 16)
	for n := 1; n > 0; {
		got, n = c.take(w, wc, got)
	}
	w.completed(c, got)
	return len(got)
}

// completed compares completions with what was posted.
func (w *world) completed(c *complQueue, got []polled) {
	c.cq.mu.Lock()
	if c.cq.losses > 0 && !c.lossy {
		c.lossy = true
		w.seen("CQ overflow")
		if !c.tiny {
			w.fail("%s: a CQ of %d entries has lost completions", c.p, len(c.cq.ring))
		}
	}
	c.cq.mu.Unlock()
	for i := range got {
		p := &got[i]
		switch {
		case p.o != nil:
			w.sendDone(p)
		case p.r != nil:
			w.recvDone(c.p, p)
		default:
			w.fail("%s: completion %+v of a work request that is not posted", c.p, p.wc)
		}
	}
}

func (w *world) sendDone(p *polled) {
	o, q, wc := p.o, p.o.q, &p.wc
	good := wc.Status == provider.WCSuccess
	at := slices.Index(q.sends, o)
	switch {
	case o.over || at < 0:
		w.fail("%s: completion %+v of %s, which is over", q, *wc, o)
	case wc.QPN != q.q.qpn:
		w.fail("%s: completion of %s with the number %d", q, o, wc.QPN)
	case good && q.failed:
		w.fail("%s: %s succeeded after another had failed", q, o)
	case good && wc.Opcode != wcOpcodeOf(o.wr.Opcode):
		w.fail("%s: the completion of %s has the opcode %v", q, o, wc.Opcode)
	case good && o.answered() && int(wc.ByteLen) != len(o.payload):
		w.fail("%s: the completion of %s has %d bytes", q, o, wc.ByteLen)
	case good && o.badLocal:
		w.fail("%s: %s succeeded, but one of its SGEs names memory that can't be used", q, o)
	case good && o.answered() && o.refused:
		w.fail("%s: %s succeeded, but the peer had to refuse it", q, o)
	case !good && !o.mayFailWith(wc.Status):
		w.fail("%s: %s has the status %v (%v)", q, o, wc.Status, q.q.Cause())
	}
	for _, skipped := range q.sends[:at] {
		if !q.scq.lossy && (q.failed || q.signaled(skipped)) {
			w.fail("%s: no completion of %s, but one of %s", q, skipped, o)
		}
		w.retire(skipped, !q.scq.lossy, nil)
	}
	q.sends = q.sends[at+1:]
	q.failed = q.failed || !good
	w.seen("status " + wc.Status.String())
	w.memoryDone(p)
	w.retire(o, good, p.own)
}

func wcOpcodeOf(op provider.WROpcode) provider.WCOpcode {
	if op == provider.WRRegMR {
		return provider.WCRegMR
	}
	return wcOpcodes[op]
}

// mayFailWith reports whether o can end with a status.
func (o *op) mayFailWith(status provider.WCStatus) bool {
	switch status {
	case provider.WCWRFlushErr:
		return true
	case provider.WCMWBindErr:
		return o.begins != nil || o.ends != nil
	case provider.WCLocProtErr:
		return o.badLocal || slices.ContainsFunc(o.uses, func(r *right) bool {
			return r.state != live || r.object != nil || r.moving
		})
	case provider.WCRemAccessErr, provider.WCRemInvReqErr:
		return o.answered() && (o.risky || o.right.state != live)
	case provider.WCRemOpErr:
		return o.answered() && o.right.object != nil
	}
	return false
}

// retire ends what o may do. good says that it has succeeded. own is what was in its sink when
// its completion was seen, or nil to look now.
func (w *world) retire(o *op, good bool, own []seen) {
	o.over = true
	if own == nil {
		own = lookAt(o.local)
	}
	for _, x := range own {
		if good {
			x.s.settle(w, x.b)
		} else {
			w.over(x.s, x.b)
		}
	}
	for _, s := range o.local {
		if !s.reads && s.frozen && good { // its right ended after it
			s.settle(w, s.m.want[s.lo:s.hi])
		}
		if s.reads || s.frozen {
			s.drop()
		}
	}
	for _, s := range o.remote {
		if s.reads {
			s.drop()
		} else if o.atomic && good && !s.frozen {
			s.settle(w, s.look())
			s.drop()
		}
	}
}

// over freezes a span that nobody may change any more. If an object may still change it, the
// span keeps the payloads that may come there instead.
func (w *world) over(s *extent, b []byte) {
	if s.via != nil && s.via.object != nil && s.via.state != dead {
		s.late = append([][]byte{}, s.payloads()...)
		w.lates = append(w.lates, s)
		return
	}
	s.freeze(w, b)
	s.drop()
}

func (w *world) recvDone(p *proc, x *polled) {
	r, wc := x.r, &x.wc
	q := p.number(wc.QPN)
	good := wc.Status == provider.WCSuccess
	switch {
	case q == nil || r.q != nil && q != r.q || r.srq != nil && q.srq != r.srq:
		w.fail("%s: completion %+v of receive %d, which was not posted for that QP", p, *wc, r.id)
	case good && q.rfailed:
		w.fail("%s: receive %d succeeded after another had failed", q, r.id)
	}
	c := q.conn
	var o *op
	if c != nil && c.taken[q.side] < len(c.msgs[1-q.side]) {
		o = c.msgs[1-q.side][c.taken[q.side]]
	}
	lossy := q.lossy()
	if good && !lossy {
		w.received(q, o, x)
		c.taken[q.side]++
	}
	if !good {
		q.rfailed = true
		if !r.mayFailWith(wc.Status, o) && !lossy {
			w.fail("%s: receive %d of %d bytes has the status %v (%v), and the message is %v",
				q, r.id, r.n, wc.Status, q.q.Cause(), o)
		}
	}
	w.seen("receive " + wc.Status.String())
	for _, y := range x.own {
		if good && !lossy { // received has looked at it
			copy(y.s.m.want[y.s.lo:y.s.hi], y.b)
			y.s.frozen = true
			continue
		}
		w.over(y.s, y.b)
	}
	for _, s := range r.spans {
		if s.frozen {
			s.drop()
		}
	}
	w.rightsEnd(x.barrier, x.r != nil)
	w.forget(q, r)
}

// forget takes r out of its queue. It must be the first, unless the queue is an SRQ.
func (w *world) forget(q *queuePair, r *receive) {
	delete(w.recvs, r.id)
	list := &q.recvs
	if r.srq != nil {
		list = &r.srq.posted
	}
	at := slices.Index(*list, r)
	if at < 0 || at > 0 && r.srq == nil && !q.rcq.lossy {
		w.fail("%s: receive %d completed as number %d of the queue", q, r.id, at)
	}
	*list = slices.Delete(*list, at, at+1)
}

func (p *proc) number(qpn uint32) *queuePair {
	for _, q := range slices.Backward(p.qps) {
		if q.q.qpn == qpn {
			return q
		}
	}
	return nil
}

func (r *receive) mayFailWith(status provider.WCStatus, o *op) bool {
	switch status {
	case provider.WCWRFlushErr:
		return true
	case provider.WCLocLenErr:
		return o != nil && len(o.payload) > r.n
	case provider.WCLocProtErr:
		return r.risky || slices.ContainsFunc(r.spans, func(s *extent) bool {
			return s.via.state != live || s.via.object != nil
		})
	case provider.WCRemInvReqErr:
		return o != nil && o.wr.Opcode == provider.WRSendWithInv
	}
	return false
}

// received checks a message that has come: it is the next that was sent, all of it has
// arrived, and so have all Writes before it.
func (w *world) received(q *queuePair, o *op, x *polled) {
	r, wc := x.r, &x.wc
	if o == nil {
		w.fail("%s: receive %d has completed, but the peer has sent nothing", q, r.id)
	}
	want := provider.WC{WRID: r.id, Opcode: provider.WCRecv, QPN: q.q.qpn, ByteLen: uint32(len(o.payload))}
	n := len(o.payload)
	switch o.wr.Opcode {
	case provider.WRSendWithInv:
		want.Flags, want.InvalidatedRKey = provider.WCWithInv, o.wr.InvalidateRKey
	case provider.WRRDMAWriteWithImm:
		want.Flags, want.Imm, want.Opcode, n = provider.WCWithImm, o.wr.Imm, provider.WCRecvRDMAWithImm, 0
	case provider.WRSendWithImm: // after a Write it looks like one with immediate data
		want.Flags, want.Imm, want.Opcode, want.ByteLen = provider.WCWithImm, o.wr.Imm, wc.Opcode, wc.ByteLen
	}
	c := q.conn
	switch refused := c.refusedBefore(1-q.side, o); {
	case *wc != want:
		w.fail("%s: a receive has the completion %+v; %s makes it %+v", q, *wc, o, want)
	case n > r.n:
		w.fail("%s: receive %d of %d bytes has taken %s", q, r.id, r.n, o)
	case o.badLocal:
		w.fail("%s: %s was received, but one of its SGEs names memory that can't be used", q, o)
	case refused != nil:
		w.fail("%s: %s was received after %s, which had to be refused", q, o, refused)
	}
	for _, s := range r.spans {
		b := s.m.want[s.lo:s.hi]
		for _, y := range x.own {
			if y.s == s {
				b = y.b
			}
		}
		here := min(max(n-s.off, 0), len(b))
		if i := differs(b[:here], o.payload[min(s.off, len(o.payload)):]); i >= 0 {
			w.fail("byte %d of %s is %#02x, but %s has %#02x there", s.lo+i, s, b[i], o,
				o.payload[s.off+i])
		}
		if !bytes.Equal(b[here:], s.m.want[s.lo+here:s.hi]) {
			w.fail("%s has changed bytes after the message, %s", o, s)
		}
	}
	w.placed(c, 1-q.side, func(before *op) bool { return before.id <= o.id })
}

func (c *connection) refusedBefore(side int, o *op) *op {
	for _, x := range c.refused[side] {
		if x.id < o.id {
			return x
		}
	}
	return nil
}

// placed checks that the bytes of operations are where they had to be placed.
func (w *world) placed(c *connection, side int, which func(*op) bool) {
	kept := c.placing[side][:0]
	for _, o := range c.placing[side] {
		if !which(o) {
			kept = append(kept, o)
			continue
		}
		for _, s := range o.remote {
			if s.reads {
				continue
			}
			if !s.frozen && s.late == nil {
				s.settle(w, s.look())
			}
			s.drop()
		}
	}
	clear(c.placing[side][len(kept):])
	c.placing[side] = kept
}
