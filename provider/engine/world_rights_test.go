package engine

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
)

// Regions, windows and registrations, and how each ends.

// register makes one more region of a process, of memory or of an object. It is over bytes of its
// own, or over the bytes of other regions.
func (w *world) register(p *proc) {
	d := w.d
	pd := one(d, p.pds)
	if pd == nil || pd.closed || len(p.rights) > 24 {
		return
	}
	a := one(d, p.mem.areas)
	if a.hi == 0 || d.oneIn(3) {
		n := one(d, []int{8 * d.in(1, 8), d.in(100, 2000), d.in(2000, 8000), w.longest})
		if made, ok := p.mem.area(n); ok {
			a = made
		}
	}
	if a.hi == 0 {
		return
	}
	r := &right{p: p, pd: pd, lo: a.lo, hi: a.hi, state: live}
	if d.oneIn(w.objects) {
		r.object = &object{
			m: p.mem, lo: a.lo, hi: a.hi, d: d.fork(),
			slow: time.Duration(one(d, []int{0, 10_000, 1_000_000, 20_000_000, 20_000_000})),
		}
		if d.oneIn(6) {
			r.object.fails = d.in(2, 20)
		}
		r.access = provider.AccessLocalWrite | provider.AccessRemoteWrite | provider.AccessRemoteRead
	} else {
		r.access = w.someAccess()
	}
	var err error
	if r.object != nil {
		r.mr, err = pd.pd.RegObject(r.object, uint64(a.hi-a.lo), r.access)
	} else {
		r.mr, err = pd.pd.RegMR(p.mem.b[a.lo:a.hi], r.access)
	}
	w.need("registering", err)
	r.base, r.key = r.mr.Addr(), r.mr.RKey()
	p.rights = append(p.rights, r)
	w.note("%s registers %s, object %v, access %s", p, r, r.object != nil, r.access)
}

// someAccess returns rights for a region, mostly all.
func (w *world) someAccess() provider.Access {
	d := w.d
	a := provider.AccessLocalWrite | provider.AccessRemoteWrite | provider.AccessRemoteRead | provider.AccessMWBind
	if w.ext {
		a |= provider.AccessRemoteAtomic
	}
	switch d.upTo(9) {
	case 0:
		a = 0
	case 1:
		a = provider.AccessLocalWrite
	case 2:
		a = provider.AccessRemoteRead
	case 3:
		a &^= provider.AccessRemoteWrite
	}
	if a&provider.AccessLocalWrite != 0 && d.oneIn(5) {
		a |= provider.AccessRemoteInvalidate
	}
	if d.oneIn(6) {
		a |= provider.AccessZeroBased
	}
	return a
}

// isThere looks in the engine whether a right exists.
func (r *right) isThere() bool {
	switch {
	case r.window != nil:
		stag, bound := r.window.mw.Bound()
		return bound && stag == r.key
	case r.fast != nil:
		stag, registered := r.fast.mr.Registered()
		return registered && stag == r.key
	}
	shut, _ := r.mr.(*memory.Region).Shut()
	return !shut
}

// rightsEnd freezes the spans that were reached through rights that have ended. With remote the
// peer has invalidated them: a region can still be used by us.
func (w *world) rightsEnd(list []rightEnds, remote bool) {
	for _, e := range list {
		for _, x := range e.seen {
			x.s.freeze(w, x.b)
		}
		if remote && !e.r.moving {
			e.r.shut = true
			continue
		}
		e.r.state = dead
	}
}

// deregister is a call that closes a region.
func (w *world) deregister(r *right) *call {
	if r == nil || r.state != live || r.mr == nil || r.moving {
		return nil
	}
	r.state = dying
	bound := r.mayHaveWindows()
	var err error
	var end rightEnds
	return &call{
		name: fmt.Sprintf("%s is closed", r),
		rank: rankEnd,
		run: func() {
			if err = r.mr.Close(); err == nil {
				end = r.ends(nil)
			}
		},
		finish: func() {
			if err != nil {
				if !errors.Is(err, syscall.EBUSY) || !bound && !r.mayHaveWindows() {
					w.fail("closing %s: %v", r, err)
				}
				r.state = live
				return
			}
			w.rightsEnd([]rightEnds{end}, false)
			for _, s := range w.lates {
				if s.via == r {
					s.drop()
				}
			}
			for _, v := range r.p.rights {
				if v.parent == r && v.state != dead && v.isThere() {
					w.fail("%s is closed, but %s is bound to it", r, v)
				}
			}
			w.seen("region closed")
		},
	}
}

func (r *right) mayHaveWindows() bool {
	for _, v := range r.p.rights {
		if v.parent == r && v.state != dead {
			return true
		}
	}
	return false
}

// allocate makes a window or a region that work requests register.
func (w *world) allocate(p *proc) {
	d := w.d
	pd := one(d, p.pds)
	if pd == nil || pd.closed || len(p.windows)+len(p.fasts) > 6 {
		return
	}
	if d.oneIn(2) {
		m, err := pd.pd.AllocMW(one(d, []provider.MWType{provider.MWType1, provider.MWType2, provider.MWType2}))
		w.need("allocating a window", err)
		p.windows = append(p.windows, &window{p: p, pd: pd, mw: m.(*memory.Window)})
		return
	}
	a, ok := p.mem.area(d.in(8, 4000))
	if !ok {
		return
	}
	m, err := pd.pd.AllocFastRegMR(uint64(a.hi - a.lo))
	w.need("allocating a region", err)
	p.fasts = append(p.fasts, &fastRegion{p: p, pd: pd, area: a, mr: m.(*memory.FastRegion)})
}

// memoryOp makes a work request on our own memory of o, nil if there is none to make.
func (w *world) memoryOp(o *op) *op {
	p, q := o.q.p, o.q
	o.wr.Flags = o.wr.Flags&provider.SendFence | provider.SendSignaled
	if f := one(w.d, p.fasts); f != nil && w.d.oneIn(2) {
		if f.gone || f.work > 0 || f.pd != q.pd {
			return nil
		}
		f.work++
		if f.now != nil && f.now.state != dead {
			return w.invalidation(o, f.now)
		}
		return w.registration(o, f)
	}
	v := one(w.d, p.windows)
	if v == nil || v.gone || v.binds > 0 || v.pd != q.pd || v.mw.Type() != provider.MWType2 {
		return nil
	}
	v.binds++
	if v.now != nil && v.now.state != dead && (v.now.qp == q || w.d.oneIn(w.mistakes)) {
		return w.invalidation(o, v.now)
	}
	if !w.bind(o, v) {
		v.binds--
		return nil
	}
	return o
}

func (w *world) invalidation(o *op, r *right) *op {
	o.wr.Opcode, o.wr.InvalidateRKey, o.ends = provider.WRLocalInv, r.key, r
	return o
}

func (w *world) registration(o *op, f *fastRegion) *op {
	n := w.d.in(1, f.area.hi-f.area.lo)
	w.need("mapping", f.mr.Map(f.p.mem.b[f.area.lo:f.area.lo+n]))
	access := w.someAccess()
	r := &right{p: f.p, pd: f.pd, lo: f.area.lo, hi: f.area.lo + n, fast: f, moving: true, mr: f.mr,
		base: f.mr.BaseWith(access), key: incRKey(f.mr.RKey()), access: access}
	o.wr.Opcode, o.wr.RKey, o.wr.Access, o.begins = provider.WRRegMR, r.key, access, r
	f.now = r
	f.p.rights = append(f.p.rights, r)
	return o
}

// bind makes o a bind of v, or reports false.
func (w *world) bind(o *op, v *window) bool {
	d := w.d
	var parent *right
	for range 4 {
		if r := one(d, v.p.rights); r != nil && r.window == nil && r.object == nil && r.pd == v.pd && r.state != dead &&
			(r.access&provider.AccessMWBind != 0 || d.oneIn(w.mistakes)) {
			parent = r
		}
	}
	if parent == nil {
		return false
	}
	lo := parent.lo + d.upTo(parent.hi-parent.lo-1)
	hi := d.in(lo+1, parent.hi)
	access := one(d, []provider.Access{
		provider.AccessRemoteWrite | provider.AccessRemoteRead, provider.AccessRemoteWrite, provider.AccessRemoteRead,
		provider.AccessRemoteWrite | provider.AccessZeroBased})
	r := &right{p: v.p, pd: v.pd, lo: lo, hi: hi, window: v, moving: true, parent: parent, access: access,
		base: parent.base + uint64(lo-parent.lo), key: incRKey(v.mw.RKey())}
	o.wr.Bind = &provider.MWBindInfo{LKey: parent.key, Addr: r.base, Length: uint64(hi - lo), Access: access}
	if access&provider.AccessZeroBased != 0 {
		r.base = 0
	}
	if v.mw.Type() == provider.MWType2 {
		r.qp = o.q
		r.access |= provider.AccessRemoteInvalidate
	} else if v.now != nil && v.now.state != dead {
		o.ends = v.now
	}
	o.wr.Opcode, o.wr.RKey, o.begins = provider.WRBindMW, r.key, r
	v.now = r
	v.p.rights = append(v.p.rights, r)
	return true
}

// bind1 is a call that binds a window of type 1.
func (w *world) bind1(q *queuePair) *call {
	if q == nil || q.closing {
		return nil
	}
	v := one(w.d, q.p.windows)
	if v == nil || v.gone || v.binds > 0 || v.pd != q.pd || v.mw.Type() != provider.MWType1 {
		return nil
	}
	o := w.blankOp(q)
	o.wr.Flags = provider.SendSignaled
	if !w.bind(o, v) {
		return nil
	}
	v.binds++
	w.posted(o)
	return w.postOps(q, []*op{o})
}

// memoryUnposted undoes the changes of windows and registrations for o, which was not posted.
func (w *world) memoryUnposted(o *op) {
	w.workOver(o)
	if r := o.begins; r != nil { // another right may get its key next
		r.state = dead
		r.p.rights = slices.DeleteFunc(r.p.rights, func(x *right) bool { return x == r })
		if r.window != nil {
			r.window.now = o.ends
		} else {
			r.fast.now = nil
		}
	}
}

func (w *world) workOver(o *op) {
	for _, r := range []*right{o.begins, o.ends} {
		if r == nil {
			continue
		}
		if r.window != nil {
			r.window.binds = 0
		} else if r.fast != nil {
			r.fast.work = 0
		}
	}
}

// memoryDone notes what a completed work request on our own memory has done.
func (w *world) memoryDone(p *polled) {
	o := p.o
	if o.begins == nil && o.ends == nil {
		return
	}
	w.workOver(o)
	if r := o.begins; r != nil && r.state == pending {
		r.state = live
	}
	w.rightsEnd(p.barrier, false)
	if r := o.begins; r != nil && r.state == dead {
		w.never = append(w.never, r)
	}
	if r := o.begins; r != nil && r.state == dead && r.window != nil && r.window.now == r &&
		o.ends != nil && o.ends.state != dead {
		r.window.now = o.ends
	}
	w.seen("memory work " + p.wc.Status.String())
}

// checkNever checks that no right exists whose work request had failed or was flushed, and had
// not been done.
func (w *world) checkNever() {
	for _, r := range w.never {
		if r.isThere() {
			w.fail("%s exists, but the work request that makes it had failed", r)
		}
	}
}

// closeWindow is a call that closes a window.
func (w *world) closeWindow(v *window) *call {
	if v == nil || v.gone {
		return nil
	}
	v.gone = true
	var ends []rightEnds
	return &call{
		name: fmt.Sprintf("%s closes a window", v.p),
		rank: rankEnd,
		run: func() {
			if err := v.mw.Close(); err != nil {
				w.failLater("closing a window: %v", err)
			}
			for _, r := range v.p.rights {
				if r.window == v && r.state != dead {
					ends = append(ends, r.ends(nil))
				}
			}
		},
		finish: func() { w.rightsEnd(ends, false) },
	}
}

// closeFast is a call that closes a region that work requests register.
func (w *world) closeFast(f *fastRegion) *call {
	if f == nil || f.gone {
		return nil
	}
	bound := f.now != nil && f.now.mayHaveWindows()
	var err error
	var ends []rightEnds
	return &call{
		name: fmt.Sprintf("%s closes a fast region", f.p),
		rank: rankEnd,
		run: func() {
			if err = f.mr.Close(); err != nil {
				return
			}
			for _, r := range f.p.rights {
				if r.fast == f && r.state != dead {
					ends = append(ends, r.ends(nil))
				}
			}
		},
		finish: func() {
			if err == nil {
				f.gone = true
				w.rightsEnd(ends, false)
				return
			}
			if !errors.Is(err, syscall.EBUSY) || !bound && (f.now == nil || !f.now.mayHaveWindows()) {
				w.fail("%s: closing a fast region: %v", f.p, err)
			}
		},
	}
}
