package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// Faults: connections that are reset, stall or corrupt bytes, processes that end, peers that
// don't speak MPA; and calls that have to be refused.

// mishap is a fault for a segment that is still to arrive.
type mishap struct {
	from, to netip.Addr
	conn     [2]netip.AddrPort // only of this connection, from its sender; zero for any
	skip     int               // bytes that still pass
	what     memnet.Verdict
	flip     byte // if not 0, a byte is changed by this instead
}

// filter is Options.Filter of the network.
func (w *world) filter(s *memnet.Segment) memnet.Verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, f := range w.faults {
		if f.from != s.From.Addr() || f.to != s.To.Addr() ||
			f.conn != [2]netip.AddrPort{} && f.conn != [2]netip.AddrPort{s.From, s.To} {
			continue
		}
		if f.skip >= len(s.Data) {
			f.skip -= len(s.Data)
			continue
		}
		w.faults = slices.Delete(w.faults, i, i+1)
		w.hits[[2]netip.AddrPort{s.From, s.To}] = true
		w.hits[[2]netip.AddrPort{s.To, s.From}] = true
		if f.flip != 0 {
			s.Data[f.skip] ^= f.flip
			return memnet.Pass
		}
		return f.what
	}
	return memnet.Pass
}

// spoiled reports whether the stream's connection had a fault.
func (w *world) spoiled(s *stream) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hits[[2]netip.AddrPort{s.conn.LocalAddr(), s.conn.RemoteAddr()}]
}

// disturb arranges for something to happen.
func (w *world) disturb() {
	d := w.d
	switch d.upTo(9) {
	case 0, 1, 2, 3, 4:
		w.arrange()
	case 5:
		if p := one(d, w.living()); p != nil && len(w.procs) < 10 {
			w.endProc(p)
		}
	case 6, 7:
		w.stranger()
	case 8:
		if len(w.raws) > 0 {
			i := d.upTo(len(w.raws) - 1)
			_ = w.raws[i].Abort()
			w.raws = slices.Delete(w.raws, i, i+1)
		}
	default:
		w.relisten()
	}
}

// arrange makes a fault happen to a connection, or to the next one between two processes.
func (w *world) arrange() {
	d := w.d
	f := &mishap{
		skip: one(d, []int{0, d.upTo(60), d.upTo(3000)}),
		what: one(d, []memnet.Verdict{memnet.Reset, memnet.Reset, memnet.Stall}),
	}
	q := one(d, one(d, w.procs).qps)
	if q == nil {
		return
	}
	s := q.q.stream.Load()
	if s == nil || d.oneIn(10) {
		a, b := one(d, w.procs), one(d, w.procs)
		f.from, f.to = a.addr, b.addr
	} else {
		f.conn = [2]netip.AddrPort{s.conn.LocalAddr(), s.conn.RemoteAddr()}
		f.from, f.to = f.conn[0].Addr(), f.conn[1].Addr()
		if w.exact && d.oneIn(3) {
			f.flip = byte(1 + d.upTo(254))
		}
	}
	w.note("a fault between %s and %s, after %d bytes: %v, flip %#x", f.from, f.to, f.skip, f.what, f.flip)
	w.seen("fault of the network")
	w.mu.Lock()
	w.faults = append(w.faults, f)
	w.mu.Unlock()
}

// endProc ends a process: its connections are reset, its memory stays as it is, and another
// process takes its place.
func (w *world) endProc(p *proc) {
	w.note("%s ends", p)
	w.net.Reset(func(dialed, accepted netip.AddrPort) bool {
		if dialed.Addr() != p.addr && accepted.Addr() != p.addr {
			return false
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.hits[[2]netip.AddrPort{dialed, accepted}] = true
		w.hits[[2]netip.AddrPort{accepted, dialed}] = true
		return true
	})
	for _, q := range p.qps {
		if q.conn != nil {
			q.conn.spoiled, q.conn.ending = true, true
		}
	}
	w.closeProc(p)
	w.newProc(p.addr)
	w.seen("process ended")
}

// stranger connects a peer that does not speak MPA, or only begins to.
func (w *world) stranger() {
	d := w.d
	p := one(d, w.living())
	if p == nil || p.listener == nil {
		return
	}
	dst := p.listener.LocalAddr()
	src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(20 + d.upTo(3))}), 0)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	c, err := w.net.Dial(ctx, src, dst)
	if err != nil {
		return
	}
	w.note("a stranger connects to %s", p)
	w.seen("stranger")
	var b []byte
	if i, err := mpa.NewInitiator(mpa.Config{Revision: 2}, mpa.Offer{IRD: 1, ORD: 1}); err == nil {
		b = i.AppendRequest(nil)
	}
	b = b[:d.upTo(len(b))]
	if d.oneIn(3) && len(b) > 0 {
		b[d.upTo(len(b)-1)] ^= byte(d.next())
	}
	_, _ = c.Writev([][]byte{b})
	if d.oneIn(2) {
		w.raws = append(w.raws, c)
		return
	}
	_ = c.Close()
}

// relisten closes a listener, or makes another one.
func (w *world) relisten() {
	p := one(w.d, w.living())
	if p == nil {
		return
	}
	if p.listener == nil {
		w.listen(p)
		return
	}
	l := p.listener
	p.listener = nil
	w.do(&call{name: fmt.Sprintf("%s closes its listener", p), run: func() {
		if err := l.Close(); err != nil {
			w.failLater("closing a listener: %v", err)
		}
	}})
}

// refusedCloses tries to close things that others depend on, and wants EBUSY.
func (w *world) refusedCloses(p *proc) {
	refused := func(what string, err error) {
		if !errors.Is(err, syscall.EBUSY) {
			w.fail("%s: closing %s that is in use: %v", p, what, err)
		}
	}
	refused("a device", p.dev.Close())
	for _, q := range p.qps {
		if !q.closing {
			refused("a PD", q.pd.pd.Close())
			refused("a CQ", q.scq.cq.Close())
			refused("a CQ", q.rcq.cq.Close())
			if q.srq != nil {
				refused("an SRQ", q.srq.srq.Close())
			}
		}
	}
	for _, c := range p.cqs {
		if c.ch != nil && !c.closed {
			refused("a completion channel", c.ch.Close())
		}
	}
	refused("an event channel", busyOrNil(p))
}

// busyOrNil tries to close the event channel of a process. If there are no ids on it, it
// returns EBUSY without trying.
func busyOrNil(p *proc) error {
	if p.listener == nil && len(p.ids) == 0 {
		return syscall.EBUSY
	}
	return p.ch.Close()
}

// resize changes the size of a queue, and a limit.
func (w *world) resize(p *proc) {
	d := w.d
	if c := one(d, p.cqs); c != nil && !c.closed && !c.tiny {
		w.need("resizing a CQ", c.cq.Resize(1024<<d.upTo(1)))
	}
	if s := one(d, p.srqs); s != nil && !s.closed {
		err := s.srq.Modify(provider.SRQAttr{Limit: d.upTo(2)}, provider.SRQAttrLimit)
		if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, os.ErrClosed) {
			w.fail("an SRQ's limit: %v", err)
		}
	}
}

// The end of a world: everything is closed, in any order that is permitted.

// closing is something that can be closed when everything that depends on it is closed.
type closing struct {
	ready func() bool
	call  func() *call // nil: it is closed already
	done  bool
}

// closeProc closes everything that a process has.
func (w *world) closeProc(p *proc) {
	p.ended = true
	w.checkNever()
	list := w.closings(p)
	for left := len(list); left > 0; {
		var calls []*call
		var of []*closing
		for _, c := range list {
			if !c.done && len(calls) < 4 && c.ready() && w.d.oneIn(2) {
				of = append(of, c)
				calls = append(calls, c.call())
			}
		}
		w.do(calls...)
		for _, c := range of {
			c.done = true
			left--
		}
		if w.d.oneIn(10) {
			time.Sleep(time.Duration(w.d.upTo(1_000_000)))
		}
		w.events()
		list = w.requestsToo(p, list, &left)
	}
	w.held(p)
}

// requestsToo adds the ids of requests that have come since.
func (w *world) requestsToo(p *proc, list []*closing, left *int) []*closing {
	for len(p.ids) > 0 {
		id := p.ids[0]
		p.ids = p.ids[1:]
		if c := w.byID[id]; c != nil {
			c.ending = true
		}
		list = slices.Insert(list, 0, &closing{ready: always,
			call: func() *call { return w.closes("an id", id.Close) }})
		*left++
	}
	return list
}

func always() bool { return true }

func (w *world) closes(what string, do func() error) *call {
	return &call{name: "close " + what, rank: rankEnd, run: func() {
		if err := do(); err != nil {
			w.failLater("closing %s: %v", what, err)
		}
	}}
}

func (w *world) closings(p *proc) []*closing {
	var list []*closing
	add := func(ready func() bool, what *call) *closing {
		c := &closing{ready: ready, call: func() *call { return what }}
		list = append(list, c)
		return c
	}
	lazy := func(ready func() bool, what func() *call) *closing {
		c := &closing{ready: ready, call: what}
		list = append(list, c)
		return c
	}
	after := func(all ...[]*closing) func() bool {
		return func() bool {
			for _, some := range all {
				for _, c := range some {
					if !c.done {
						return false
					}
				}
			}
			return true
		}
	}
	var qps, ids, windows, regions, srqs, cqs, pds, chans []*closing
	for _, q := range p.qps {
		if !q.closing {
			qps = append(qps, lazy(always, func() *call { return w.closeQP(q) }))
		}
	}
	if p.listener != nil {
		ids = append(ids, add(always, w.closes("a listener", p.listener.Close)))
	}
	var none int
	own := w.requestsToo(p, nil, &none)
	ids, list = append(ids, own...), append(list, own...)
	for _, v := range p.windows {
		if !v.gone {
			windows = append(windows, lazy(always, func() *call { return w.closeWindow(v) }))
		}
	}
	for _, f := range p.fasts {
		if !f.gone {
			regions = append(regions, lazy(after(windows), func() *call { return w.closeFast(f) }))
		}
	}
	for _, r := range p.rights {
		if !r.moving && r.state == live {
			regions = append(regions, lazy(after(windows), func() *call { return w.deregister(r) }))
		}
	}
	for _, s := range p.srqs {
		srqs = append(srqs, add(after(qps), w.closes("an SRQ", s.srq.Close)))
	}
	for _, c := range p.cqs {
		cqs = append(cqs, lazy(after(qps), func() *call {
			w.drainAll(c) // what was flushed
			c.closed = true
			return w.closes("a CQ", c.cq.Close)
		}))
	}
	for _, ch := range p.chans {
		chans = append(chans, add(after(cqs), w.closes("a completion channel", ch.Close)))
	}
	for _, pd := range p.pds {
		pds = append(pds, add(after(qps, windows, regions, srqs), w.closes("a PD", pd.pd.Close)))
	}
	channel := lazy(after(ids), func() *call { return w.closes("an event channel", p.ch.Close) })
	channel.ready = func() bool { return after(ids)() && len(p.ids) == 0 && w.noIDs(p) }
	add(after(pds, cqs, chans, []*closing{channel}), w.closes("a device", p.dev.Close))
	return list
}

// noIDs reports whether no id is on the process's event channel: a request may have come
// just before its listener was closed.
func (w *world) noIDs(p *proc) bool {
	return cm.IDs(p.ch.(*cm.EventChannel)) == 0
}

// drainAll empties a CQ and checks that its QPs, which are closed, have nothing left.
func (w *world) drainAll(c *complQueue) {
	for w.drain(c) > 0 {
	}
	for _, q := range c.p.qps {
		if q.closed && (q.scq == c || q.scq.closed) && (q.rcq == c || q.rcq.closed) {
			w.accounted(q)
		}
	}
}

// end closes all processes and checks what is left.
func (w *world) end() {
	for _, p := range w.procs {
		if !p.ended {
			w.closeProc(p)
		}
	}
	for _, c := range w.raws {
		_ = c.Close()
	}
	time.Sleep(time.Minute)
	w.quietly()
	w.late()
	for _, p := range w.procs {
		p.mem.check(w)
	}
	if u := w.net.Used(); u.Ends != 0 || u.Ports != 0 {
		w.fail("everything is closed, but the network has %d ends of connections and %d ports in "+
			"use", u.Ends, u.Ports)
	}
	told := w.net.Told()
	time.Sleep(time.Minute)
	if n := w.net.Told() - told; n > 0 {
		w.fail("everything is closed, but handlers were called %d times", n)
	}
	if w.err.Load() != nil {
		panic(errWorldEnds)
	}
}

// held checks that a process that has closed everything holds nothing.
func (w *world) held(p *proc) {
	// a goroutine that has called an object gives back its buffer after the region is closed
	w.quietly()
	d := p.dev
	for what, n := range map[string]int{
		"batches": d.prog.batches.Lent(), "contexts": d.prog.contexts.Lent(), "chunks": d.chunks.Lent(),
		"parts of FPDUs": d.prog.parts.Lent(), "bytes in parts": int(d.prog.partOctets.Load()),
		"kept contexts": int(d.prog.kept.Load()), "pieces ahead": int(d.prog.ahead.Load()),
		"accepted connections": d.acceptedNow(), "PDs": d.pds.Len(),
		"CQs": d.cqs.Len(), "MRs": d.memory.MRs.Len(), "MWs": d.memory.MWs.Len(),
		"QPs": d.qps.Len(), "SRQs": d.srqs.Len(),
		"STags": d.memory.Len(),
		"lingering streams, QP numbers, and watches over stalls": d.listed(),
	} {
		if n != 0 {
			w.fail("%s: everything is closed, but it has %s: %d", p, what, n)
		}
	}
	if err := d.freeListsAreClean(); err != nil {
		w.fail("%s: %v", p, err)
	}
	for _, r := range p.rights {
		if err := r.unused(); err != nil {
			w.fail("%s: everything is closed, but %v", p, err)
		}
	}
	d.giveToStore()
}

// unused returns an error if the region is in use.
func (r *right) unused() error {
	var l, p int64
	if r.window != nil {
		p = r.window.mw.Uses()
	} else {
		l, p = r.mr.(interface{ Uses() (_, _ int64) }).Uses()
	}
	if l != 0 || p != 0 {
		return fmt.Errorf("%s is in use %d times by us and %d times by peers", r, l, p)
	}
	return nil
}
