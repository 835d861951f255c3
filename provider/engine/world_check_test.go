package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/frames"
)

// Checks of a world in which nothing moves any more, and the functions that look into the
// engine.

// quietly waits until all goroutines of the bubble wait.
func (w *world) quietly() {
	synctest.Wait()
	if w.err.Load() != nil {
		panic(errWorldEnds)
	}
}

// quiet waits until nothing happens any more and all time limits have run out, and compares
// everything with the model.
func (w *world) quiet() {
	w.note("quiet")
	w.seen("quiet")
	for _, d := range []time.Duration{time.Millisecond, 100 * time.Millisecond, 3 * time.Second} {
		w.pass(d)
	}
	told := w.net.Told()
	for n := 0; w.pass(20*time.Second) > 0 || w.net.Told() != told; n++ { // time limits run out
		if told = w.net.Told(); n == 20 {
			w.fail("the driver does nothing, but for minutes something completes, or handlers " +
				"are called")
		}
	}
	w.late()
	w.checkNever()
	for _, c := range w.conns {
		w.checkConnection(c)
	}
	for _, p := range w.procs {
		for _, c := range p.cqs {
			w.checkOverflow(c)
		}
		for _, q := range p.qps {
			if err := q.q.ringInOrder(); err != nil {
				w.fail("%s: %v", q, err)
			}
			if q.closed || q.state() == provider.QPErr {
				if q.closed && q.scq.closed {
					continue
				}
				w.accounted(q)
			}
		}
		if p.ended {
			continue
		}
		for _, r := range p.rights {
			if err := r.unused(); err != nil && (r.object == nil || r.object.busy == 0) {
				w.fail("%s: nothing moves, but %v", p, err)
			}
		}
		if err := p.dev.freeListsAreClean(); err != nil {
			w.fail("%s: %v", p, err)
		}
	}
	for _, p := range w.procs {
		p.mem.check(w)
	}
}

// pass lets time pass, and takes completions and events. It returns how many there were.
func (w *world) pass(d time.Duration) int {
	time.Sleep(d)
	w.quietly()
	happened := w.events()
	for _, p := range w.procs {
		for _, c := range p.cqs {
			for n := w.drain(c); n > 0; n = w.drain(c) {
				happened += n
			}
		}
	}
	return happened
}

// late freezes the spans that objects might still have changed; the objects' calls are over.
func (w *world) late() {
	for _, s := range w.lates {
		if s.late == nil || s.frozen {
			continue
		}
		s.freeze(w, s.look())
		s.drop()
	}
	w.lates = nil
}

// checkOverflow checks that a CQ that has lost completions has raised an event.
func (w *world) checkOverflow(c *complQueue) {
	if !c.lossy || c.closed {
		return
	}
	a := &c.p.dev.async
	a.mu.Lock()
	told := a.lost > 0 || slices.ContainsFunc(a.events, func(e provider.AsyncEvent) bool {
		return e.Type == provider.EventCQErr && e.CQ == provider.CQ(c.cq)
	})
	a.mu.Unlock()
	if !told {
		w.fail("%s: a CQ has lost completions, and has raised no event", c.p)
	}
}

// checkConnection checks a connection: if the network did nothing to it, everything that was
// posted is done, and it has ended if it was ended.
func (w *world) checkConnection(c *connection) {
	var s [2]*stream
	for side, q := range c.qps {
		if q.conn != c {
			continue
		}
		if s[side] = q.q.stream.Load(); s[side] == nil && q.state() == provider.QPErr {
			w.connectionOver(c, side)
		}
	}
	for side, q := range c.qps {
		if q.conn != c || s[side] == nil || c.spoiled || w.spoiled(s[side]) {
			continue
		}
		switch {
		case c.ending:
			w.fail("connection %d was ended, but %s is in %v", c.no, q, q.state())
		case s[1-side] == nil:
			w.fail("connection %d: %s is in %v, but its peer has no connection", c.no, q, q.state())
		}
		w.checkIdle(c, q, s[side])
	}
}

// checkIdle checks that everything that was posted to q is done, unless q may not send.
func (w *world) checkIdle(c *connection, q *queuePair, s *stream) {
	if !s.maySend.Load() {
		return
	}
	x := s.idle()
	if x.unsent != 0 || x.reads != 0 || x.unreported != 0 || x.batch || x.context {
		w.fail("%s: nothing moves and the connection is whole, but %d work requests are not sent, "+
			"%d not answered and %d not reported; it keeps a batch: %v, a context: %v",
			q, x.unsent, x.reads, x.unreported, x.batch, x.context)
	}
	for _, o := range q.sends {
		if q.signaled(o) && !q.lossy() {
			w.fail("%s: nothing moves, but %s has no completion", q, o)
		}
		if o.badLocal {
			w.fail("%s: %s succeeded, but one of its SGEs names memory that can't be used", q, o)
		}
		w.retire(o, !q.lossy(), nil)
	}
	q.sends = nil
	if refused := c.refused[q.side]; len(refused) > 0 {
		w.fail("%s: %s had to be refused, but the connection lives", q, refused[0])
	}
	w.placed(c, q.side, func(*op) bool { return true })
	if peer := q.peer(); !peer.lossy() && c.taken[1-q.side] < len(c.msgs[q.side]) {
		w.fail("%s: nothing moves, but %s was not received", q, c.msgs[q.side][c.taken[1-q.side]])
	}
	w.seen("connection checked")
}

// ringInOrder checks the indexes of a send queue.
func (q *qp) ringInOrder() error {
	s := q.stream.Load()
	if s != nil {
		s.tx.mu.Lock()
		defer s.tx.mu.Unlock()
	}
	q.sq.done.Lock()
	defer q.sq.done.Unlock()
	free, head, out, tail := q.sq.free.Load(), q.sq.head, q.sq.out, q.sq.tail.Load()
	next := tail
	if s != nil && !s.hasFinished() {
		next = s.tx.next
	}
	if int32(head-free) < 0 || s != nil && (int32(out-head) < 0 || int32(next-out) < 0) || int32(tail-next) < 0 {
		return fmt.Errorf("the send queue's indexes are out of order: free %d, head %d, out %d, "+
			"next %d, tail %d",
			free, head, out, next, tail)
	}
	return nil
}

// listed returns how many QPs and streams are in the device's lists, and one more if the watch
// over stalls was not stopped.
func (d *device) listed() int {
	l, st := &d.closing, &d.stalls
	l.mu.Lock()
	n := len(l.places)
	l.mu.Unlock()
	d.qpnMu.Lock()
	n += len(d.qpns)
	d.qpnMu.Unlock()
	st.mu.Lock()
	if !st.stopped {
		n++
	}
	st.mu.Unlock()
	return n
}

func (d *device) acceptedNow() int {
	return max(d.cm.Accepted(), d.cm.AcceptedPeers())
}

// freeListsAreClean checks that the objects in the free lists, which the next stream gets, refer to
// nothing of the last one.
func (d *device) freeListsAreClean() error {
	for _, c := range d.prog.contexts.All() {
		if c.m != nil || c.nplace != 0 || c.nspans != 0 || c.pieces != nil {
			return fmt.Errorf("a receive context in the free list has a region: %v, %d places, %d spans, "+
				"%d pieces",
				c.m != nil, c.nplace, c.nspans, len(c.pieces))
		}
	}
	for _, b := range d.prog.batches.All() {
		if !b.Idle() {
			return errors.New("a batch in the free list is not idle")
		}
	}
	return nil
}

// Contexts and batches are large, and worlds are short. So one world gets another's, with the bytes
// written in them.
var (
	oldContexts = sync.Pool{New: func() any { return newRxContext() }}
	oldBatches  = sync.Pool{New: func() any { return frames.New(nil) }}
)

func (d *device) lendFromStore() {
	d.prog.contexts.New = func() *rxContext { return oldContexts.Get().(*rxContext) }
	d.prog.batches.New = func() *frames.Batch {
		b := oldBatches.Get().(*frames.Batch)
		b.SetPool(&d.chunks)
		return b
	}
}

func (d *device) giveToStore() {
	for _, c := range d.prog.contexts.All() {
		oldContexts.Put(c)
	}
	for _, b := range d.prog.batches.All() {
		oldBatches.Put(b)
	}
}
