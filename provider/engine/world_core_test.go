package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// world is one simulation. Only the driver uses it, except fields that are said to be shared.
type world struct {
	seed uint64
	d    *dice
	net  *memnet.Network

	kind     worldKind
	ext      bool // RFC 7306
	rdmac    mpa.RDMACPolicy
	exact    bool // nothing is placed before its CRC is known: bytes may be spoilt
	mistakes int  // one in so many arguments is bad
	objects  int  // one in so many regions is over an object
	greedy   int  // one in so many Sends in a list of equal ones is sent without a receive
	longest  int  // bytes of a message
	proc     int  // processes made

	procs []*proc
	conns []*connection
	byID  map[provider.ID]*connection
	ids   uint64 // of work requests, the last
	ops   map[uint64]*op
	recvs map[uint64]*receive
	lates []*extent
	never []*right // that a failed work request was to make
	raws  []transport.Conn

	trace   []string
	reached map[string]int

	mu     sync.Mutex // of what follows
	faults []*mishap
	hits   map[[2]netip.AddrPort]bool // connections, seen from both ends, that had a fault

	err atomic.Pointer[error] // what was wrong first
}

// worldKind says what a world has most of.
type worldKind int

const (
	kindPlain   worldKind = iota
	kindMemory            // windows and registrations
	kindObjects           // regions of objects
	kindSpin              // polling and sleeping
	kindEnds              // connections that come and go
)

var errWorldEnds = errors.New("the world has failed")

// fail ends the world. Only the driver may call it.
func (w *world) fail(format string, args ...any) {
	w.failLater(format, args...)
	panic(errWorldEnds)
}

// failLater notes a fault, for the driver to see.
func (w *world) failLater(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	w.err.CompareAndSwap(nil, &err)
}

// need ends the world if a call that has to succeed doesn't.
func (w *world) need(what string, err error) {
	if err != nil {
		w.fail("%s: %v", what, err)
	}
}

// failure returns what was wrong, and what led to it; nil if nothing was wrong.
func (w *world) failure() error {
	if w.err.Load() == nil {
		return nil
	}
	return fmt.Errorf("%w\n%s\nwhich is: %w", *w.err.Load(), w.story(), *w.err.Load())
}

func (w *world) story() string {
	return strings.Join(w.trace, "\n")
}

func (w *world) note(format string, args ...any) {
	line := fmt.Sprintf("%10v  ", time.Since(bubbleBegins)) + fmt.Sprintf(format, args...)
	w.trace = append(w.trace, line)
	if *worldsTrace {
		fmt.Println(line)
	}
}

var bubbleBegins = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (w *world) seen(what string) { w.reached[what]++ }

// reached counts what has happened in worlds.
type reached struct {
	mu sync.Mutex
	n  map[string]int
}

func (r *reached) add(w *world) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n == nil {
		r.n = make(map[string]int)
	}
	for what, n := range w.reached {
		r.n[what] += n
	}
}

func (r *reached) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for what, n := range r.n {
		list = append(list, fmt.Sprintf("%s %d", what, n))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func newWorld(seed uint64) *world {
	w := &world{
		seed: seed, d: &dice{seed}, byID: make(map[provider.ID]*connection),
		ops: make(map[uint64]*op), recvs: make(map[uint64]*receive),
		reached: make(map[string]int), hits: make(map[[2]netip.AddrPort]bool),
	}
	d := w.d
	w.kind = worldKind(d.weighed([]int{5, 2, 3, 2, 2}))
	w.ext = d.oneIn(2)
	if d.oneIn(10) {
		w.ext, w.rdmac = false, one(d, []mpa.RDMACPolicy{mpa.RDMACOnly, mpa.RDMACPermitted})
	}
	w.mistakes = one(d, []int{20, 60, 200, 200, 1000})
	w.objects, w.greedy = 12, 4
	if w.kind == kindObjects {
		w.objects, w.greedy = 2, 2
	}
	w.longest = one(d, []int{500, 3000, 9000, 9000, 40000})
	w.exact = d.oneIn(2)
	w.net = memnet.New(w.network())
	return w
}

// network draws what the network is like.
func (w *world) network() *memnet.Options {
	d := w.d
	o := &memnet.Options{
		Seed: d.next(),
		MSS:  one(d, []int{1448, 1448, 1448, 536, 200, 9000, 60000}), Window: one(d, []int{0, 0, 3000, 20000}),
		Cut: d.oneIn(4), Shuffle: d.oneIn(2), Yield: one(d, []int{0, 3, 30}),
		Filter: w.filter,
		OnSpin: func(conn uint64) {
			w.failLater("connection %d of the network: a poller calls its handler again and "+
				"again, and nothing moves", conn)
		},
	}
	switch d.upTo(3) {
	case 0:
		o.MaxDelay = 100 * time.Microsecond
	case 1:
		o.MinDelay, o.MaxDelay = time.Microsecond, 2*time.Millisecond
	}
	if d.oneIn(3) {
		o.MaxWake = one(d, []time.Duration{10 * time.Microsecond, time.Millisecond})
	}
	if d.oneIn(3) {
		o.Spurious = d.in(2, 40)
	}
	for i := range 24 {
		o.Addrs = append(o.Addrs, netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}))
	}
	return o
}

// live plays the world from its beginning to its end.
func (w *world) live() {
	d := w.d
	procs, steps := 2, d.in(15, 50)
	switch d.upTo(11) {
	case 0:
		procs = 8
	case 1, 2:
		procs = 3
	case 3:
		procs = 1
	}
	for i := range procs {
		w.newProc(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}))
	}
	for range 2 * procs {
		w.do(w.connect())
	}
	for _, p := range w.procs {
		for _, q := range p.qps {
			if d.oneIn(4) {
				continue
			}
			w.do(w.receive(q))
		}
	}
	for range d.upTo(2) { // until they are connected, mostly
		time.Sleep(30 * time.Millisecond)
		w.events()
	}
	for range steps {
		w.step()
	}
	if d.oneIn(2) {
		w.quiet()
	}
	w.end()
}

// living are the processes that have not ended.
func (w *world) living() []*proc {
	var list []*proc
	for _, p := range w.procs {
		if !p.ended {
			list = append(list, p)
		}
	}
	return list
}

// newProc makes an engine, and on it what a program begins with.
func (w *world) newProc(addr netip.Addr) *proc {
	d := w.d
	w.proc++
	p := &proc{w: w, no: w.proc, addr: addr}
	p.mem = newMemory(p)
	opts := Options{
		Network: w.net, Extensions: w.ext,
		CRC:            one(d, []CRCPolicy{CRCPreferred, CRCPreferred, CRCOff}),
		Conformance:    Conformance{RDMAC: w.rdmac, Markers: d.oneIn(6)},
		PeerToPeer:     w.rdmac == mpa.RDMACRefused && d.oneIn(3),
		StartupTimeout: time.Second, CloseTimeout: 200 * time.Millisecond,
		BusyWait:   one(d, []time.Duration{0, -1}),
		MaxPending: one(d, []int{0, 2, 8}), MaxAccepted: one(d, []int{-1, -1, 0, 3}),
		MaxClosing:  one(d, []int{0, 1, 3}),
		FPDUTimeout: one(d, []time.Duration{0, 0, 2 * time.Second}),
		SendTimeout: one(d, []time.Duration{0, 0, 2 * time.Second}),

		ProgressGoroutines: 1 + w.proc%3,
	}
	if w.exact {
		opts.CRC = CRCPreferred
	}
	dev, err := New(&opts).Open("")
	w.need("opening a device", err)
	p.dev = dev.(*device)
	p.dev.lendFromStore()
	w.procs = append(w.procs, p)
	ch, err := dev.CreateEventChannel()
	w.need("an event channel", err)
	p.ch = ch
	go p.takeEvents(ch)
	for range d.in(1, 2) {
		pd, err := dev.AllocPD()
		w.need("a PD", err)
		p.pds = append(p.pds, &domain{p: p, pd: asPD(pd)})
	}
	for range d.in(3, 7) {
		w.register(p)
	}
	if w.kind == kindMemory || d.oneIn(4) {
		for range d.in(1, 4) {
			w.allocate(p)
		}
	}
	for range d.in(1, 3) {
		w.newCQ(p)
	}
	if d.oneIn(3) {
		w.newSRQ(p)
	}
	for range d.in(1, 3) {
		w.newQP(p)
	}
	w.listen(p)
	w.note("%s at %s: CRC %v, markers %v, peer-to-peer %v",
		p, addr, opts.CRC, opts.Conformance.Markers, opts.PeerToPeer)
	return p
}

func asPD(p provider.PD) *pd { return p.(*pd) }

func (w *world) newCQ(p *proc) {
	d := w.d
	c := &complQueue{p: p}
	init := provider.CQInitAttr{CQE: 1024}
	if len(p.cqs) > 0 && d.oneIn(10) {
		c.tiny, init.CQE = true, d.in(1, 4)
	}
	if d.oneIn(2) || w.kind == kindSpin {
		ch, err := p.dev.CreateCompChannel()
		w.need("a completion channel", err)
		c.ch = ch.(*compChannel)
		init.Channel = ch
		p.chans = append(p.chans, c.ch)
	}
	q, err := p.dev.CreateCQ(init)
	w.need("a CQ", err)
	c.cq = q.(*cq)
	p.cqs = append(p.cqs, c)
}

func (w *world) newSRQ(p *proc) {
	pd := one(w.d, p.pds)
	r, err := pd.pd.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: w.d.in(2, 32), MaxSGE: w.d.in(1, 3)}})
	w.need("an SRQ", err)
	p.srqs = append(p.srqs, &sharedQueue{p: p, srq: r.(*srq), pd: pd})
}

func (w *world) newQP(p *proc) {
	d := w.d
	var open []*complQueue
	for _, c := range p.cqs {
		if !c.closed {
			open = append(open, c)
		}
	}
	pd := one(d, p.pds)
	if len(open) == 0 || pd.closed {
		return
	}
	q := &queuePair{p: p, no: len(p.qps), pd: pd, scq: one(d, open), rcq: one(d, open), sigAll: d.oneIn(4)}
	init := provider.QPInitAttr{
		SendCQ: q.scq.cq, RecvCQ: q.rcq.cq, SQSigAll: q.sigAll,
		Cap: provider.QPCap{
			MaxSendWR: one(d, []int{2, 8, 32}), MaxRecvWR: one(d, []int{2, 16, 32}),
			MaxSendSGE: d.in(1, 4), MaxRecvSGE: d.in(1, 4),
			MaxInlineData: one(d, []int{0, 64, 512}),
		},
	}
	if s := one(d, p.srqs); s != nil && !s.closed && !q.rcq.tiny && d.oneIn(2) {
		q.srq, init.SRQ = s, s.srq
	}
	made, err := pd.pd.CreateQP(init)
	w.need("a QP", err)
	q.q = made.(*qp)
	p.qps = append(p.qps, q)
}

// step is one round.
func (w *world) step() {
	d := w.d
	w.events()
	for _, p := range w.procs {
		for _, c := range p.cqs {
			if !c.closed && !c.tiny && c.cq.seen.Load() > 600 {
				w.drain(c)
			}
		}
	}
	w.resetSome()
	switch d.weighed([]int{30, 6, 3, 1, 2, 3}) {
	case 0:
		w.round()
	case 1:
		time.Sleep(time.Duration(one(d, []int{1, 1000, 100_000, 3_000_000, 30_000_000})))
	case 2:
		synctest.Wait()
	case 3:
		w.quiet()
	case 4:
		w.change()
	case 5:
		w.disturb()
	}
	if w.err.Load() != nil {
		panic(errWorldEnds)
	}
}

// round makes some calls at the same time.
func (w *world) round() {
	d := w.d
	weights := []int{18, 14, 8, 3, 6, 1, 1, 1, 1, 1, 1, 1, 1}
	switch w.kind {
	case kindSpin:
		weights[0], weights[3], weights[12] = 20, 12, 20
	case kindEnds:
		weights[4], weights[5], weights[6], weights[10] = 12, 8, 3, 3
	case kindObjects:
		weights[5] = 3
	case kindMemory:
		weights[5] = 3
		weights[8], weights[9], weights[11] = 2, 2, 4
	}
	kinds := make([]int, d.in(1, 5))
	for i := range kinds {
		kinds[i] = d.weighed(weights)
	}
	slices.Sort(kinds) // what is posted first is prepared first
	used := make(map[any]bool)
	once := func(x any) bool {
		was := used[x]
		used[x] = true
		return !was
	}
	var calls []*call
	add := func(c *call) { calls = append(calls, c) }
	together := d.oneIn(2) // on one QP and its CQs
	var p *proc
	var q *queuePair
	var c *complQueue
	for i, k := range kinds {
		if i == 0 || !together {
			if p = one(d, w.living()); p == nil {
				return
			}
			q, c = w.pickQP(p), one(d, p.cqs)
			if q != nil && together {
				c = one(d, []*complQueue{q.scq, q.rcq})
			}
		}
		switch k {
		case 0:
			if q != nil && once([2]any{q, "sq"}) {
				add(w.post(q))
			}
		case 1:
			if q != nil && once([2]any{q, "rq"}) && (q.srq == nil || once(q.srq)) {
				add(w.receive(q))
			}
		case 11:
			if q != nil && once([2]any{q, "sq"}) {
				add(w.bind1(q))
			}
		case 2:
			if c != nil && once(c) {
				add(w.poll(c))
			}
		case 12:
			if c != nil && once(c) {
				add(w.spin(c))
			}
		case 3:
			if c != nil && once(c) {
				add(w.wait(c))
			}
		case 4:
			add(w.connect())
		case 5:
			if q != nil && once(q) {
				add(w.endConnection(q))
			}
		case 6:
			if q != nil && once(q) {
				add(w.closeQP(q))
			}
		case 7:
			if r := one(d, p.rights); r != nil && once(r) {
				add(w.deregister(r))
			}
		case 8:
			add(w.closeWindow(one(d, p.windows)))
		case 9:
			if f := one(d, p.fasts); f != nil && once(f) {
				add(w.closeFast(f))
			}
		case 10:
			add(w.closeOneID(p))
		}
	}
	w.do(calls...)
}

// resetSome occasionally resets a QP that has failed, so that there is one to connect.
func (w *world) resetSome() {
	for _, p := range w.living() {
		for _, q := range p.qps {
			if !q.closing && q.state() == provider.QPErr && w.d.oneIn(4) {
				w.resetQP(q)
				return
			}
		}
	}
}

// pickQP picks a QP, mostly one that is connected.
func (w *world) pickQP(p *proc) *queuePair {
	var q *queuePair
	for range 4 {
		if q = one(w.d, p.qps); q != nil && !q.closing && q.state() == provider.QPRTS {
			break
		}
	}
	return q
}

// change makes and resets things.
func (w *world) change() {
	d := w.d
	p := one(d, w.living())
	if p == nil {
		return
	}
	switch d.upTo(4) {
	case 0:
		w.register(p)
	case 1:
		w.allocate(p)
	case 2:
		if len(p.qps) < 8 {
			w.newQP(p)
		}
	case 3:
		w.refusedCloses(p)
	case 4:
		w.resize(p)
	}
}
