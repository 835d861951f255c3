package model

import (
	"errors"
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
)

// terminate is what a connection ends with.
type terminate struct{ layer, etype, code uint8 }

// spoil is a way to name memory of the peer that work may not use.
type spoil struct {
	name        string
	write, read terminate
	pick        func(r *run, d *dice, l *lane, need ibverbs.Access, n int) (addr uint64, key uint32, ok bool)
}

var spoils = []spoil{
	{"a key of nothing", terminate{1, 1, 0}, terminate{0, 1, 0}, func(_ *run, d *dice, l *lane, _ ibverbs.Access, _ int) (uint64, uint32, bool) {
		if g := one(d, l.peer().s.dead); g.rkey != 0 && !l.peer().s.kernel { // which soon gives the same index again
			return g.addr, g.rkey, true
		}
		return 1 << 20, 0x7ffff05a, true
	}},
	{"beyond the end", terminate{1, 1, 1}, terminate{0, 1, 1}, func(_ *run, d *dice, l *lane, need ibverbs.Access, n int) (uint64, uint32, bool) {
		g := l.peer().s.some(d, func(g *region) bool { return g.d == l.peer().d && g.open() && g.access&need != 0 && g.n >= n })
		if g == nil {
			return 0, 0, false
		}
		return g.addr() + uint64(g.n-n+1), g.rkey(), true
	}},
	{"before the start", terminate{1, 1, 1}, terminate{0, 1, 1}, func(_ *run, d *dice, l *lane, need ibverbs.Access, n int) (uint64, uint32, bool) {
		g := l.peer().s.some(d, func(g *region) bool {
			return g.d == l.peer().d && g.open() && g.access&need != 0 && g.n >= n && g.addr() > 0
		})
		if g == nil {
			return 0, 0, false
		}
		return g.addr() - 1, g.rkey(), true
	}},
	{"without the right", terminate{1, 1, 0}, terminate{0, 1, 2}, func(_ *run, d *dice, l *lane, need ibverbs.Access, n int) (uint64, uint32, bool) {
		if l.peer().s.kernel && need == ibverbs.AccessRemoteRead {
			return 0, 0, false // kernel-notes/siw-remote-read-unchecked.md
		}
		return whole(l.peer().s.some(d, func(g *region) bool { return g.d == l.peer().d && g.open() && g.access&need == 0 && g.n >= n }))
	}},
	{"of another PD", terminate{1, 1, 2}, terminate{0, 1, 3}, func(_ *run, d *dice, l *lane, need ibverbs.Access, n int) (uint64, uint32, bool) {
		return whole(l.peer().s.some(d, func(g *region) bool { return g.d != l.peer().d && g.open() && g.access&need != 0 && g.n >= n }))
	}},
	{"invalidated", terminate{1, 1, 0}, terminate{0, 1, 0}, func(_ *run, d *dice, l *lane, need ibverbs.Access, n int) (uint64, uint32, bool) {
		return whole(l.peer().s.some(d, func(g *region) bool {
			return g.d == l.peer().d && g.invalid() && g.uses == 0 && g.access&need != 0 && g.n >= n
		}))
	}},
}

func whole(g *region) (uint64, uint32, bool) {
	if g == nil {
		return 0, 0, false
	}
	return g.addr(), g.rkey(), true
}

// some picks a region that fits.
func (s *side) some(d *dice, fits func(*region) bool) *region {
	var list []*region
	for _, g := range s.regions {
		if fits(g) {
			list = append(list, g)
		}
	}
	return one(d, list)
}

// faultKinds each post something that ends the connection, and say what it ends with
// and whether that is sent by the peer. ok is false if it can't be done now.
var faultKinds = []func(r *run, d *dice, l *lane, j *job, wr *ibverbs.SendWR) (name string, want terminate, remote, ok bool){
	(*run).faultRemote, (*run).faultRemote, (*run).faultRemote, (*run).faultRemote,
	(*run).faultLocal, (*run).faultLocal, (*run).faultMemory, (*run).faultMemory,
	(*run).faultLong, (*run).faultNoReceive, (*run).faultNoReceive, (*run).faultReceive, (*run).faultInvalidate,
}

// stepFault breaks a rule at the cost of a connection.
func (r *run) stepFault(d *dice) {
	c := r.live(d)
	if c == nil {
		return
	}
	l := c.lanes[d.pick(2)]
	r.prepareEnd(c)
	calm := l.s.kernel || l.peer().s.kernel || d.oneIn(2)
	if calm {
		r.settle()
	}
	if len(l.sq) >= l.cap.MaxSendWR {
		return
	}
	var j *job
	var wr ibverbs.SendWR
	var name string
	var want terminate
	remote, ok := false, false
	for try := 0; try < 3 && !ok; try++ { // most need something to be there
		j = &job{id: r.newID(), l: l, op: ibverbs.WRSend, wcop: ibverbs.WCSend, signalled: true, n: d.in(1, 200), first: calm}
		wr = ibverbs.SendWR{WRID: j.id, Opcode: j.op, Flags: ibverbs.SendSignaled}
		if name, want, remote, ok = one(d, faultKinds)(r, d, l, j, &wr); !ok {
			for _, u := range j.local {
				u.drop()
			}
		}
	}
	if !ok {
		return
	}
	wr.Opcode = j.op
	r.note("connection %d, side %d posts %d, %s of %d bytes: %s", c.n, l.s.e, j.id, j.op, j.n, name)
	c.ending = true
	r.faults = true
	r.seen(name)
	r.enter(j)
	r.need("posting what fails later", l.qp.PostSend(wr))
	engines := !l.s.kernel && !l.peer().s.kernel
	causes := [2]*lane{l, l.peer()}
	ctx, cancel := r.timeout()
	defer cancel()
	for i, end := range causes {
		r.need(fmt.Sprintf("%s: waiting for the end", name), end.rc.Wait(ctx))
		var te *ibverbs.TerminateError
		cause := end.qp.Cause()
		if !engines {
			continue
		}
		if !errors.As(cause, &te) || te.Remote != (remote == (i == 0)) || (terminate{te.Layer, te.EType, te.ECode}) != want {
			r.fail("%s: side %d ends with %v, want %+v, sent by the peer: %v", name, end.s.e, cause, want, remote == (i == 0))
		}
	}
	r.over(d, c, nil)
}

// faultRemote names memory of the peer that the work may not use.
func (r *run) faultRemote(d *dice, l *lane, j *job, wr *ibverbs.SendWR) (string, terminate, bool, bool) {
	among := spoils
	windows := len(l.peer().s.windows) > 0 && d.oneIn(2)
	if windows {
		among = windowSpoils
	}
	need, kind := ibverbs.AccessRemoteWrite, localRead
	j.op, j.wcop = ibverbs.WRRDMAWrite, ibverbs.WCRDMAWrite
	answered := func(op ibverbs.WROpcode, wcop ibverbs.WCOpcode, right ibverbs.Access) {
		need, kind = right, localWrite
		j.op, j.wcop, j.answered, j.never = op, wcop, true, true
		j.may = []ibverbs.WCStatus{ibverbs.WCRemAccessErr}
		switch {
		case l.s.kernel: // kernel-notes/siw-error-reports.md
			j.may = nil
		case l.peer().s.kernel, !j.first:
			j.may = append(j.may, ibverbs.WCWRFlushErr)
		}
	}
	switch {
	case l.ord == 0 || d.oneIn(3):
	case r.w.ext && d.oneIn(2):
		answered(one(d, atomicOps), 0, ibverbs.AccessRemoteAtomic)
		j.n = wordOctets
	default:
		answered(ibverbs.WRRDMARead, ibverbs.WCRDMARead, ibverbs.AccessRemoteRead)
	}
	var sp spoil
	var addr uint64
	var key uint32
	ok := false
	for try := 0; try < 4 && !ok; try++ { // what is there to be named
		if sp = one(d, among); try == 0 && windows {
			sp = windowSpoils[0] // it rarely is
		}
		addr, key, ok = sp.pick(r, d, l, need, j.n)
	}
	if !ok {
		return "", terminate{}, true, false
	}
	want := sp.write
	if j.answered {
		want = sp.read
	}
	wr.RemoteAddr, wr.RKey = addr, key
	wr.SGList, j.local, ok = r.gather(d, l.s, l.d, l, j.n, 1, kind, false)
	if ok && kind == localWrite {
		scatter(j.local, contents(j.local)) // which must not change
	}
	return "memory " + sp.name, want, true, ok && len(wr.SGList) > 0
}

// localFailure are the statuses of work whose own memory is at fault.
func (l *lane) localFailure() []ibverbs.WCStatus {
	if l.s.kernel {
		return []ibverbs.WCStatus{ibverbs.WCLocQPOpErr, ibverbs.WCLocProtErr} // kernel-notes/siw-error-reports.md
	}
	return []ibverbs.WCStatus{ibverbs.WCLocProtErr}
}

// badSGE names n bytes of memory of side s that work of dom may not use.
func (s *side) badSGE(d *dice, dom *domain, n int, write bool) (string, ibverbs.SGE, bool) {
	switch d.pick(5) {
	case 4:
		if w := one(d, s.windows); w != nil {
			return "a window's key", ibverbs.SGE{Addr: w.base, Length: uint32(n), LKey: w.key}, true
		}
	case 0:
		if g := one(d, s.dead); g.lkey != 0 && !s.kernel {
			return "an lkey that is no more", ibverbs.SGE{Addr: g.addr, Length: uint32(n), LKey: g.lkey}, true
		}
		return "an lkey of nothing", ibverbs.SGE{Addr: 1 << 20, Length: uint32(n), LKey: 0x7ffff05a}, true
	case 1:
		if g := s.some(d, func(g *region) bool { return g.d == dom && g.n >= n && g.local() }); g != nil {
			return "an SGE beyond the end", g.sge(g.n-n+1, n), true
		}
	case 2:
		if g := s.some(d, func(g *region) bool { return g.d != dom && g.n >= n && g.local() }); g != nil {
			return "an SGE of another PD", g.sge(0, n), true
		}
	case 3:
		if g := s.some(d, func(g *region) bool {
			return g.d == dom && g.n >= n && g.local() && g.access&ibverbs.AccessLocalWrite == 0
		}); g != nil && write {
			return "an SGE that may only be read", g.sge(0, n), true
		}
	}
	return "", ibverbs.SGE{}, false
}

// faultLocal names memory of our own that the work may not use.
func (r *run) faultLocal(d *dice, l *lane, j *job, wr *ibverbs.SendWR) (string, terminate, bool, bool) {
	want := terminate{0, 0, 0xff}
	read := l.ord > 0 && d.oneIn(3)
	if read {
		j.op, j.wcop, j.answered = ibverbs.WRRDMARead, ibverbs.WCRDMARead, true
		bell := l.peer().d.bell
		j.n = bellOctets
		wr.RemoteAddr, wr.RKey = bell.Addr(), bell.RKey()
	}
	name, sge, ok := l.s.badSGE(d, l.d, j.n, read)
	wr.SGList = []ibverbs.SGE{sge}
	j.may, j.never = l.localFailure(), true
	return name, want, false, ok
}

// faultLong sends more than the receive holds.
func (r *run) faultLong(d *dice, l *lane, j *job, wr *ibverbs.SendWR) (string, terminate, bool, bool) {
	want := terminate{1, 2, 5}
	rc := l.waiting()
	if rc == nil || rc.length > 1000 {
		return "", want, true, false
	}
	j.n = rc.length + d.in(1, 50)
	var ok bool
	if wr.SGList, j.local, ok = r.gather(d, l.s, l.d, l, j.n, l.mostSGE(false), localRead, false); !ok {
		return "", want, true, false
	}
	var placed []byte
	if j.n > 400 { // more than one segment, of which the first ones fit
		placed = contents(j.local)[:rc.length]
	}
	j.match(rc, placed)
	rc.may = []ibverbs.WCStatus{ibverbs.WCLocLenErr}
	rc.want.ByteLen = 1 << 31 // no success is right
	return fmt.Sprintf("longer than receive %d", rc.id), want, true, true
}

// faultNoReceive sends though there is no receive.
func (r *run) faultNoReceive(d *dice, l *lane, j *job, wr *ibverbs.SendWR) (string, terminate, bool, bool) {
	want := terminate{1, 2, 2}
	p := l.peer()
	for _, rc := range p.rq {
		if rc.from == nil {
			return "", want, true, false
		}
	}
	// What another connection has under way may still find its receive there when this comes.
	if p.sh != nil && (len(p.sh.posted) > 0 || p.contested()) {
		return "", want, true, false
	}
	var ok bool
	wr.SGList, j.local, ok = r.gather(d, l.s, l.d, l, j.n, l.mostSGE(false), localRead, false)
	return "no receive is posted", want, true, ok
}

// faultReceive sends to a receive whose memory is at fault.
func (r *run) faultReceive(d *dice, l *lane, j *job, wr *ibverbs.SendWR) (string, terminate, bool, bool) {
	want := terminate{1, 0, 0}
	p := l.peer()
	if p.sh != nil || l.waiting() != nil || len(p.rq) >= p.cap.MaxRecvWR || p.recvQ.room() < 1 {
		return "", want, true, false
	}
	name, sge, ok := p.s.badSGE(d, p.d, j.n, true)
	if !ok {
		return "", want, true, false
	}
	if wr.SGList, j.local, ok = r.gather(d, l.s, l.d, l, j.n, l.mostSGE(false), localRead, false); !ok {
		return "", want, true, false
	}
	rc := &receipt{id: r.newID(), length: j.n, may: []ibverbs.WCStatus{ibverbs.WCLocProtErr}}
	r.receipts[rc.id] = rc
	r.queueReceive(p, rc)
	r.need("posting a receive that fails later", p.qp.PostRecv(ibverbs.RecvWR{WRID: rc.id, SGList: []ibverbs.SGE{sge}}))
	j.match(rc, nil)
	rc.want.ByteLen = 1 << 31 // no success is right
	return fmt.Sprintf("receive %d has %s", rc.id, name), want, true, true
}

// faultInvalidate asks the peer to invalidate what it may not.
func (r *run) faultInvalidate(d *dice, l *lane, j *job, wr *ibverbs.SendWR) (string, terminate, bool, bool) {
	p := l.peer()
	want := terminate{0, 2, 9}
	rc := l.waiting()
	if rc == nil || p.s.kernel { // where it ends nothing: kernel-notes/siw-invalidate.md
		return "", want, true, false
	}
	j.op, j.n = ibverbs.WRSendWithInv, 0
	name := "a key of nothing"
	wr.InvalidateRKey = 0x7ffff05a
	g := p.s.some(d, func(g *region) bool {
		return g.d == p.d && g.open() && (g.access&ibverbs.AccessRemoteInvalidate == 0 || g.bound > 0 && p.s.settled(g))
	})
	w := one(d, p.s.fitting(func(w *window) bool {
		return w.d == p.d && (w.typ == ibverbs.MWType1 && w.holds() || w.typ == ibverbs.MWType2 && (!w.valid && w.changes == 0 || w.holds() && w.l != p))
	}))
	switch d.pick(3) {
	case 0:
		if g != nil {
			name, wr.InvalidateRKey, want.etype = "a region that isn't the peer's to invalidate", g.rkey(), 1
		}
	case 1:
		if w != nil {
			name, wr.InvalidateRKey = "a window that isn't the peer's to invalidate", w.key
			if w.valid {
				want.etype = 1
			}
		}
	}
	j.match(rc, nil)
	rc.may = []ibverbs.WCStatus{ibverbs.WCRemInvReqErr}
	rc.want.ByteLen = 1 << 31
	return name, want, true, true
}
