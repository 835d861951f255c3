package model

import (
	"slices"

	"github.com/govs-rdma/govs/ibverbs"
)

// windowSpoils are ways to name a window of the peer that work may not use.
var windowSpoils = []spoil{
	anotherConnection,
	{"of a window of another PD", terminate{1, 1, 2}, terminate{0, 1, 3}, func(_ *run, d *dice, l *lane, need ibverbs.Access, n int) (uint64, uint32, bool) {
		return l.window(d, func(w *window) bool { return w.holds() && w.d != l.peer().d && w.access&need != 0 && w.n >= n })
	}},
	{"of a window that is not bound", terminate{1, 1, 0}, terminate{0, 1, 0}, func(_ *run, d *dice, l *lane, _ ibverbs.Access, _ int) (uint64, uint32, bool) {
		return l.window(d, func(w *window) bool { return !w.valid && w.changes == 0 && w.d == l.peer().d })
	}},
	{"of a window without the right", terminate{1, 1, 0}, terminate{0, 1, 2}, func(_ *run, d *dice, l *lane, need ibverbs.Access, n int) (uint64, uint32, bool) {
		return l.window(d, func(w *window) bool { return w.seen(l.peer()) && w.access&need == 0 && w.n >= n })
	}},
	{"beyond a window's end", terminate{1, 1, 1}, terminate{0, 1, 1}, func(_ *run, d *dice, l *lane, need ibverbs.Access, n int) (uint64, uint32, bool) {
		w := one(d, l.peer().s.fitting(func(w *window) bool { return w.lets(l.peer(), n, need) }))
		if w == nil {
			return 0, 0, false
		}
		return w.base + uint64(w.n-n+1), w.key, true
	}},
}

var anotherConnection = spoil{"of a window for another connection", terminate{1, 1, 2}, terminate{0, 1, 3}, func(_ *run, d *dice, l *lane, need ibverbs.Access, n int) (uint64, uint32, bool) {
	return l.window(d, func(w *window) bool {
		return w.holds() && w.d == l.peer().d && w.l != nil && w.l != l.peer() && w.access&need != 0 && w.n >= n
	})
}}

// fitting are the windows that fit.
func (s *side) fitting(fits func(*window) bool) (list []*window) {
	for _, w := range s.windows {
		if fits(w) {
			list = append(list, w)
		}
	}
	return list
}

// window picks a window of the peer, of which its first bytes are named.
func (l *lane) window(d *dice, fits func(*window) bool) (uint64, uint32, bool) {
	w := one(d, l.peer().s.fitting(fits))
	if w == nil {
		return 0, 0, false
	}
	return w.base, w.key, true
}

// faultMemory posts work on our own memory that fails when its turn comes.
func (r *run) faultMemory(d *dice, l *lane, j *job, wr *ibverbs.SendWR) (string, terminate, bool, bool) {
	want := terminate{0, 0, 0xff}
	// Who may not send yet has no Terminate to say it with, and does such work all the
	// same.
	if l.s.kernel || l != l.c.active && !l.c.heard {
		return "", want, false, false
	}
	j.n, j.never, j.may = 0, true, []ibverbs.WCStatus{ibverbs.WCMWBindErr}
	how := one(d, []func(*run, *dice, *lane, *job, *ibverbs.SendWR) string{
		(*run).badBind, (*run).badBind, (*run).badInvalidation, (*run).badInvalidation, (*run).badRegistration,
	})
	name := how(r, d, l, j, wr)
	return name, want, false, name != ""
}

// badBind asks for a window that there can't be.
func (r *run) badBind(d *dice, l *lane, j *job, wr *ibverbs.SendWR) (name string) {
	// What is bound for another connection stays so, but the model closes it with this one.
	w := one(d, l.s.fitting(func(w *window) bool {
		return w.typ == ibverbs.MWType2 && w.d == l.d && w.mine(l) && w.uses == 0
	}))
	if w == nil {
		return ""
	}
	may := func(need ibverbs.Access) func(*region) bool {
		return func(g *region) bool { return g.d == l.d && g.open() && g.access&need == need }
	}
	const mw, lw = ibverbs.AccessMWBind, ibverbs.AccessLocalWrite
	info := ibverbs.MWBindInfo{LKey: 0x7ffff05a, Addr: 1 << 20, Length: 8, Access: ibverbs.AccessRemoteRead}
	if name = "a bind to a key of nothing"; d.oneIn(3) {
		if dead := one(d, l.s.dead); dead.lkey != 0 && dead.d == l.d {
			name, info.LKey, info.Addr = "a bind to a key that is no more", dead.lkey, dead.addr
		}
	}
	good := l.s.some(d, may(mw))
	switch {
	case w.valid && good != nil:
		name, info = "a bind of a window that is bound", r.info(good, 0, 1, ibverbs.AccessRemoteRead)
	case w.valid:
		return ""
	case d.oneIn(4):
	case d.oneIn(3) && good != nil:
		name, info = "a bind beyond the region's end", r.info(good, 0, good.n, ibverbs.AccessRemoteRead)
		info.Addr++
	default:
		g := l.s.some(d, func(g *region) bool { return may(0)(g) && g.access&mw == 0 })
		if name = "a bind to a region without the right to it"; g == nil || d.oneIn(2) {
			g = l.s.some(d, func(g *region) bool { return may(mw)(g) && g.access&lw == 0 })
			name, info.Access = "a bind for writing to what may only be read", ibverbs.AccessRemoteWrite
		}
		if g == nil {
			return ""
		}
		info = r.info(g, 0, g.n, info.Access)
	}
	j.op, wr.RKey, wr.Bind = ibverbs.WRBindMW, w.another(d), &info
	w.rename(l.s, wr.RKey)
	j.change = w.change(l, func() {})
	return name
}

// badInvalidation names what is not to be invalidated.
func (r *run) badInvalidation(d *dice, l *lane, j *job, wr *ibverbs.SendWR) (name string) {
	j.op = ibverbs.WRLocalInv
	name, wr.InvalidateRKey = "an invalidation of nothing", 0x7ffff05a
	w := one(d, l.s.fitting(func(w *window) bool {
		return w.typ == ibverbs.MWType1 || w.d != l.d || w.holds() && w.l != l
	}))
	switch d.pick(5) {
	case 0:
	case 1:
		if dead := one(d, l.s.dead); dead.lkey != 0 {
			name, wr.InvalidateRKey = "an invalidation of what is no more", dead.lkey
		}
	case 2:
		if g := l.s.some(d, func(g *region) bool { return g.fast == nil }); g != nil {
			name, wr.InvalidateRKey = "an invalidation of a region that no work request registered", g.lkey()
		}
	case 3:
		if g := l.s.some(d, func(g *region) bool {
			return g.fast != nil && g.d == l.d && g.fast.holds() && l.s.holdsWindow(g)
		}); g != nil {
			name, wr.InvalidateRKey = "an invalidation of a region with a window", g.lkey()
		}
	default:
		if w != nil {
			name, wr.InvalidateRKey = "an invalidation of a window that isn't this connection's", w.key
		}
	}
	return name
}

// holdsWindow reports whether a window is bound to g, and nothing is posted that ends that.
func (s *side) holdsWindow(g *region) bool {
	return slices.ContainsFunc(s.windows, func(w *window) bool { return w.g == g && w.holds() })
}

// badRegistration registers what is registered.
func (r *run) badRegistration(d *dice, l *lane, j *job, wr *ibverbs.SendWR) string {
	g := l.s.some(d, func(g *region) bool {
		return g.fast != nil && g.d == l.d && g.fast.valid && g.fast.mine(l) && g.fast.posted == 0 && g.bound == 0 &&
			l.s.behind(g, nil, func(u *use) bool { return u.l == l && u.kind == localRead })
	})
	if g == nil {
		return ""
	}
	r.need("mapping", g.mr.Map(l.s.mem[:1]))
	j.op, wr.RKey = ibverbs.WRRegMR, g.fast.another(d)
	g.fast.rename(l.s, wr.RKey)
	j.change = g.fast.change(l, func() {})
	return "a registration of what is registered"
}

// badMemoryWork are work requests on our own memory that can't be posted.
func (r *run) badMemoryWork(d *dice, l *lane) (list []badWR) {
	if l.s.kernel {
		return nil
	}
	const nothing = 0x7ffff05a
	bind := func(key uint32, n uint64) ibverbs.SendWR {
		return ibverbs.SendWR{Opcode: ibverbs.WRBindMW, RKey: key, Bind: &ibverbs.MWBindInfo{LKey: l.d.bell.LKey(), Addr: l.d.bell.Addr(), Length: n, Access: ibverbs.AccessRemoteRead}}
	}
	list = []badWR{
		{ibverbs.SendWR{Opcode: ibverbs.WRBindMW, RKey: nothing}, einval},
		{bind(nothing, 1), einval},
		{ibverbs.SendWR{Opcode: ibverbs.WRRegMR, RKey: nothing}, einval},
		{ibverbs.SendWR{Opcode: ibverbs.WRLocalInv, Flags: ibverbs.SendSolicited}, einval},
		{ibverbs.SendWR{Opcode: ibverbs.WRLocalInv, SGList: []ibverbs.SGE{{}}}, einval},
	}
	if w := one(d, l.s.windows); w != nil {
		switch {
		case w.typ == ibverbs.MWType1:
			list = append(list, badWR{bind(ibverbs.IncRKey(w.key), 1), einval})
		case w.d != l.d:
			list = append(list, badWR{bind(ibverbs.IncRKey(w.key), 1), eperm})
		default:
			other := bind(ibverbs.IncRKey(w.key), 1)
			other.Bind.Access |= ibverbs.AccessLocalWrite
			list = append(list, badWR{bind(w.key, 1), einval}, badWR{bind(ibverbs.IncRKey(w.key), 0), einval}, badWR{other, einval})
		}
	}
	if g := l.s.some(d, func(g *region) bool { return g.fast != nil }); g != nil {
		reg := func(key uint32, access ibverbs.Access) ibverbs.SendWR {
			return ibverbs.SendWR{Opcode: ibverbs.WRRegMR, RKey: key, Access: access}
		}
		if g.d != l.d {
			list = append(list, badWR{reg(ibverbs.IncRKey(g.fast.key), 0), eperm})
		} else {
			list = append(list, badWR{reg(g.fast.key, 0), einval}, badWR{reg(ibverbs.IncRKey(g.fast.key), ibverbs.AccessRemoteWrite), einval})
		}
	}
	return list
}

// badBinds calls what can't be about windows of side s.
func (r *run) badBinds(s *side) {
	for _, w := range s.windows {
		for _, l := range s.lanes() {
			switch {
			case w.typ == ibverbs.MWType2:
				r.refused("BindMW of a window of type 2", einval, l.qp.BindMW(w.mw, ibverbs.MWBind{}))
			case w.d != l.d:
				r.refused("binding a window of another PD", eperm, l.qp.BindMW(w.mw, ibverbs.MWBind{}))
			default:
				r.refused("binding with rights that no window has", einval, l.qp.BindMW(w.mw, ibverbs.MWBind{Info: ibverbs.MWBindInfo{Access: ibverbs.AccessLocalWrite}}))
			}
		}
	}
	r.checkKeys(s)
}
