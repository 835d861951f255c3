package model

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/govs-rdma/govs/ibverbs"
)

func (r *run) name(j *job) string {
	return fmt.Sprintf("connection %d, side %d, work %d (%s of %d bytes)", j.l.c.n, j.l.s.e, j.id, j.op, j.n)
}

// outstanding reports what is posted.
func (r *run) outstanding() string {
	var b strings.Builder
	for _, c := range r.conns {
		for _, l := range c.lanes {
			fmt.Fprintf(&b, "connection %d, side %d, qp %d on CQs %d and %d (%v):", c.n, l.s.e, l.qp.QPN(), number(l.s.queues, l.sendQ), number(l.s.queues, l.recvQ), l.qp.Cause())
			for _, j := range l.sq {
				fmt.Fprintf(&b, " work %d (%s of %d, signalled %v)", j.id, j.op, j.n, j.signalled)
			}
			for _, rc := range l.rq {
				fmt.Fprintf(&b, " receive %d", rc.id)
				if rc.from != nil {
					fmt.Fprintf(&b, " (of work %d)", rc.from.id)
				}
			}
			b.WriteString("\n")
		}
	}
	for _, s := range r.sides {
		for i, q := range s.queues {
			fmt.Fprintf(&b, "side %d, CQ %d: %d entries, %d counted, %d lanes\n", s.e, i, q.cq.CQE(), q.load, q.lanes)
		}
	}
	return b.String()
}

// live is a connection that can be posted to.
func (r *run) live(d *dice) *conn { return one(d, r.conns) }

// mostSGE are the entries that a work request of l may have.
func (l *lane) mostSGE(answered bool) int {
	if answered && l.s.kernel {
		return 1 // max_sge_rd of siw
	}
	return l.cap.MaxSendSGE
}

// gather finds local memory of n bytes for work of l, in up to most pieces. ok is
// false if there is none that is free.
func (r *run) gather(d *dice, s *side, dom *domain, l *lane, n, most int, kind useKind, fence bool) (sges []ibverbs.SGE, uses []*use, ok bool) {
	pieces := d.in(1, max(most, 1))
	if n == 0 && d.oneIn(2) || most == 0 {
		return nil, nil, n == 0
	}
	for left := n; pieces > 0; pieces-- {
		part := left
		if pieces > 1 {
			part = d.in(0, left)
		}
		g, off, found := r.spot(d, s, dom, l, part, kind, fence)
		if !found {
			for _, u := range uses {
				u.drop()
			}
			return nil, nil, false
		}
		sges = append(sges, g.sge(off, part))
		uses = append(uses, s.hold(g, l, g.off+off, part, kind))
		left -= part
	}
	return sges, uses, true
}

// spot finds n bytes of a region that may be used in that way.
func (r *run) spot(d *dice, s *side, dom *domain, l *lane, n int, kind useKind, fence bool) (*region, int, bool) {
	for range 8 {
		g := one(d, s.regions)
		if g == nil || g.d != dom || g.n < n || !g.allows(kind, l) {
			continue
		}
		off := d.pick(g.n - n + 1)
		if kind == remoteAtomic {
			off &^= 7
		}
		if s.free(l, g.off+off, n, kind, fence) {
			return g, off, true
		}
	}
	return nil, 0, false
}

// allows reports whether work of l may use the region in that way. l is nil for receives,
// which are in no order with what is in a send queue.
func (g *region) allows(kind useKind, l *lane) bool {
	local := g.local() || g.fast != nil && g.fast.valid && l != nil && g.fast.mine(l)
	switch kind {
	case localRead:
		return local
	case localWrite:
		return local && g.access&ibverbs.AccessLocalWrite != 0
	default:
		return g.open() && g.access&rightOf[kind] != 0
	}
}

// contents is what memory in uses holds.
func contents(uses []*use) (b []byte) {
	for _, u := range uses {
		b = append(b, u.g.s.want[u.off:u.off+u.n]...)
	}
	return b
}

// scatter puts data to where uses say, in order.
func scatter(uses []*use, data []byte) {
	for _, u := range uses {
		n := min(u.n, len(data))
		u.put(data[:n])
		data = data[n:]
	}
}

// waiting is the receive that the next message of l gets, nil if there is none, or if
// the model can't tell: of an SRQ one connection at a time is sent to.
func (l *lane) waiting() *receipt {
	if p := l.peer(); p.contested() || p.sh != nil && p.recvQ.room() < 1 {
		return nil
	}
	return l.next()
}

// contested reports whether messages to others may be about to take a receive of the SRQ.
func (l *lane) contested() bool {
	for _, c := range l.s.r.conns {
		for _, other := range c.lanes {
			if l.sh != nil && other != l && other.sh == l.sh && len(other.rq) > 0 {
				return true
			}
		}
	}
	return false
}

// next is the receive that the next message of l gets, nil if there is none.
func (l *lane) next() *receipt {
	p := l.peer()
	list := p.rq
	if p.sh != nil {
		list = p.sh.posted
	}
	for _, rc := range list {
		if rc.from == nil {
			return rc
		}
	}
	return nil
}

// match says that a message of j is for rc.
func (j *job) match(rc *receipt, data []byte) {
	p := j.l.peer()
	rc.from, j.took = j, rc
	if rc.sh != nil {
		rc.sh.takes(rc)
		rc.l = p
		p.rq = append(p.rq, rc)
		p.recvQ.load++
	}
	rc.want = ibverbs.WC{Opcode: ibverbs.WCRecv, ByteLen: uint32(len(data))}
	scatter(rc.uses, data)
}

// work makes a work request that is legal at the moment, or none. What it does is
// entered in the model at once: the caller posts it.
func (r *run) work(d *dice, l *lane) (ibverbs.SendWR, bool) {
	if l.places() < 1 || l.sendQ.room() < 1 {
		return ibverbs.SendWR{}, false
	}
	j := &job{id: r.newID(), l: l, fence: d.oneIn(4)}
	wr := ibverbs.SendWR{WRID: j.id}
	j.op = one(d, r.ops(l))
	wr.Opcode = j.op
	var ok bool
	switch j.op {
	case ibverbs.WRSend, ibverbs.WRSendWithInv, ibverbs.WRSendWithImm:
		ok = r.message(d, j, &wr)
	case ibverbs.WRRDMAWrite, ibverbs.WRRDMAWriteWithImm:
		ok = r.write(d, j, &wr)
	case ibverbs.WRRDMARead:
		ok = r.read(d, j, &wr)
	case ibverbs.WRBindMW:
		ok = r.bindSecond(d, j, &wr)
	case ibverbs.WRRegMR:
		ok = r.registration(d, j, &wr)
	case ibverbs.WRLocalInv:
		ok = r.localInvalidation(d, j, &wr)
	default:
		ok = r.atomic(d, j, &wr)
	}
	if !ok {
		return wr, false
	}
	wr.Flags |= r.flags(d, j)
	r.enter(j)
	r.note("connection %d, side %d posts %d: %s of %d bytes, flags %#x, %d SGEs, remote %#x of %#x",
		l.c.n, l.s.e, j.id, j.op, j.n, wr.Flags, len(wr.SGList), wr.RemoteAddr, wr.RKey|wr.InvalidateRKey)
	if j.took != nil {
		r.note("     for receive %d", j.took.id)
	}
	return wr, true
}

// ops are the operations that l can ask for.
func (r *run) ops(l *lane) []ibverbs.WROpcode {
	ops := []ibverbs.WROpcode{ibverbs.WRSend, ibverbs.WRSend, ibverbs.WRRDMAWrite, ibverbs.WRRDMAWrite, ibverbs.WRSendWithInv}
	if l.ord > 0 {
		ops = append(ops, ibverbs.WRRDMARead, ibverbs.WRRDMARead)
	}
	if r.w.ext {
		ops = append(ops, ibverbs.WRRDMAWriteWithImm, ibverbs.WRSendWithImm)
	}
	if r.w.ext && l.ord > 0 {
		ops = append(ops, atomicOps...)
	}
	if !l.s.kernel {
		ops = append(ops, ibverbs.WRBindMW, ibverbs.WRBindMW, ibverbs.WRBindMW, ibverbs.WRRegMR, ibverbs.WRLocalInv)
	}
	return ops
}

// flags decides whether a job tells of itself.
func (r *run) flags(d *dice, j *job) (flags ibverbs.SendFlags) {
	l := j.l
	// siw tells of a Read late, and of one that isn't signalled never: nobody could
	// know. The last place of a queue of unsignalled work would not get free again.
	if d.oneIn(2) || j.answered && l.s.kernel || l.places() <= 1 {
		flags |= ibverbs.SendSignaled
	}
	if j.fence {
		flags |= ibverbs.SendFence
	}
	j.signalled = l.sigAll || flags&ibverbs.SendSignaled != 0
	return flags
}

// payload gives a Send or Write its bytes: from memory, or inline.
func (r *run) payload(d *dice, j *job, wr *ibverbs.SendWR) ([]byte, bool) {
	l := j.l
	if j.n <= l.cap.MaxInlineData && d.oneIn(3) && !(l.s.kernel && j.op == ibverbs.WRSendWithInv) {
		wr.Flags |= ibverbs.SendInline
		wr.Inline = d.octets(j.n)
		return wr.Inline, true
	}
	var ok bool
	wr.SGList, j.local, ok = r.gather(d, l.s, l.d, l, j.n, l.mostSGE(false), localRead, j.fence)
	if ok && l.s.kernel && slices.ContainsFunc(wr.SGList, func(s ibverbs.SGE) bool { return torn(s.Addr, int(s.Length)) }) {
		for _, u := range j.local {
			u.drop()
		}
		return nil, false
	}
	return contents(j.local), ok
}

// torn reports whether siw may send other bytes than these: few, on both sides of a
// page's end (kernel-notes/siw-short-page-crossing.md).
func torn(addr uint64, n int) bool { return n > 0 && n <= 32 && addr>>12 != (addr+uint64(n)-1)>>12 }

func (r *run) message(d *dice, j *job, wr *ibverbs.SendWR) bool {
	l := j.l
	rc := l.waiting()
	if rc == nil {
		return false
	}
	j.wcop, j.n = ibverbs.WCSend, d.size(rc.length)
	if j.op == ibverbs.WRSendWithImm {
		if l.last == ibverbs.WRRDMAWrite { // whose immediate data it would be taken for
			return false
		}
		j.n = 0 // RFC 7306 has no payload for it
	}
	var hit func(*receipt)
	if j.op == ibverbs.WRSendWithInv {
		if wr.InvalidateRKey, hit = r.victim(d, l, j.fence); hit == nil {
			return false
		}
	}
	data, ok := r.payload(d, j, wr)
	if !ok {
		return false
	}
	j.match(rc, data)
	if d.oneIn(4) {
		wr.Flags |= ibverbs.SendSolicited
		rc.solic = true
	}
	if hit != nil {
		hit(rc)
		rc.want.Flags, rc.want.InvalidatedRKey = ibverbs.WCWithInv, wr.InvalidateRKey
	}
	if j.op == ibverbs.WRSendWithImm {
		wr.Imm = uint32(d.next())
		rc.want.Flags, rc.want.Imm = ibverbs.WCWithImm, wr.Imm
	}
	return true
}

func (r *run) write(d *dice, j *job, wr *ibverbs.SendWR) bool {
	l := j.l
	j.wcop, j.n = ibverbs.WCRDMAWrite, d.size(1<<20)
	if d.oneIn(40) {
		j.n = d.in(9000, 70000) // several FPDUs on any path
	}
	rc := l.waiting()
	if j.op == ibverbs.WRRDMAWriteWithImm && rc == nil {
		return false
	}
	at, found := r.target(d, l, j.n, remoteWrite, j.fence)
	if !found {
		return false
	}
	u := at.hold(l, j.n, remoteWrite)
	data, ok := r.payload(d, j, wr)
	if !ok {
		u.drop()
		return false
	}
	u.put(data)
	j.remote = []*use{u}
	wr.RemoteAddr, wr.RKey = at.addr, at.key
	if j.op == ibverbs.WRRDMAWriteWithImm {
		j.match(rc, nil)
		if d.oneIn(4) {
			wr.Flags |= ibverbs.SendSolicited
			rc.solic = true
		}
		wr.Imm = uint32(d.next())
		rc.want = ibverbs.WC{Opcode: ibverbs.WCRecvRDMAWithImm, ByteLen: uint32(j.n), Flags: ibverbs.WCWithImm, Imm: wr.Imm}
	}
	return true
}

func (r *run) read(d *dice, j *job, wr *ibverbs.SendWR) bool {
	l := j.l
	p := l.peer()
	j.answered, j.wcop, j.n = true, ibverbs.WCRDMARead, d.size(1<<20)
	if p.s.kernel {
		j.n = max(j.n, 1) // kernel-notes/siw-zero-length-read.md
	}
	at, found := r.target(d, l, j.n, remoteRead, j.fence)
	if !found || p.s.kernel && torn(at.addr, j.n) {
		return false
	}
	var ok bool
	if wr.SGList, j.local, ok = r.gather(d, l.s, l.d, l, j.n, l.mostSGE(true), localWrite, false); !ok {
		return false
	}
	for _, u := range j.local {
		u.read = true
	}
	u := at.hold(l, j.n, remoteRead)
	u.read = true
	j.remote = []*use{u}
	scatter(j.local, contents(j.remote))
	wr.RemoteAddr, wr.RKey = at.addr, at.key
	return true
}

// list makes up to six work requests.
func (r *run) list(d *dice, l *lane) (wrs []ibverbs.SendWR) {
	for range d.in(1, 6) {
		if wr, ok := r.work(d, l); ok {
			wrs = append(wrs, wr)
		}
	}
	return wrs
}

func (r *run) stepSend(d *dice) {
	if c := r.live(d); c != nil {
		r.post(d, c.lanes[d.pick(2)])
	}
}

func (r *run) post(d *dice, l *lane) {
	if wrs := r.list(d, l); len(wrs) > 0 {
		r.need("posting", l.qp.PostSend(wrs...))
	}
}

// stepBoth has both ends of a connection post at the same time, while somebody polls.
func (r *run) stepBoth(d *dice) {
	c := r.live(d)
	if c == nil {
		return
	}
	r.note("at the same time:")
	var lists [2][]ibverbs.SendWR
	var errs [3]error
	for i, l := range c.lanes {
		lists[i] = r.list(d, l)
	}
	q := c.lanes[d.pick(2)].sendQ
	wc := make([]ibverbs.WC, 16)
	got := 0
	var wg sync.WaitGroup
	for i, l := range c.lanes {
		wg.Go(func() { errs[i] = l.qp.PostSend(lists[i]...) })
	}
	wg.Go(func() {
		for range 50 {
			n, err := q.cq.Poll(wc[got:])
			if got += n; err != nil {
				errs[2] = err
			}
		}
	})
	wg.Wait()
	for _, err := range errs {
		r.need("posting and polling at the same time", err)
	}
	for i := range wc[:got] {
		r.completion(q, &wc[i])
	}
}

// receive makes a receive for the memory of dom.
func (r *run) receive(d *dice, s *side, dom *domain, most int) (*receipt, ibverbs.RecvWR, bool) {
	n := d.size(1 << 20)
	sges, uses, ok := r.gather(d, s, dom, nil, n, most, localWrite, false)
	if !ok {
		return nil, ibverbs.RecvWR{}, false
	}
	rc := &receipt{id: r.newID(), uses: uses, length: n}
	r.receipts[rc.id] = rc
	return rc, ibverbs.RecvWR{WRID: rc.id, SGList: sges}, true
}

func (r *run) stepReceive(d *dice) {
	c := r.live(d)
	if c == nil {
		return
	}
	l := c.lanes[d.pick(2)]
	if l.sh != nil {
		r.shareReceives(d, l.sh)
		return
	}
	var wrs []ibverbs.RecvWR
	for range d.in(1, 5) {
		if len(l.rq) >= l.cap.MaxRecvWR || l.recvQ.room() < 1 {
			break
		}
		if rc, wr, ok := r.receive(d, l.s, l.d, l.cap.MaxRecvSGE); ok {
			r.queueReceive(l, rc)
			wrs = append(wrs, wr)
			r.note("connection %d, side %d posts receive %d of %d bytes, %d SGEs", c.n, l.s.e, rc.id, rc.length, len(wr.SGList))
		}
	}
	r.need("posting receives", l.qp.PostRecv(wrs...))
}

func (r *run) queueReceive(l *lane, rc *receipt) {
	rc.l = l
	l.rq = append(l.rq, rc)
	l.recvQ.load++
}

// stepFill posts more receives than there are places: as many as there are are taken.
func (r *run) stepFill(d *dice) {
	c := r.live(d)
	if c == nil {
		return
	}
	l := c.lanes[d.pick(2)]
	places := l.cap.MaxRecvWR - len(l.rq)
	if l.sh != nil || l.recvQ.room() < places {
		return
	}
	wrs := make([]ibverbs.RecvWR, places+d.in(1, 3))
	for i := range wrs {
		wrs[i].WRID = r.newID()
	}
	// A place is free again when the receive has been taken: the model knows only once
	// it has been polled, so nothing may be on its way.
	r.settle()
	if len(l.rq) != l.cap.MaxRecvWR-places {
		return
	}
	r.note("connection %d, side %d posts %d receives where %d have room", c.n, l.s.e, len(wrs), places)
	r.refusedAfter("more receives than places", places, enomem, l.qp.PostRecv(wrs...))
	for i := range places {
		rc := &receipt{id: wrs[i].WRID}
		r.receipts[rc.id] = rc
		r.queueReceive(l, rc)
	}
}
