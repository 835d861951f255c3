package engine

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"slices"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// Work requests, and what they may do.

// post is a call that posts a list to the send queue of a QP.
func (w *world) post(q *queuePair) *call {
	if q.closing || q.state() != provider.QPRTS && !w.d.oneIn(6) {
		return nil
	}
	n := w.d.in(1, 6)
	alike := 0 // bytes of each Write, for FPDUs of one length
	if w.d.oneIn(2) {
		n, alike = w.d.in(1, 12), w.d.in(5, one(w.d, []int{12, 60, 300, 900}))
	}
	var ops []*op
	for range n {
		if o := w.newOp(q, alike); o != nil {
			ops = append(ops, o)
			w.posted(o)
		}
	}
	return w.postOps(q, ops)
}

func (w *world) postOps(q *queuePair, ops []*op) *call {
	if len(ops) == 0 {
		return nil
	}
	wrs := make([]provider.SendWR, len(ops))
	for i, o := range ops {
		wrs[i] = o.wr
	}
	var took int
	var err error
	single := w.d.oneIn(3)
	return &call{
		name: fmt.Sprintf("%s posts %s", q, describe(ops)),
		rank: rankPost,
		run: func() {
			if m := ops[0].begins; m != nil && m.window != nil && m.window.mw.Type() == provider.MWType1 {
				if err = q.q.BindMW(m.window.mw, wrs[0].WRID, wrs[0].Flags, *wrs[0].Bind); err == nil {
					took = 1
				}
				return
			}
			if !single {
				took, err = q.q.PostSend(wrs)
				return
			}
			for took < len(wrs) && err == nil {
				var n int
				n, err = q.q.PostSend(wrs[took : took+1])
				took += n
				runtime.Gosched()
			}
		},
		finish: func() {
			if took < len(ops) && err == nil {
				w.fail("%s: %d of %d were posted, but there was no error", q, took, len(ops))
			}
			for _, o := range slices.Backward(ops[took:]) {
				w.unposted(o)
			}
			for _, o := range ops[:took] {
				w.seen(o.wr.Opcode.String())
			}
		},
	}
}

func describe(ops []*op) string {
	s := ""
	for i, o := range ops {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprintf("%v %d (%d", o.wr.Opcode, o.id, len(o.payload))
		if o.refused {
			s += " to be refused"
		}
		if o.badLocal {
			s += " bad SGE"
		}
		if o.wr.Flags&provider.SendFence != 0 {
			s += " fenced"
		}
		if o.wr.Flags&provider.SendSignaled != 0 || o.q.sigAll {
			s += " signaled"
		}
		for _, r := range o.remote {
			s += fmt.Sprintf(" to [%d, %d)", r.lo, r.hi)
		}
		s += ")"
	}
	return s
}

// newOp makes a work request of any kind, nil if there is no room for it.
func (w *world) newOp(q *queuePair, alike int) *op {
	o := w.blankOp(q)
	d := w.d
	for _, x := range []struct {
		flag  provider.SendFlags
		oneIn int
	}{{provider.SendSignaled, 2}, {provider.SendFence, 8}, {provider.SendSolicited, 4}} {
		if d.oneIn(x.oneIn) {
			o.wr.Flags |= x.flag
		}
	}
	ext := 0
	if w.ext {
		ext = 1
	}
	if w.kind == kindMemory || d.oneIn(12) {
		if m := w.memoryOp(o); m != nil || w.kind == kindMemory && d.oneIn(2) {
			return m
		}
	}
	weights := []int{8, 10, 5, 2, 2 * ext, 2 * ext, 3 * ext}
	if alike > 0 {
		weights = []int{8, 20, 1, 1, 0, ext, 0}
	}
	switch d.weighed(weights) {
	case 0:
		o.wr.Opcode = provider.WRSend
	case 1:
		o.wr.Opcode = provider.WRRDMAWrite
	case 2:
		o.wr.Opcode = provider.WRRDMARead
	case 3:
		o.wr.Opcode = provider.WRSendWithInv
	case 4:
		o.wr.Opcode, o.wr.Imm = provider.WRRDMAWriteWithImm, uint32(d.next())
	case 5:
		o.wr.Opcode, o.wr.Imm = provider.WRSendWithImm, uint32(d.next())
	case 6:
		return w.atomicOp(o)
	}
	if o.wr.Opcode != provider.WRSend && o.wr.Opcode != provider.WRRDMAWrite {
		o.wr.Flags &^= provider.SendSolicited
	}
	n := d.octets(w.longest)
	if o.takesReceive() && !d.oneIn(w.mistakes/2) && (alike == 0 || !d.oneIn(w.greedy)) {
		room := o.q.room()
		if room < 0 { // there is no receive for it
			o.wr.Opcode, o.wr.Imm = provider.WRRDMAWrite, 0
		} else if o.wr.Opcode != provider.WRRDMAWriteWithImm {
			n = min(n, room)
		}
	}
	if alike > 0 {
		n = alike
		if o.wr.Opcode == provider.WRSend || o.wr.Opcode == provider.WRSendWithInv {
			n -= ddp.UntaggedHeaderLen - ddp.TaggedHeaderLen
		}
	}
	switch o.wr.Opcode {
	case provider.WRSendWithImm:
		return o
	case provider.WRRDMARead:
		return w.readOp(o, n)
	case provider.WRSendWithInv:
		if r := w.pickRemote(q, provider.AccessRemoteInvalidate); r == nil || r.moving && !d.oneIn(3) {
			o.wr.Opcode = provider.WRSend
		} else {
			o.right, o.wr.InvalidateRKey = r, r.key
			o.risky, o.refused = true, r.reachable(q.peer(), provider.AccessRemoteInvalidate) < 0 && !r.moving
		}
	case provider.WRRDMAWrite, provider.WRRDMAWriteWithImm:
		if n = w.target(o, provider.AccessRemoteWrite, n, true); n < 0 {
			return nil
		}
	}
	o.payload = make([]byte, n)
	fillWith(o.payload, o.id)
	if n <= q.q.sq.maxInline && d.oneIn(4) {
		o.wr.Flags |= provider.SendInline
		o.wr.Inline, o.inlined = o.payload, true
		return o
	}
	if !w.gather(o, n, 0, true) {
		o.cancel()
		return nil
	}
	return o
}

// room returns how long the next message of q can be, or a negative number if there is no
// receive for it.
func (q *queuePair) room() int {
	peer := q.peer()
	if peer == nil || peer.conn != q.conn { // it has another connection
		return -1
	}
	ahead := len(q.conn.msgs[q.side]) - q.conn.taken[1-q.side]
	if peer.srq == nil {
		if ahead >= len(peer.recvs) {
			return -1
		}
		return peer.recvs[ahead].n
	}
	room := -1
	if len(peer.srq.posted) > 2*ahead {
		for i, r := range peer.srq.posted {
			if i == 0 || r.n < room {
				room = r.n
			}
		}
	}
	return room
}

func (w *world) blankOp(q *queuePair) *op {
	w.ids++
	o := &op{id: w.ids, q: q, conn: q.conn, side: q.side}
	o.wr.WRID = o.id
	return o
}

// cancel closes the spans that were opened for an op that is not posted.
func (o *op) cancel() {
	for _, s := range slices.Concat(o.local, o.remote) {
		s.drop()
	}
}

// gather makes SGEs of n bytes that need these rights. With source they are the source of the
// payload, which is written there, otherwise its sink. It reports false if there is no room.
func (w *world) gather(o *op, n int, need provider.Access, source bool) bool {
	d := w.d
	for k := d.in(1, o.q.q.sq.maxSGE); k > 0 && n > 0 || k > 0 && d.oneIn(5); k-- {
		size := n - spanTotal(o.local)
		if k > 1 {
			size = d.upTo(size)
		}
		s, sge, r, ok := w.piece(o.q.p, o.q.pd, size, need, o.atomic)
		if !ok {
			return false
		}
		if size > 0 {
			s.reads, s.op, s.off = source, o, spanTotal(o.local)
			o.local = append(o.local, o.q.p.mem.span(s))
			o.uses = append(o.uses, r)
			if r.usable(o.q.pd, need) < 0 {
				o.badLocal = true
			}
		}
		o.wr.SGList = append(o.wr.SGList, sge)
		if k == 1 {
			break
		}
	}
	if spanTotal(o.local) < n {
		return false
	}
	for _, s := range o.local {
		if source {
			s.fill()
		}
	}
	return true
}

func spanTotal(spans []*extent) int {
	n := 0
	for _, s := range spans {
		if s != nil {
			n += s.hi - s.lo
		}
	}
	return n
}

// piece finds n bytes for an SGE of a process. Occasionally they can't be used.
func (w *world) piece(
	p *proc, pd *domain, n int, need provider.Access, word bool,
) (s extent, sge provider.SGE, r *right, ok bool) {
	for range 6 {
		r = one(w.d, p.rights)
		if r == nil {
			return s, sge, r, false
		}
		if u := r.usable(pd, need); u < 0 && (r.window != nil || !w.d.oneIn(w.mistakes)) || r.hi-r.lo < n {
			continue
		}
		at, size, found := p.mem.place(w.d, r.lo, r.hi, n, word)
		if !found || size < n {
			continue
		}
		s = extent{lo: at, hi: at + n, via: r}
		return s, provider.SGE{Addr: r.base + uint64(at-r.lo), Length: uint32(n), LKey: r.key}, r, true
	}
	return s, sge, r, n == 0
}

// pickRemote picks the right that an op of q names at the peer: mostly one that may be used.
func (w *world) pickRemote(q *queuePair, need provider.Access) *right {
	peer := q.peer()
	if peer == nil {
		return nil
	}
	var r *right
	for range 8 {
		r = one(w.d, peer.p.rights)
		if r != nil && (r.reachable(peer, need) >= 0 || w.d.oneIn(w.mistakes)) {
			return r
		}
	}
	return nil
}

// target names up to n bytes of the peer in o, and opens the span that o may change there, or
// reads if writes is false. It returns how many bytes these are, or a negative number if there
// are none.
func (w *world) target(o *op, need provider.Access, n int, writes bool) int {
	d := w.d
	r := w.pickRemote(o.q, need)
	if r == nil {
		return -1
	}
	peer := o.q.peer()
	may := r.reachable(peer, need)
	at, n, ok := peer.p.mem.place(d, r.lo, r.hi, n, o.atomic)
	if !ok {
		return -1
	}
	lo, hi := at, at+n
	if n > 0 && d.oneIn(2*w.mistakes) { // beyond the region, by little
		may = -1
		switch d.upTo(2) {
		case 0: // at its end
			shift := r.hi - hi + d.in(1, min(n, guardOctets))
			lo, hi = lo+shift, hi+shift
		case 1: // at its beginning
			shift := lo - r.lo + d.in(1, min(n, guardOctets))
			lo, hi = lo-shift, hi-shift
		case 2: // at its end, and longer
			hi = r.hi + d.in(1, 3)
		}
		n = hi - lo
	}
	o.right, o.wr.RKey, o.wr.RemoteAddr = r, r.key, r.base+uint64(int64(lo)-int64(r.lo))
	o.risky, o.refused = may <= 0, may < 0 && n > 0
	inside := extent{lo: max(lo, r.lo), hi: min(hi, r.hi), op: o, via: r, conn: o.conn, side: 1 - o.side, reads: !writes}
	switch {
	case r.reachable(peer, need) < 0 && !r.moving, n == 0, lo < r.lo, lo >= r.hi: // not a byte goes there
	case !writes && o.refused: // nor comes from there
	case !peer.p.mem.free(inside.lo, inside.hi):
		return -1
	default:
		o.remote = append(o.remote, peer.p.mem.span(inside))
	}
	return n
}

// readOp makes a Read of the peer's memory.
func (w *world) readOp(o *op, n int) *op {
	if n = w.target(o, provider.AccessRemoteRead, n, false); n < 0 {
		return nil
	}
	o.wr.Flags &^= provider.SendInline
	o.payload = make([]byte, n)
	if len(o.remote) > 0 {
		s := o.remote[0]
		copy(o.payload, s.m.want[s.lo:s.hi])
	}
	if !w.gather(o, n, provider.AccessLocalWrite, false) {
		o.cancel()
		return nil
	}
	return o
}

// atomicOp makes an atomic operation on a word of the peer's.
func (w *world) atomicOp(o *op) *op {
	d := w.d
	o.atomic = true
	if n := w.target(o, provider.AccessRemoteAtomic, 8, true); n != 8 || o.wr.RemoteAddr > math.MaxInt64 {
		o.cancel()
		return nil
	}
	o.payload = make([]byte, 8)
	if len(o.remote) > 0 {
		s := o.remote[0]
		if s.lo%8 != 0 || s.hi-s.lo != 8 {
			o.refused, o.risky = true, true // misaligned, or not all there
			s.drop()
			o.remote = nil
		} else {
			copy(o.payload, s.m.want[s.lo:s.hi])
		}
	}
	old := binary.NativeEndian.Uint64(o.payload)
	wr := &o.wr
	var value uint64
	switch d.upTo(2) {
	case 0:
		wr.Opcode, wr.CompareAdd = provider.WRAtomicFetchAdd, d.next()
		value = old + wr.CompareAdd
	case 1:
		wr.Opcode, wr.CompareAdd, wr.Swap = provider.WRAtomicCmpAndSwp, old, d.next()
		value = wr.Swap
	default:
		wr.Opcode, wr.CompareAdd, wr.Swap = provider.WRMaskedAtomicCmpAndSwp, old, d.next()
		wr.CompareAddMask, wr.SwapMask = ^uint64(0), d.next()
		value = old&^wr.SwapMask | wr.Swap&wr.SwapMask
	}
	binary.NativeEndian.PutUint64(o.word[:], value)
	if len(o.remote) > 0 { // what comes there is not what comes here
		o.remote[0].op = &op{id: o.id, q: o.q, payload: o.word[:], wr: o.wr}
	}
	wr.Flags &^= provider.SendInline | provider.SendSolicited
	o.atomic = false // the sink needs no alignment
	if !w.gather(o, 8, provider.AccessLocalWrite, false) {
		o.atomic = true
		o.cancel()
		return nil
	}
	o.atomic = true
	return o
}

// posted makes the model expect o.
func (w *world) posted(o *op) {
	w.ops[o.id] = o
	o.q.sends = append(o.q.sends, o)
	c := o.conn
	if c == nil {
		return
	}
	if o.takesReceive() {
		c.msgs[o.side] = append(c.msgs[o.side], o)
	}
	if len(o.remote) > 0 && !o.remote[0].reads {
		c.placing[o.side] = append(c.placing[o.side], o)
	}
	if o.refused {
		c.refused[o.side] = append(c.refused[o.side], o)
	}
}

// unposted undoes posted for an op that the engine did not take, the latest first.
func (w *world) unposted(o *op) {
	delete(w.ops, o.id)
	last := func(list []*op) []*op {
		if n := len(list); n > 0 && list[n-1] == o {
			return list[:n-1]
		}
		return list
	}
	o.q.sends = last(o.q.sends)
	if c := o.conn; c != nil {
		c.msgs[o.side] = last(c.msgs[o.side])
		c.placing[o.side] = last(c.placing[o.side])
		c.refused[o.side] = last(c.refused[o.side])
	}
	o.cancel()
	w.memoryUnposted(o)
}

// receive is a call that posts receives, to a QP or its SRQ.
func (w *world) receive(q *queuePair) *call {
	if q == nil || q.closing {
		return nil
	}
	var recvs []*receive
	for range w.d.in(1, 6) {
		if r := w.newReceive(q); r != nil {
			recvs = append(recvs, r)
			w.recvs[r.id] = r
			if r.srq != nil {
				r.srq.posted = append(r.srq.posted, r)
			} else {
				q.recvs = append(q.recvs, r)
			}
		}
	}
	if len(recvs) == 0 {
		return nil
	}
	wrs := make([]provider.RecvWR, len(recvs))
	for i, r := range recvs {
		wrs[i] = r.wr
	}
	var took int
	var err error
	return &call{
		name: fmt.Sprintf("%s posts receives %d to %d", q, wrs[0].WRID, wrs[len(wrs)-1].WRID),
		rank: rankPost,
		run: func() {
			if q.srq != nil {
				took, err = q.srq.srq.PostRecv(wrs)
			} else {
				took, err = q.q.PostRecv(wrs)
			}
		},
		finish: func() {
			if took < len(recvs) && err == nil {
				w.fail("%s: %d of %d receives were posted, but there was no error", q, took,
					len(recvs))
			}
			for _, r := range slices.Backward(recvs[took:]) {
				delete(w.recvs, r.id)
				if r.srq != nil {
					r.srq.posted = slices.DeleteFunc(r.srq.posted, func(x *receive) bool { return x == r })
				} else {
					q.recvs = slices.DeleteFunc(q.recvs, func(x *receive) bool { return x == r })
				}
				for _, s := range r.spans {
					s.drop()
				}
			}
		},
	}
}

func (w *world) newReceive(q *queuePair) *receive {
	w.ids++
	d := w.d
	r := &receive{id: w.ids, q: q}
	pd, most := q.pd, q.q.rq.maxSGE
	if q.srq != nil {
		r.q, r.srq, pd, most = nil, q.srq, q.srq.pd, q.srq.srq.maxSGE
	}
	r.wr.WRID = r.id
	n := d.octets(w.longest)
	if d.oneIn(2) {
		n = max(n, w.longest/2)
	}
	for k := d.in(0, most); k > 0; k-- {
		size := n - r.n
		if k > 1 {
			size = d.upTo(size)
		}
		s, sge, via, ok := w.piece(q.p, pd, size, provider.AccessLocalWrite, false)
		if !ok {
			continue
		}
		if size > 0 {
			if via.usable(pd, provider.AccessLocalWrite) <= 0 {
				r.risky = true
			}
			s.recv, s.off = r, r.n
			r.spans = append(r.spans, q.p.mem.span(s))
			r.n += size
		}
		r.wr.SGList = append(r.wr.SGList, sge)
	}
	return r
}
