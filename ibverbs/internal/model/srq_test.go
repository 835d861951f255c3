package model

import (
	"slices"

	"github.com/govs-rdma/govs/ibverbs"
)

// shared is an SRQ.
type shared struct {
	s      *side
	d      *domain
	srq    *ibverbs.SRQ
	max    int
	maxSGE int
	posted []*receipt // that no message is for yet
	lanes  int

	adds, takings int // receives that were posted, and that messages are for
	limit         int // armed for one event, 0 for none
	may, due      bool
}

// add enters a receive that is posted.
func (sh *shared) add(rc *receipt) {
	rc.sh = sh
	sh.posted = append(sh.posted, rc)
	sh.adds++
}

// takes enters that a message is for rc, the oldest receive. It will be taken at any
// time from now on, with no fewer left behind it than there are now.
func (sh *shared) takes(rc *receipt) {
	sh.posted = sh.posted[1:]
	sh.takings++
	rc.turn = sh.takings
	sh.may = sh.may || len(sh.posted) < sh.limit
}

// tookAtLast enters that rc has been taken, with no more left behind it than were posted
// until now.
func (sh *shared) tookAtLast(rc *receipt) {
	sh.due = sh.due || sh.limit > 0 && sh.adds-rc.turn < sh.limit
}

// stepShared makes an SRQ, takes one away, or posts to one.
func (r *run) stepShared(d *dice) {
	s := r.sides[d.pick(2)]
	sh := one(d, s.shared)
	switch {
	case sh == nil || len(s.shared) < 2 && d.oneIn(3):
		sh = &shared{s: s, d: one(d, s.pds), max: d.in(2, 12), maxSGE: d.in(1, 3)}
		var err error
		sh.srq, err = sh.d.pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: sh.max, MaxSGE: sh.maxSGE}})
		r.need("making an SRQ", err)
		s.shared = append(s.shared, sh)
		r.note("side %d makes an SRQ of %d", s.e, sh.max)
		r.shareReceives(d, sh)
	case sh.lanes == 0 && d.oneIn(2):
		r.note("side %d closes an SRQ with %d receives", s.e, len(sh.posted))
		for _, rc := range sh.posted {
			r.drop(rc)
		}
		r.need("closing an SRQ", sh.srq.Close())
		s.shared = slices.DeleteFunc(s.shared, func(other *shared) bool { return other == sh })
	case d.oneIn(2):
		r.limitShared(d, sh)
	default:
		r.shareReceives(d, sh)
	}
}

// limitShared arms an SRQ for the event that few receives are left, or disarms it.
func (r *run) limitShared(d *dice, sh *shared) {
	r.settle()
	sh.limit, sh.may, sh.due = d.in(0, min(sh.max, len(sh.posted)+1)), false, false
	r.note("side %d arms an SRQ with %d receives for fewer than %d", sh.s.e, len(sh.posted), sh.limit)
	r.need("arming an SRQ", sh.srq.Modify(ibverbs.SRQAttr{Limit: sh.limit}, ibverbs.SRQAttrLimit))
}

// checkLimits looks whether SRQs have told that few receives are left where they
// should, and nowhere else. Nothing is on its way.
func (r *run) checkLimits(s *side) {
	for _, sh := range s.shared {
		if sh.limit == 0 {
			continue
		}
		r.events(s, func() bool { return !sh.due })
		attr, err := sh.srq.Query()
		r.need("asking an SRQ", err)
		if attr.Limit != sh.limit {
			r.fail("side %d: an SRQ is armed for fewer than %d, want %d", s.e, attr.Limit, sh.limit)
		}
	}
}

// limitReached takes the event of an SRQ.
func (r *run) limitReached(s *side, srq *ibverbs.SRQ) {
	i := slices.IndexFunc(s.shared, func(sh *shared) bool { return sh.srq == srq })
	if i < 0 {
		r.fail("side %d: an event of an SRQ that is closed", s.e)
	}
	sh := s.shared[i]
	if sh.limit == 0 || !sh.may {
		r.fail("side %d: an SRQ with %d receives says that fewer than %d are left", s.e, len(sh.posted), sh.limit)
	}
	sh.limit, sh.may, sh.due = 0, false, false
	r.seen("SRQ limit")
}

// drop forgets a receive that goes without a completion, and without a message.
func (r *run) drop(rc *receipt) {
	delete(r.receipts, rc.id)
	for _, u := range rc.uses {
		u.done("a receive that nothing was sent to")
	}
}

// taken are the receives of an SRQ that messages are for which may not have arrived.
func (sh *shared) taken() (n int) {
	for _, c := range sh.s.r.conns {
		for _, l := range c.lanes {
			if l.sh == sh {
				n += len(l.rq)
			}
		}
	}
	return n
}

func (r *run) shareReceives(d *dice, sh *shared) {
	var wrs []ibverbs.RecvWR
	for range d.in(1, 5) {
		if len(sh.posted)+sh.taken() >= sh.max {
			break
		}
		if rc, wr, ok := r.receive(d, sh.s, sh.d, sh.maxSGE); ok {
			sh.add(rc)
			wrs = append(wrs, wr)
			r.note("side %d posts receive %d of %d bytes to an SRQ, %d SGEs", sh.s.e, rc.id, rc.length, len(wr.SGList))
		}
	}
	r.need("posting to an SRQ", sh.srq.PostRecv(wrs...))
}
