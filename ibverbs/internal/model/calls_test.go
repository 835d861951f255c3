package model

import (
	"errors"
	"slices"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
)

const (
	enomem = syscall.ENOMEM
	einval = syscall.EINVAL
	ebusy  = syscall.EBUSY
	eperm  = syscall.EPERM
)

// refused checks the error of a call that can't succeed.
func (r *run) refused(what string, want syscall.Errno, err error) {
	var call *ibverbs.Error
	if !errors.As(err, &call) || ibverbs.Errno(err) != want {
		r.fail("%s: %v, want %v", what, err, want)
	}
}

// refusedAfter checks the error of a post that can't succeed as a whole.
func (r *run) refusedAfter(what string, posted int, want syscall.Errno, err error) {
	r.refused(what, want, err)
	var pe *ibverbs.PostError
	if !errors.As(err, &pe) || pe.Posted != posted {
		r.fail("%s: %v, want %d posted", what, err, posted)
	}
}

// stepBadPost posts a list of which one can't be: those before it are posted, those
// behind it are not, and the connection goes on.
func (r *run) stepBadPost(d *dice) {
	c := r.live(d)
	if c == nil {
		return
	}
	l := c.lanes[d.pick(2)]
	sge := ibverbs.SGE{Addr: l.d.bell.Addr(), Length: 1, LKey: l.d.bell.LKey()}
	many := slices.Repeat([]ibverbs.SGE{sge}, l.s.attr.MaxSGE+1)
	if d.oneIn(4) {
		if l.sh == nil {
			r.note("connection %d, side %d posts a receive of %d SGEs", c.n, l.s.e, len(many))
			r.refusedAfter("a receive of too many SGEs", 0, einval, l.qp.PostRecv(ibverbs.RecvWR{SGList: many}, ibverbs.RecvWR{}))
		} else {
			r.note("connection %d, side %d posts a receive of its own beside its SRQ", c.n, l.s.e)
			r.refusedAfter("a receive beside an SRQ", 0, einval, l.qp.PostRecv(ibverbs.RecvWR{}))
		}
		return
	}
	wrs := r.list(d, l)
	bad := one(d, r.badWork(d, l)) // as it is behind those
	n := len(wrs)
	r.note("connection %d, side %d posts what can't be behind %d others: opcode %s, flags %#x, %d SGEs, key %#x", c.n, l.s.e, n, bad.wr.Opcode, bad.wr.Flags, len(bad.wr.SGList), bad.wr.RKey)
	wrs = append(wrs, bad.wr, ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled})
	r.refusedAfter("a work request that can't be", n, bad.want, l.qp.PostSend(wrs...))
}

// badWR is a work request that can't be posted, and why.
type badWR struct {
	wr   ibverbs.SendWR
	want syscall.Errno
}

// badWork are some that can't be posted to l at the moment.
func (r *run) badWork(d *dice, l *lane) []badWR {
	sge := ibverbs.SGE{Addr: l.d.bell.Addr(), Length: 1, LKey: l.d.bell.LKey()}
	many := slices.Repeat([]ibverbs.SGE{sge}, l.s.attr.MaxSGE+1)
	list := []badWR{
		{ibverbs.SendWR{Opcode: 77}, einval},
		{ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: 1 << 30}, einval},
		{ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: many}, einval},
		{ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendInline}, einval},
		{ibverbs.SendWR{Opcode: ibverbs.WRSend, Inline: []byte{1}}, einval},
		{ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Inline: make([]byte, l.cap.MaxInlineData+1)}, einval},
		{ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Inline: []byte{1}, SGList: []ibverbs.SGE{sge}}, einval},
	}
	if l.ord == 0 && d.oneIn(2) {
		sges := []ibverbs.SGE{{Addr: l.d.bell.Addr(), Length: bellOctets, LKey: l.d.bell.LKey()}}
		list = []badWR{{ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, SGList: sges}, einval}}
		for _, op := range atomicOps {
			if r.w.ext {
				list = append(list, badWR{ibverbs.SendWR{Opcode: op, SGList: sges}, einval})
			}
		}
		r.seen("refused for ORD 0")
		return list
	}
	if memory := r.badMemoryWork(d, l); len(memory) > 0 && d.oneIn(2) {
		return memory
	}
	return list
}

// stepBadCall closes what is in use, and asks for what can't be.
func (r *run) stepBadCall(d *dice) {
	s := r.sides[d.pick(2)]
	dom := one(d, s.pds)
	r.note("side %d makes calls that can't be", s.e)
	r.refused("closing a PD with regions", ebusy, dom.pd.Close())
	r.refused("closing the device", ebusy, s.vctx.Close())
	for _, q := range s.queues {
		r.refused("closing a channel with a CQ", ebusy, q.ch.Close())
		if q.lanes > 0 {
			r.refused("closing a CQ with QPs", ebusy, q.cq.Close())
		}
		if !s.kernel {
			r.refused("resizing a CQ to nothing", einval, q.cq.Resize(0))
		}
	}
	for _, sh := range s.shared {
		if !s.kernel {
			r.refused("a limit that an SRQ can't have", einval, sh.srq.Modify(ibverbs.SRQAttr{Limit: 1 << 20}, ibverbs.SRQAttrLimit))
		}
		if sh.lanes > 0 {
			r.refused("closing an SRQ with QPs", ebusy, sh.srq.Close())
		}
	}
	_, err := dom.pd.RegMR(s.mem[:8], ibverbs.AccessRemoteWrite)
	r.refused("remote write without local write", einval, err)
	_, err = dom.pd.RegMR(nil, ibverbs.AccessLocalWrite)
	r.refused("registering nothing", einval, err)
	_, err = s.vctx.CreateCQ(s.attr.MaxCQE+1, nil)
	r.refused("a CQ beyond the limit", einval, err)
	r.badBinds(s)
	for _, g := range s.regions {
		if _, err := g.mr.SGE(max(g.n-1, 0), 2); err == nil {
			r.fail("an SGE beyond a region of %d bytes", g.n)
		}
	}
	for _, c := range r.conns {
		l := c.lanes[s.e]
		if !s.kernel { // siw takes nearly all: kernel-notes/siw-modify-qp.md
			for _, to := range []ibverbs.QPState{ibverbs.QPReset, ibverbs.QPInit, ibverbs.QPRTR, 77} {
				r.refused("from RTS to "+to.String(), einval, l.qp.Modify(ibverbs.QPAttr{State: to}, ibverbs.QPAttrState))
			}
			if attr, _, err := l.qp.Query(); err != nil || attr.State != ibverbs.QPRTS {
				r.fail("a connected QP is in %s, %v", attr.State, err)
			}
		}
		r.refused("to state 77", einval, l.qp.Modify(ibverbs.QPAttr{State: 77}, ibverbs.QPAttrState))
	}
}

// may are the changes of state that the engine makes of a QP that is not connected,
// and none else: transitions of ibverbs' TestStates says the same of each alone.
var may = map[ibverbs.QPState][]ibverbs.QPState{
	ibverbs.QPReset: {ibverbs.QPReset, ibverbs.QPInit, ibverbs.QPErr},
	ibverbs.QPInit:  {ibverbs.QPReset, ibverbs.QPInit, ibverbs.QPRTR, ibverbs.QPErr},
	ibverbs.QPRTR:   {ibverbs.QPReset, ibverbs.QPRTR, ibverbs.QPErr},
	ibverbs.QPErr:   {ibverbs.QPReset, ibverbs.QPErr},
}

// stepLoner makes a QP that is never connected and has it change its state: receives
// wait, but in ERR, where all is flushed.
func (r *run) stepLoner(d *dice) {
	s := r.sides[d.pick(2)]
	dom := one(d, s.pds)
	cq, err := s.vctx.CreateCQ(32, nil)
	r.need("making a CQ", err)
	const places = 8
	qp, err := dom.pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 2, MaxRecvWR: places, MaxSendSGE: 1, MaxRecvSGE: 1}})
	r.need("making a QP", err)
	r.extra = []func() error{qp.Close, cq.Close}
	now := ibverbs.QPReset
	var posted []uint64 // and not complete
	flushed := func(ids []uint64) {
		wc := make([]ibverbs.WC, places+2)
		n, err := cq.Poll(wc)
		r.need("polling", err)
		if n != len(ids) {
			r.fail("side %d, a QP in %s: %d completions, want %d", s.e, now, n, len(ids))
		}
		for i := range ids {
			if wc[i].WRID != ids[i] || wc[i].Status != ibverbs.WCWRFlushErr || wc[i].QPN != qp.QPN() {
				r.fail("side %d, a QP in %s: %+v, want %d flushed", s.e, now, wc[i], ids[i])
			}
		}
	}
	walk := []ibverbs.QPState{ibverbs.QPErr}
	if !s.kernel {
		all := []ibverbs.QPState{ibverbs.QPReset, ibverbs.QPInit, ibverbs.QPRTR, ibverbs.QPRTS, ibverbs.QPSQD, ibverbs.QPSQE, ibverbs.QPErr}
		walk = nil
		for range d.in(1, 8) {
			walk = append(walk, one(d, all))
		}
	}
	r.note("side %d has a QP by itself go through %v", s.e, walk)
	for _, to := range walk {
		for len(posted) < places && d.oneIn(2) {
			id := r.newID()
			r.need("posting a receive", qp.PostRecv(ibverbs.RecvWR{WRID: id}))
			if now == ibverbs.QPErr {
				flushed([]uint64{id})
			} else {
				posted = append(posted, id)
			}
		}
		if now != ibverbs.QPErr {
			r.refusedAfter("a Send without a connection", 0, einval, qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend}))
			flushed(nil)
		}
		err := qp.Modify(ibverbs.QPAttr{State: to}, ibverbs.QPAttrState)
		if !slices.Contains(may[now], to) {
			r.refused("from "+now.String()+" to "+to.String(), einval, err)
			continue
		}
		r.need("from "+now.String()+" to "+to.String(), err)
		switch now = to; now {
		case ibverbs.QPErr:
			if s.kernel {
				r.pause()
			}
			flushed(posted)
			posted = nil
		case ibverbs.QPReset:
			posted = nil // a reset clears the queues
		}
	}
	r.need("closing a QP", qp.Close())
	r.need("closing a CQ", cq.Close())
	r.extra = nil
}
