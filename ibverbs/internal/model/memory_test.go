package model

import (
	"bytes"
	"slices"

	"github.com/govs-rdma/govs/ibverbs"
)

const arena = 128 << 10 // bytes of memory of each side

// side is one of the two devices with what is made on it. mem is its memory, and
// want what the model says is in it, but for what flux tells is on its way.
type side struct {
	r      *run
	e      int
	vctx   *ibverbs.Context
	kernel bool
	attr   ibverbs.DeviceAttr

	pds     []*domain
	mem     []byte
	want    []byte
	flux    []*use
	regions []*region
	windows []*window
	dead    []ghost // keys that name nothing any more
	queues  []*queue
	shared  []*shared
}

// domain is a PD. Its bell is a region that any peer may read, outside of the
// model's memory: a Read of it, like any Read, is answered after earlier Writes have
// been placed. It is not on the heap: the race detector would see Reads that end there at
// the same time.
type domain struct {
	pd   *ibverbs.PD
	bell *ibverbs.MR
}

const bellOctets = 8

type ghost struct {
	d          *domain
	addr       uint64
	lkey, rkey uint32
}

// region is an MR over n bytes of the side's memory from off on.
type region struct {
	s      *side
	d      *domain
	mr     *ibverbs.MR
	off, n int
	access ibverbs.Access
	uses   int    // by work that is posted
	shut   bool   // by a Send with Invalidate: the peer may not use it any more
	ending moving // of shut: the Send may be under way, or lost with its connection
	bound  int    // windows that are bound to it, or may be
	fast   *fast  // of a region that work requests register
}

func (g *region) addr() uint64 {
	if g.fast != nil {
		return g.fast.base
	}
	return g.mr.Addr()
}

func (g *region) lkey() uint32 {
	if g.fast != nil {
		return g.fast.key
	}
	return g.mr.LKey()
}

func (g *region) rkey() uint32 {
	if g.fast != nil {
		return g.fast.key
	}
	return g.mr.RKey()
}

func (g *region) sge(off, n int) ibverbs.SGE {
	return ibverbs.SGE{Addr: g.addr() + uint64(off), Length: uint32(n), LKey: g.lkey()}
}

// local reports whether our own work may use the region: siw's can't once a peer has
// invalidated it.
func (g *region) local() bool {
	if g.fast != nil {
		return g.fast.holds()
	}
	return !g.shut || !g.s.kernel
}

// open reports whether peers may use the region, as far as its rights say so.
func (g *region) open() bool {
	if g.fast != nil {
		return g.fast.holds()
	}
	return !g.shut
}

// invalid reports whether the region's key is certainly one that was invalidated.
func (g *region) invalid() bool {
	if g.fast != nil {
		return !g.fast.valid && g.fast.changes == 0 && !g.fast.doubt
	}
	return g.shut && g.ending.changes == 0 && !g.ending.doubt
}

// A use is an access to memory that posted work may make at any time until it is
// known to be done.
type use struct {
	g      *region
	w      *window // through which it is made, nil for none
	off, n int     // in the side's memory
	kind   useKind
	l      *lane // whose work it is; nil for receives of an SRQ
	read   bool  // of an RDMA Read or an atomic operation
	old    []byte
	new    []byte // of a write; nil as long as no message was sent to a receive
}

type useKind int

const (
	localRead useKind = iota
	localWrite
	remoteRead
	remoteWrite
	remoteAtomic
)

func (k useKind) writes() bool { return k == localWrite || k == remoteWrite || k == remoteAtomic }

// free reports whether work of l that is posted now may use memory in that way: nothing
// that is on its way could make a difference, or the order of the two is certain.
func (s *side) free(l *lane, off, n int, kind useKind, fence bool) bool {
	for _, u := range s.flux {
		if off >= u.off+u.n || u.off >= off+n || n == 0 || !kind.writes() && !u.kind.writes() {
			continue
		}
		same := l != nil && u.l == l
		switch {
		case same && u.kind == remoteWrite && kind == remoteRead:
			// RFC 5040 section 5.5: what was written before is what is read.
		case same && fence && u.read && u.kind == localWrite && kind == localRead:
		case same && fence && u.read && u.kind == remoteRead && kind == remoteWrite:
		default:
			return false
		}
	}
	return true
}

// hold enters a use.
func (s *side) hold(g *region, l *lane, off, n int, kind useKind) *use {
	u := &use{g: g, l: l, off: off, n: n, kind: kind}
	g.uses++
	s.flux = append(s.flux, u)
	return u
}

// put says what a use will have written.
func (u *use) put(data []byte) {
	s := u.g.s
	u.old = bytes.Clone(s.want[u.off : u.off+u.n])
	u.new = bytes.Clone(u.old)
	copy(u.new, data)
	copy(s.want[u.off:], u.new)
}

// done ends a use that has done what it should, and checks that.
func (u *use) done(what string) {
	s := u.g.s
	if !u.drop() {
		return
	}
	if u.kind.writes() && !bytes.Equal(s.mem[u.off:u.off+u.n], s.want[u.off:u.off+u.n]) {
		s.r.fail("%s: byte %d of side %d is %#x, want %#x", what, u.off+differ(s.mem[u.off:u.off+u.n], s.want[u.off:]),
			s.e, s.mem[u.off+differ(s.mem[u.off:u.off+u.n], s.want[u.off:])], s.want[u.off+differ(s.mem[u.off:u.off+u.n], s.want[u.off:])])
	}
}

// lost ends a use of which nobody knows whether it has happened, in all or in part.
// What is in memory from now on is what is there.
func (u *use) lost(what string) {
	s := u.g.s
	if !u.drop() || u.new == nil {
		return
	}
	for i := range u.n {
		if b := s.mem[u.off+i]; b != u.old[i] && b != u.new[i] {
			s.r.fail("%s: byte %d of side %d is %#x, and was %#x or became %#x", what, u.off+i, s.e, b, u.old[i], u.new[i])
		}
	}
	copy(s.want[u.off:u.off+u.n], s.mem[u.off:])
}

func (u *use) drop() bool {
	s := u.g.s
	for i := range s.flux {
		if s.flux[i] == u {
			s.flux[i] = s.flux[len(s.flux)-1]
			s.flux = s.flux[:len(s.flux)-1]
			u.g.uses--
			if u.w != nil {
				u.w.uses--
			}
			return true
		}
	}
	return false
}

func differ(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// compare compares all memory with the model, when nothing is on its way.
func (s *side) compare() {
	if !bytes.Equal(s.mem, s.want) {
		i := differ(s.mem, s.want)
		s.r.fail("byte %d of side %d is %#x, want %#x, which no work that is posted accounts for",
			i, s.e, s.mem[i], s.want[i])
	}
}

// stepStore has the program change memory that nothing uses.
func (r *run) stepStore(d *dice) {
	s := r.sides[d.pick(2)]
	n := d.in(1, 5000)
	off := d.pick(arena - n)
	if !s.free(nil, off, n, localWrite, false) {
		return
	}
	r.note("side %d stores %d bytes at %d", s.e, n, off)
	copy(s.mem[off:], d.octets(n))
	copy(s.want[off:off+n], s.mem[off:])
}

// rights are those that a region may have.
func (s *side) rights(d *dice) ibverbs.Access {
	const w, r, i = ibverbs.AccessRemoteWrite, ibverbs.AccessRemoteRead, ibverbs.AccessRemoteInvalidate
	a := one(d, []ibverbs.Access{0, r, ibverbs.AccessLocalWrite, ibverbs.AccessLocalWrite | w, ibverbs.AccessLocalWrite | r,
		ibverbs.AccessLocalWrite | r | w, ibverbs.AccessLocalWrite | r | w | i, ibverbs.AccessLocalWrite | r | w | i})
	if s.r.w.ext && a&ibverbs.AccessLocalWrite != 0 && d.oneIn(2) {
		a |= ibverbs.AccessRemoteAtomic
	}
	if !s.kernel && d.oneIn(2) {
		a |= ibverbs.AccessMWBind
	}
	return a
}

const maxRegions = 10

func (r *run) stepRegister(d *dice) {
	s := r.sides[d.pick(2)]
	switch {
	case len(s.regions) >= maxRegions:
	case !s.kernel && d.oneIn(3):
		s.allocFast(d, one(d, s.pds))
	default:
		s.register(d, one(d, s.pds), s.rights(d))
	}
}

func (s *side) register(d *dice, dom *domain, access ibverbs.Access) *region {
	n := d.in(1, 24<<10)
	g := &region{s: s, d: dom, off: d.pick(arena - n), n: n, access: access}
	if s.r.w.ext {
		g.off, g.n = g.off&^7, (n+7)&^7 // so that words in it are aligned
	}
	buf := s.mem[g.off : g.off+g.n]
	var err error
	how := d.pick(4)
	switch {
	case how == 0 && !s.kernel:
		g.mr, err = dom.pd.RegMR(buf, access|ibverbs.AccessZeroBased)
	case how == 1 && !s.kernel:
		g.mr, err = dom.pd.RegMRIova(buf, d.next()>>8&^7, access)
	default:
		g.mr, err = dom.pd.RegMR(buf, access)
	}
	s.r.need("registering", err)
	s.r.note("side %d registers %d bytes at %d, rights %s, key %#x", s.e, g.n, g.off, access, g.mr.RKey())
	if g.mr.Len() != uint64(g.n) || g.mr.PD() != dom.pd {
		s.r.fail("a region of %d bytes has %d", g.n, g.mr.Len())
	}
	s.regions = append(s.regions, g)
	return g
}

// idle is a region that no work uses.
func (s *side) idle(d *dice) *region {
	var list []*region
	for _, g := range s.regions {
		if g.uses == 0 && (g.fast == nil || g.fast.changes == 0) {
			list = append(list, g)
		}
	}
	return one(d, list)
}

func (r *run) stepDeregister(d *dice) {
	s := r.sides[d.pick(2)]
	g := s.idle(d)
	if g == nil || len(s.regions) <= 3 {
		return
	}
	if g.bound > 0 {
		r.keeps(g)
		return
	}
	r.note("side %d deregisters key %#x", s.e, g.rkey())
	s.deregister(g)
	r.need("deregistering twice", g.mr.Close())
}

func (s *side) deregister(g *region) {
	s.bury(g)
	s.r.need("deregistering", g.mr.Close())
	s.regions = slices.DeleteFunc(s.regions, func(other *region) bool { return other == g })
}

func (s *side) bury(g *region) {
	s.dead = append(s.dead, ghost{g.d, g.addr(), g.lkey(), g.rkey()})
}

// stepReregister changes a region, which only the engine can.
func (r *run) stepReregister(d *dice) {
	s := r.sides[d.pick(2)]
	g := s.idle(d)
	if g == nil || s.kernel || s.r.w.wrapped || g.shut || g.fast != nil {
		return
	}
	if g.bound > 0 {
		r.keeps(g)
		return
	}
	was := g.mr.RKey()
	s.bury(g)
	var flags ibverbs.ReregFlags
	if d.oneIn(2) {
		flags |= ibverbs.ReregAccess
		g.access = s.rights(d)
	}
	if d.oneIn(2) {
		flags |= ibverbs.ReregPD
		g.d = one(d, s.pds)
	}
	if d.oneIn(2) || flags == 0 {
		flags |= ibverbs.ReregTranslation
		g.n = d.in(1, 1000) * 8
		g.off = d.pick(arena-g.n) &^ 7
	}
	r.need("re-registering", g.mr.Rereg(flags, g.d.pd, s.mem[g.off:g.off+g.n], g.access))
	r.note("side %d re-registers key %#x (%#x): now %d bytes at %d, rights %s, key %#x", s.e, was,
		flags, g.n, g.off, g.access, g.mr.RKey())
	if g.mr.RKey() == was || g.mr.PD() != g.d.pd || g.mr.Len() != uint64(g.n) {
		r.fail("a region that was re-registered: key %#x, %d bytes", g.mr.RKey(), g.mr.Len())
	}
}
