package model

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// run is one run of a plan.
type run struct {
	w     *world
	p     plan
	step  int
	trace []string

	sides    [2]*side
	listen   [2]*rdmacm.Listener
	conns    []*conn // those that are up
	all      []*conn
	made     int
	lastID   uint64
	jobs     map[uint64]*job
	receipts map[uint64]*receipt
	extra    []func() error // closes what a step has made for itself
	faults   bool           // something was done that devices raise events for
}

const (
	maxConns = 3
	margin   = 4096 // bytes beside the memory, which nothing may change
)

func newRun(w *world, p plan) *run {
	return &run{w: w, p: p, jobs: make(map[uint64]*job), receipts: make(map[uint64]*receipt)}
}

// begin makes what every run has.
func (r *run) begin() {
	d := &dice{r.p.setup}
	ctx, cancel := r.timeout()
	defer cancel()
	for e := range r.sides {
		s := &side{r: r, e: e, vctx: r.w.vctx[e], kernel: r.w.kernel[e], mem: make([]byte, arena+2*margin)[margin : margin+arena : margin+arena]}
		r.sides[e] = s
		copy(s.mem, d.octets(arena/8))
		for i := arena / 8; i < arena; i *= 2 {
			copy(s.mem[i:], s.mem[:i])
		}
		s.want = bytes.Clone(s.mem)
		var err error
		s.attr, err = s.vctx.Query()
		r.need("asking for attributes", err)
		for range 2 {
			pd, err := s.vctx.AllocPD()
			r.need("making a PD", err)
			bell, err := pd.AllocMR(bellOctets, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead)
			r.need("registering", err)
			s.pds = append(s.pds, &domain{pd, bell})
		}
		for _, dom := range s.pds {
			full := ibverbs.AccessLocalWrite | ibverbs.AccessRemoteRead | ibverbs.AccessRemoteWrite
			if !s.kernel {
				full |= ibverbs.AccessMWBind
				s.allocFast(d, dom)
				s.allocWindow(d, dom)
			}
			s.register(d, dom, full)
			s.register(d, dom, s.rights(d))
		}
		s.createQueue(d)
		s.createQueue(d)
		for range 20 { // librdmacm picks ports that TCP's own users have
			r.listen[e], err = rdmacm.Listen(ctx, s.vctx, r.w.addr[e], nil)
			if !s.kernel || !errors.Is(err, syscall.EADDRINUSE) {
				break
			}
		}
		r.need("listening", err)
	}
	r.connect(d)
}

// finish settles, ends all connections and takes everything apart; nothing may be
// left.
func (r *run) finish() {
	r.step++
	r.note("the end")
	r.settle()
	for len(r.conns) > 0 {
		c := r.conns[0]
		r.end(&dice{uint64(c.n)}, c, c.lanes[c.n&1], "disconnect")
	}
	for e, s := range r.sides {
		r.need("closing a listener", r.listen[e].Close())
		for _, sh := range s.shared {
			for _, rc := range sh.posted {
				r.drop(rc)
			}
			r.need("closing an SRQ", sh.srq.Close())
		}
		s.shared = nil
		for _, w := range slices.Clone(s.windows) {
			s.closeWindow(w)
		}
		for _, q := range s.queues {
			r.closeQueue(q)
		}
		for _, g := range s.regions {
			if g.uses != 0 || g.bound != 0 || g.fast != nil && g.fast.changes != 0 {
				r.fail("side %d: the model still has %d uses and %d windows of key %#x", e, g.uses, g.bound, g.rkey())
			}
			r.need("deregistering", g.mr.Close())
		}
		for _, dom := range s.pds {
			r.need("deregistering", dom.bell.Close())
			r.need("closing a PD", dom.pd.Close())
		}
		s.compare()
	}
	for _, s := range r.sides {
		r.events(s, nil)
	}
}

// events takes what the device of s has told: nothing that nobody caused. With until it
// waits for what makes that true.
func (r *run) events(s *side, until func() bool) {
	begin := time.Now()
	for {
		limit := time.Millisecond
		if until != nil && !until() {
			limit = r.w.patience
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		e, err := s.vctx.AsyncEvent(ctx)
		cancel()
		if err != nil {
			if until != nil && !until() {
				r.fail("side %d: an event that is due has not come after %v: %w", s.e, time.Since(begin), err)
			}
			return
		}
		switch e.Type {
		case ibverbs.EventSQDrained:
			for _, l := range s.lanes() {
				l.drained = l.drained || l.qp == e.QP
			}
		case ibverbs.EventQPLastWQEReached:
		case ibverbs.EventSRQLimitReached:
			r.limitReached(s, e.SRQ)
		case ibverbs.EventQPFatal, ibverbs.EventQPAccessErr, ibverbs.EventQPReqErr:
			if !r.faults {
				r.fail("side %d: event %s, and nobody did anything wrong", s.e, e)
			}
		default:
			r.fail("side %d: event %s", s.e, e)
		}
	}
}

// abandon takes apart what it can after a failure, so that the next run finds the
// device as it should be.
func (r *run) abandon() {
	for _, f := range r.extra {
		_ = f()
	}
	for _, c := range r.all {
		for _, l := range c.lanes {
			if l != nil && l.rc != nil {
				_ = l.rc.Close()
			}
		}
	}
	for e, s := range r.sides {
		if s == nil {
			continue
		}
		if r.listen[e] != nil {
			_ = r.listen[e].Close()
		}
		for _, sh := range s.shared {
			_ = sh.srq.Close()
		}
		for _, q := range s.queues {
			_ = q.cq.Close()
			_ = q.ch.Close()
		}
		for _, w := range s.windows {
			_ = w.mw.Close()
		}
		for _, g := range s.regions {
			_ = g.mr.Close()
		}
		for _, dom := range s.pds {
			_ = dom.bell.Close()
			_ = dom.pd.Close()
		}
	}
}

func (r *run) timeout() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), r.w.patience)
}

func (r *run) stepConnect(d *dice) {
	if len(r.conns) < maxConns {
		r.connect(d)
	}
}

// connect makes a connection, either way round.
func (r *run) connect(d *dice) {
	ctx, cancel := r.timeout()
	defer cancel()
	r.made++
	c := &conn{n: r.made}
	r.all = append(r.all, c)
	from := d.pick(2)
	var cfgs [2]*rdmacm.ConnConfig
	for e, s := range r.sides {
		c.lanes[e], cfgs[e] = s.newLane(d, c)
	}
	r.note("connection %d, made by side %d: PDs %d and %d, SRQs %v and %v", c.n, from, number(r.sides[0].pds, c.lanes[0].d), number(r.sides[1].pds, c.lanes[1].d), c.lanes[0].sh != nil, c.lanes[1].sh != nil)
	active, passive := c.lanes[from], c.lanes[1-from]
	c.active = active
	accepted := make(chan error, 1)
	go func() {
		req, err := r.listen[1-from].Accept(ctx)
		if err == nil {
			passive.rc, err = req.Accept(ctx, cfgs[1-from])
		}
		accepted <- err
	}()
	var err error
	active.rc, err = rdmacm.Dial(ctx, r.sides[from].vctx, r.listen[1-from].Addr(), cfgs[from])
	if err != nil {
		cancel()
	}
	accept := <-accepted
	r.need("dialling", err)
	r.need("accepting", accept)
	for _, l := range c.lanes {
		l.qp = l.rc.QP()
		attr, init, err := l.qp.Query()
		r.need("asking for sizes", err)
		l.cap = init.Cap
		if !l.s.kernel { // which doesn't tell: kernel-notes/siw-query-qp.md
			if wanted := max(cfgs[l.s.e].InitiatorDepth, 0); attr.MaxRdAtomic > wanted {
				r.fail("connection %d, side %d: %d Reads at a time, want at most %d", c.n, l.s.e, attr.MaxRdAtomic, wanted)
			}
			l.ord = attr.MaxRdAtomic
		}
		l.sendQ.lanes++
		l.recvQ.lanes++
		if l.sh != nil {
			l.sh.lanes++
		}
	}
	r.conns = append(r.conns, c)
	// The side that dialled speaks first (RFC 5044 section 7.1.2).
	r.flush(active)
}

func number[T comparable](list []T, v T) int {
	for i := range list {
		if list[i] == v {
			return i
		}
	}
	return -1
}

func (s *side) newLane(d *dice, c *conn) (*lane, *rdmacm.ConnConfig) {
	l := &lane{c: c, s: s, d: one(d, s.pds), sendQ: one(d, s.queues), recvQ: one(d, s.queues), sigAll: d.oneIn(5)}
	cfg := &rdmacm.ConnConfig{
		PD: l.d.pd, SendCQ: l.sendQ.cq, RecvCQ: l.recvQ.cq, SQSigAll: l.sigAll,
		Cap:                ibverbs.QPCap{MaxSendWR: d.in(2, 16), MaxRecvWR: d.in(1, 12), MaxSendSGE: d.in(1, 4), MaxRecvSGE: d.in(1, 4), MaxInlineData: 16 * d.pick(4)},
		ResponderResources: d.in(1, 5), InitiatorDepth: d.in(1, 5), Cookie: c,
	}
	l.ord = cfg.InitiatorDepth
	if !s.r.w.kernel[0] && !s.r.w.kernel[1] && d.oneIn(6) {
		cfg.InitiatorDepth = -1 // no Reads, no atomic operations
	}
	if d.oneIn(3) {
		if l.sh = one(d, s.shared); l.sh != nil {
			cfg.SRQ = l.sh.srq
		}
	}
	return l, cfg
}

// createQueue makes a CQ.
func (s *side) createQueue(d *dice) {
	ch, err := s.vctx.CreateCompChannel()
	s.r.need("making a channel", err)
	q := &queue{s: s, ch: ch, waits: d.oneIn(2)}
	q.cq, err = s.vctx.CreateCQ(d.in(24, 100), &ibverbs.CQOptions{Channel: ch, Cookie: q})
	s.r.need("making a CQ", err)
	s.queues = append(s.queues, q)
}

func (r *run) closeQueue(q *queue) {
	if q.load != 0 {
		r.fail("side %d: the model still counts %d completions of a CQ", q.s.e, q.load)
	}
	r.need("closing a CQ", q.cq.Close())
	r.need("closing a channel", q.ch.Close())
}

// stepQueues makes a CQ, takes one away, or gives one another size.
func (r *run) stepQueues(d *dice) {
	s := r.sides[d.pick(2)]
	q := one(d, s.queues)
	switch {
	case len(s.queues) < 4 && d.oneIn(2):
		r.note("side %d makes a CQ", s.e)
		s.createQueue(d)
	case q.lanes == 0 && q.load == 0 && len(s.queues) > 1:
		r.note("side %d closes a CQ", s.e)
		r.closeQueue(q)
		i := number(s.queues, q)
		s.queues = append(s.queues[:i], s.queues[i+1:]...)
	case !s.kernel: // siw has no ibv_resize_cq
		n := q.load + reserve*2*maxConns + d.pick(40) // more connections may come to it
		r.note("side %d resizes a CQ from %d to %d", s.e, q.cq.CQE(), n)
		r.need("resizing", q.cq.Resize(n))
		if q.cq.CQE() < n {
			r.fail("a CQ resized to %d holds %d", n, q.cq.CQE())
		}
	}
}
