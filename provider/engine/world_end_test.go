package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/cm"
)

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
		list = slices.Insert(list, 0, &closing{ready: always, call: func() *call { return w.closes("an id", id.Close) }})
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
