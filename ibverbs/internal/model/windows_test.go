package model

import (
	"slices"

	"github.com/govs-rdma/govs/ibverbs"
)

// moving is what windows have in common with regions that work requests register: a
// key that changes with work of a send queue, and that a Send with Invalidate of the
// peer ends.
type moving struct {
	key     uint32 // once all that is posted is done
	valid   bool   // then: something is bound, or registered
	by      *lane  // whose posts change it, nil if none do at the moment
	changes int    // that are not known to be done
	doubt   bool   // a change was lost with its connection
}

// holds reports whether it is certainly valid: everything is known to be done, and nothing was
// lost.
func (m *moving) holds() bool { return m.valid && m.changes == 0 && !m.doubt }

// mine reports whether work that l posts now finds it as the model has it: what stands in
// the same send queue takes its turn.
func (m *moving) mine(l *lane) bool { return m.changes == 0 || m.by == l }

// change enters work of l that changes it, and what is to be done in the model when that
// has happened.
func (m *moving) change(l *lane, then func()) *change {
	m.by = l
	m.changes++
	return &change{m: m, then: then}
}

// another is a key for the next bind or registration.
func (m *moving) another(d *dice) uint32 {
	if d.oneIn(2) {
		return ibverbs.IncRKey(m.key)
	}
	return m.key&^0xff | (m.key+1+uint32(d.pick(255)))&0xff
}

// rename gives it another key, which may be one that it has had before.
func (m *moving) rename(s *side, key uint32) {
	m.key = key
	s.dead = slices.DeleteFunc(s.dead, func(g ghost) bool { return g.rkey == key })
}

// retire says that a key that it has had names nothing any more.
func (m *moving) retire(s *side, was ghost) {
	if was.rkey != m.key {
		s.dead = append(s.dead, was)
	}
}

// change is one that is posted, nil for none.
type change struct {
	m    *moving
	then func()
	over bool
}

// known says that a change has happened.
func (c *change) known() {
	if c == nil || c.over {
		return
	}
	c.over = true
	if c.m.changes--; c.m.changes == 0 {
		c.m.by = nil
	}
	c.then()
}

// lost says that nobody knows whether it has happened.
func (c *change) lost() {
	if c != nil && !c.over {
		c.m.doubt = true
		c.known()
	}
}

// memoryOnly reports whether an operation is on our own memory, of which the peer sees
// nothing.
func memoryOnly(op ibverbs.WROpcode) bool {
	return op == ibverbs.WRBindMW || op == ibverbs.WRRegMR || op == ibverbs.WRLocalInv
}

// window is an MW.
type window struct {
	moving
	s      *side
	d      *domain
	mw     *ibverbs.MW
	typ    ibverbs.MWType
	l      *lane   // of type 2: for whose peer it is
	g      *region // that it is bound to, once all that is posted is done
	off, n int     // in the side's memory
	base   uint64  // address of its first byte
	access ibverbs.Access
	uses   int // by work of peers that is posted
}

// lets reports whether the peer of l may use n bytes through the window.
func (w *window) lets(l *lane, n int, need ibverbs.Access) bool {
	return w.seen(l) && n <= w.n && w.access&need != 0
}

// seen reports whether the window is there for the peer of l.
func (w *window) seen(l *lane) bool {
	return w.holds() && w.s == l.s && w.d == l.d && (w.typ == ibverbs.MWType1 || w.l == l)
}

// fast is what a region has that work requests register.
type fast struct {
	moving
	max     int
	address uint64 // of its first byte, unless a registration is zero-based
	base    uint64 // of the one that was posted last
	posted  int    // registrations that are not known to be done
}

func (s *side) allocFast(d *dice, dom *domain) {
	g := &region{s: s, d: dom, fast: &fast{max: d.in(8, 24<<10)}}
	var err error
	g.mr, err = dom.pd.AllocFastRegMR(uint64(g.fast.max))
	s.r.need("making a region for work requests", err)
	g.fast.key, g.fast.address, g.fast.base = g.mr.RKey(), g.mr.Addr(), g.mr.Addr()
	s.r.note("side %d makes a region for work requests, %d bytes, key %#x", s.e, g.fast.max, g.fast.key)
	s.regions = append(s.regions, g)
}

const maxWindows = 5

// stepWindow makes a window, takes one away, or binds one of type 1. Those of type 2 are
// bound by work requests among others.
func (r *run) stepWindow(d *dice) {
	s := r.sides[d.pick(2)]
	if s.kernel { // siw has none
		s = r.sides[1-s.e]
	}
	if s.kernel {
		return
	}
	w := one(d, s.windows)
	switch {
	case w == nil || len(s.windows) < maxWindows && d.oneIn(3):
		s.allocWindow(d, one(d, s.pds))
	case w.uses == 0 && w.changes == 0 && d.oneIn(6):
		r.note("side %d closes a window of type %d (bound: %v), key %#x", s.e, w.typ, w.valid, w.key)
		s.closeWindow(w)
		r.need("closing a window twice", w.mw.Close())
	case w.typ == ibverbs.MWType1:
		r.bindFirst(d, w)
	}
}

func (s *side) allocWindow(d *dice, dom *domain) {
	w := &window{s: s, d: dom, typ: one(d, []ibverbs.MWType{ibverbs.MWType1, ibverbs.MWType2, ibverbs.MWType2})}
	var err error
	w.mw, err = dom.pd.AllocMW(w.typ)
	s.r.need("making a window", err)
	w.key = w.mw.RKey()
	s.r.note("side %d makes a window of type %d, key %#x", s.e, w.typ, w.key)
	s.windows = append(s.windows, w)
}

func (s *side) closeWindow(w *window) {
	s.r.need("closing a window", w.mw.Close())
	s.dead = append(s.dead, ghost{w.d, w.base, w.key, w.key})
	w.unbind()()
	s.windows = slices.DeleteFunc(s.windows, func(other *window) bool { return other == w })
}

// bind enters that the window is bound to n bytes of g from off on, under another key.
// It returns what is to be done when that has happened.
func (w *window) bind(l *lane, key uint32, g *region, off, n int, access ibverbs.Access) *change {
	was := ghost{w.d, w.base, w.key, w.key}
	letGo := w.unbind()
	w.rename(w.s, key)
	if g != nil {
		w.valid, w.g, w.off, w.n, w.access = true, g, g.off+off, n, access
		if w.base = g.addr() + uint64(off); access&ibverbs.AccessZeroBased != 0 {
			w.base = 0
		}
		g.bound++
		if w.typ == ibverbs.MWType2 {
			w.l = l
		}
	}
	return w.change(l, func() {
		letGo()
		w.retire(w.s, was)
		w.s.r.seen("bind of type " + string('0'+rune(w.typ)))
	})
}

// unbind enters that the window is bound to nothing. It returns what lets the region go
// when that has happened.
func (w *window) unbind() (letGo func()) {
	g := w.g
	w.valid, w.g, w.l = false, nil, nil
	return func() {
		if g != nil {
			g.bound--
		}
	}
}

// ground picks what the window may be bound to.
func (w *window) ground(d *dice) (g *region, off, n int, access ibverbs.Access) {
	g = w.s.some(d, func(g *region) bool { return g.d == w.d && g.open() && g.access&ibverbs.AccessMWBind != 0 })
	if g == nil {
		return nil, 0, 0, 0
	}
	const rd, wr = ibverbs.AccessRemoteRead, ibverbs.AccessRemoteWrite
	access = rd
	if g.access&ibverbs.AccessLocalWrite != 0 {
		access = one(d, []ibverbs.Access{rd, wr, rd | wr, rd | wr})
		if w.s.r.w.ext && d.oneIn(2) {
			access |= ibverbs.AccessRemoteAtomic
		}
	}
	if d.oneIn(3) {
		access |= ibverbs.AccessZeroBased
	}
	off = d.pick(g.n)
	if d.oneIn(2) {
		off = 0
	}
	if w.s.r.w.ext {
		off &^= 7 // as with regions
	}
	return g, off, d.in((g.n-off+1)/2, g.n-off), access
}

// info is what a bind says.
func (r *run) info(g *region, off, n int, access ibverbs.Access) ibverbs.MWBindInfo {
	info, err := g.mr.BindInfo(off, n, access)
	r.need("naming part of a region", err)
	return info
}

// lanes are the ends of connections on side s.
func (s *side) lanes() (all []*lane) {
	for _, c := range s.r.conns {
		all = append(all, c.lanes[s.e])
	}
	return all
}

// bindFirst binds a window of type 1, or unbinds it.
func (r *run) bindFirst(d *dice, w *window) {
	l := one(d, w.s.lanes())
	if l == nil || l.d != w.d || !w.mine(l) || w.uses > 0 || l.places() < 1 || l.sendQ.room() < 1 {
		return
	}
	var info ibverbs.MWBindInfo
	g, off, n, access := w.ground(d)
	if d.oneIn(4) {
		g = nil
	}
	if g != nil {
		info = r.info(g, off, n, access)
	}
	j := &job{id: r.newID(), l: l, op: ibverbs.WRBindMW, wcop: ibverbs.WCBindMW, fence: d.oneIn(4)}
	j.change = w.bind(l, ibverbs.IncRKey(w.key), g, off, n, access)
	flags := r.flags(d, j)
	r.enter(j)
	r.note("connection %d, side %d posts %d: bind of type 1 to %d bytes at %#x of key %#x, rights %s, key %#x", l.c.n, l.s.e, j.id, info.Length, info.Addr, info.LKey, info.Access, w.key)
	r.need("binding", l.qp.BindMW(w.mw, ibverbs.MWBind{WRID: j.id, Flags: flags, Info: info}))
	r.checkKeys(w.s)
}

// bindSecond makes wr the bind of a window of type 2.
func (r *run) bindSecond(d *dice, j *job, wr *ibverbs.SendWR) bool {
	l := j.l
	var list []*window
	for _, w := range l.s.windows {
		if w.typ == ibverbs.MWType2 && w.d == l.d && !w.valid && w.mine(l) {
			list = append(list, w)
		}
	}
	w := one(d, list)
	if w == nil {
		return false
	}
	g, off, n, access := w.ground(d)
	if g == nil {
		return false
	}
	info := r.info(g, off, n, access)
	j.wcop = ibverbs.WCBindMW
	wr.RKey, wr.Bind = w.another(d), &info
	j.change = w.bind(l, wr.RKey, g, off, n, access)
	r.note("     window: %d bytes at %#x of key %#x, rights %s", n, info.Addr, info.LKey, access)
	return true
}

// registration makes wr the registration of a region.
func (r *run) registration(d *dice, j *job, wr *ibverbs.SendWR) bool {
	l := j.l
	// What is mapped is for the next post: one registration at a time.
	g := l.s.some(d, func(g *region) bool {
		return g.fast != nil && g.d == l.d && !g.fast.valid && g.fast.posted == 0 && g.fast.mine(l)
	})
	if g == nil {
		return false
	}
	f := g.fast
	was := ghost{g.d, f.base, f.key, f.key}
	g.n = d.in(1, f.max)
	g.off = d.pick(arena - g.n)
	if r.w.ext {
		g.off, g.n = g.off&^7, max(g.n&^7, 8)
	}
	if g.access = l.s.rights(d); d.oneIn(2) {
		g.access |= ibverbs.AccessRemoteInvalidate
	}
	f.base, f.valid = f.address, true
	f.rename(l.s, f.another(d))
	wr.Access = g.access
	if d.oneIn(3) {
		wr.Access |= ibverbs.AccessZeroBased
		f.base = 0
	}
	r.need("mapping", g.mr.Map(l.s.mem[g.off:g.off+g.n]))
	j.wcop, wr.RKey = ibverbs.WCRegMR, f.key
	f.posted++
	j.change = f.change(l, func() {
		f.posted--
		f.retire(l.s, was)
		r.seen("registration")
	})
	r.note("     region: %d bytes at %d, rights %s", g.n, g.off, wr.Access)
	return true
}

// localInvalidation makes wr the invalidation of something of ours.
func (r *run) localInvalidation(d *dice, j *job, wr *ibverbs.SendWR) bool {
	l := j.l
	again := d.oneIn(6) // of what is not valid any more
	j.wcop = ibverbs.WCLocalInv
	var list []*window
	for _, w := range l.s.windows {
		if w.typ == ibverbs.MWType2 && w.d == l.d && w.mine(l) && w.uses == 0 && (w.valid && w.l == l || !w.valid && again) {
			list = append(list, w)
		}
	}
	if w := one(d, list); w != nil && d.oneIn(3) {
		wr.InvalidateRKey = w.key
		letGo := w.unbind()
		j.change = w.change(l, func() { letGo(); r.seen("local invalidation of a window") })
		return true
	}
	g := l.s.some(d, func(g *region) bool {
		return g.fast != nil && g.d == l.d && g.fast.mine(l) && g.bound == 0 && (g.fast.valid || again) && l.s.behind(g, nil, func(u *use) bool {
			// Reads are waited for, all else is done when its turn has come.
			return u.l == l && (u.kind == localRead || u.kind == localWrite && u.read)
		})
	})
	if g == nil {
		return false
	}
	j.fence = j.fence || !l.s.behind(g, nil, func(u *use) bool { return u.kind == localRead })
	wr.InvalidateRKey = g.fast.key
	if g.uses > 0 {
		r.seen("invalidation behind work")
	}
	g.fast.valid = false
	j.change = g.fast.change(l, func() { r.seen("local invalidation of a region") })
	return true
}

// behind reports whether all uses of a region, or of a window, are of that kind.
func (s *side) behind(g *region, w *window, kind func(*use) bool) bool {
	for _, u := range s.flux {
		if (g != nil && u.g == g || w != nil && u.w == w) && !kind(u) {
			return false
		}
	}
	return true
}

// victim picks what a Send with Invalidate of l may end. What is behind it in the same
// stream finds it ended, what is before it does not, but for Reads, which the Send waits
// for if it is fenced. hit enters that rc gets the Send.
func (r *run) victim(d *dice, l *lane, fence bool) (key uint32, hit func(rc *receipt)) {
	p := l.peer()
	before := func(u *use) bool {
		return !p.s.kernel && u.l == l && (u.kind == remoteWrite || u.kind == remoteAtomic || u.kind == remoteRead && fence)
	}
	var list []*window
	for _, w := range p.s.windows {
		if w.typ == ibverbs.MWType2 && w.seen(p) && p.s.behind(nil, w, before) {
			list = append(list, w)
		}
	}
	if w := one(d, list); w != nil && d.oneIn(2) {
		return w.key, func(rc *receipt) {
			letGo := w.unbind()
			rc.change = w.change(l, func() { letGo(); r.seen("window invalidated by the peer") })
		}
	}
	g := p.s.some(d, func(g *region) bool {
		return g.d == p.d && g.open() && g.bound == 0 && g.access&ibverbs.AccessRemoteInvalidate != 0 && p.s.behind(g, nil, before)
	})
	if g == nil {
		return 0, nil
	}
	return g.rkey(), func(rc *receipt) {
		if g.fast != nil {
			g.fast.valid = false
			rc.change = g.fast.change(l, func() { r.seen("registration invalidated by the peer") })
			return
		}
		g.shut = true
		rc.change = g.ending.change(l, func() { r.seen("region invalidated by the peer") })
		// It may not be closed, or named by another key, before that has happened.
		rc.uses = append(rc.uses, p.s.hold(g, nil, g.off, 0, remoteWrite))
	}
}

// keeps checks that a region stays what it is while windows are bound to it.
func (r *run) keeps(g *region) {
	if !g.s.settled(g) {
		return
	}
	r.note("side %d can't close key %#x: a window is bound to it", g.s.e, g.rkey())
	r.refused("closing a region with a window", ebusy, g.mr.Close())
	if g.fast == nil && !r.w.wrapped {
		r.refused("re-registering a region with a window", ebusy, g.mr.Rereg(ibverbs.ReregAccess, nil, nil, ibverbs.AccessLocalWrite))
	}
	r.seen("region kept by a window")
}

// checkKeys checks what windows and regions tell of themselves. All that is posted has
// been given to the device.
func (r *run) checkKeys(s *side) {
	for _, w := range s.windows {
		if got := w.mw.RKey(); got != w.key {
			r.fail("side %d: a window has key %#x, want %#x", s.e, got, w.key)
		}
	}
	for _, g := range s.regions {
		if g.fast != nil && (g.mr.RKey() != g.fast.key || g.mr.LKey() != g.fast.key || g.mr.Addr() != g.fast.base || g.mr.Len() != uint64(g.n)) {
			r.fail("side %d: a region has key %#x and %d bytes at %#x, want %#x and %d at %#x", s.e,
				g.mr.RKey(), g.mr.Len(), g.mr.Addr(), g.fast.key, g.n, g.fast.base)
		}
	}
}

// settled reports whether a region has a window that is certainly bound to it.
func (s *side) settled(g *region) bool {
	return len(s.fitting(func(w *window) bool { return w.g == g && w.holds() })) > 0
}

// parted says that the QPs of a connection are gone, and with them the windows that were
// bound for their peers. What is in doubt is given up.
func (r *run) parted(c *conn) {
	for _, s := range r.sides {
		for _, w := range slices.Clone(s.windows) {
			switch {
			case w.doubt:
				s.closeWindow(w)
			case w.l != nil && w.l.c == c:
				w.unbind()()
				r.seen("window gone with its connection")
			}
		}
		for _, g := range slices.Clone(s.regions) {
			if g.fast != nil && g.fast.doubt {
				s.deregister(g)
			}
		}
	}
}

// target is memory of the peer that work may name.
type target struct {
	g    *region
	w    *window
	off  int // in the side's memory
	addr uint64
	key  uint32
}

// hold enters a use of it.
func (t *target) hold(l *lane, n int, kind useKind) *use {
	u := t.g.s.hold(t.g, l, t.off, n, kind)
	if t.w != nil {
		u.w = t.w
		t.w.uses++
		t.g.s.r.seen(kindNames[kind] + " through a window")
	} else if t.g.fast != nil {
		t.g.s.r.seen(kindNames[kind] + " of a registration")
	}
	return u
}

var kindNames = map[useKind]string{remoteRead: "Read", remoteWrite: "Write", remoteAtomic: "atomic"}

// rightOf are those that a peer needs.
var rightOf = map[useKind]ibverbs.Access{remoteRead: ibverbs.AccessRemoteRead, remoteWrite: ibverbs.AccessRemoteWrite, remoteAtomic: ibverbs.AccessRemoteAtomic}

// target finds n bytes of the peer of l that its work may use in that way: of a window
// or of a region.
func (r *run) target(d *dice, l *lane, n int, kind useKind, fence bool) (target, bool) {
	p := l.peer()
	var list []*window
	for _, w := range p.s.windows {
		if w.lets(p, n, rightOf[kind]) {
			list = append(list, w)
		}
	}
	if len(list) > 0 && !d.oneIn(4) {
		for range 4 {
			w := one(d, list)
			off := d.pick(w.n - n + 1)
			if kind == remoteAtomic {
				off &^= 7
			}
			if p.s.free(l, w.off+off, n, kind, fence) {
				return target{w.g, w, w.off + off, w.base + uint64(off), w.key}, true
			}
		}
	}
	g, off, ok := r.spot(d, p.s, p.d, l, n, kind, fence)
	if !ok {
		return target{}, false
	}
	return target{g, nil, g.off + off, g.addr() + uint64(off), g.rkey()}, true
}
