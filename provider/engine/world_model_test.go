package engine

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
)

// The model: what the driver knows of each process and its objects. Only the driver changes it,
// unless something else is said. The calls of a round read what they need of it, while the
// driver waits for them.

// proc is a process: an engine, and what its program has made on it.
type proc struct {
	w     *world
	no    int
	addr  netip.Addr
	dev   *device
	mem   *procMemory
	ended bool

	pds      []*domain
	cqs      []*complQueue
	qps      []*queuePair
	srqs     []*sharedQueue
	rights   []*right
	windows  []*window
	fasts    []*fastRegion
	chans    []*compChannel
	ch       provider.EventChannel
	listener provider.ID
	port     uint16
	ids      []provider.ID // that are open, the listener left out

	mu     sync.Mutex
	events []provider.CMEvent // not seen by the driver yet
}

func (p *proc) String() string { return fmt.Sprintf("process %d", p.no) }

type domain struct {
	p      *proc
	pd     *pd
	closed bool
}

type complQueue struct {
	p      *proc
	cq     *cq
	ch     *compChannel
	tiny   bool // it may overflow
	lossy  bool // it has
	closed bool
}

type sharedQueue struct {
	p      *proc
	srq    *srq
	pd     *domain
	posted []*receive // and not completed
	closed bool
}

type queuePair struct {
	p        *proc
	no       int
	q        *qp
	pd       *domain
	scq, rcq *complQueue
	srq      *sharedQueue
	sigAll   bool
	sends    []*op      // posted and not completed, in order
	recvs    []*receive // the same
	failed   bool       // a send was reported to have failed since the QP was reset
	rfailed  bool
	conn     *connection // that it is to have, or has had since it was reset
	side     int
	closed   bool // Close has returned
	closing  bool
}

func (q *queuePair) String() string { return fmt.Sprintf("%s's QP %d", q.p, q.no) }

func (q *queuePair) state() provider.QPState { return q.q.getState() }

// lossy reports whether completions of q may be lost.
func (q *queuePair) lossy() bool { return q.scq.lossy || q.rcq.lossy }

// peer is the QP that q's connection is with, nil without one.
func (q *queuePair) peer() *queuePair {
	if q.conn == nil {
		return nil
	}
	return q.conn.qps[1-q.side]
}

// connection is a connection that was asked for: qps[0] connects to qps[1].
type connection struct {
	no     int
	qps    [2]*queuePair
	ids    [2]provider.ID
	answer int // what the responder's program does
	asked  bool
	up     [2]bool
	failed [2]bool
	down   [2]bool

	msgs    [2][]*op // that take a receive, by the side that sends them
	taken   [2]int   // how many of msgs[1-side] side has received
	placing [2][]*op // whose bytes are not known to be placed yet, by their side, in order
	refused [2][]*op // that the peer has to refuse, by their side

	spoiled bool // one of its processes has ended
	ending  bool // it is being ended
}

// receive is a posted receive.
type receive struct {
	id    uint64
	q     *queuePair // nil: of an SRQ
	srq   *sharedQueue
	spans []*extent
	n     int
	risky bool // an SGE may name memory that can't be used
	wr    provider.RecvWR
}

// messages returns the messages that r may receive.
func (r *receive) messages() []*op {
	if r.srq != nil {
		var list []*op
		for _, q := range r.srq.p.qps {
			if q.srq == r.srq && q.conn != nil {
				msgs := q.conn.msgs[1-q.side]
				list = append(list, msgs[min(q.conn.taken[q.side], len(msgs)):]...)
			}
		}
		return list
	}
	c := r.q.conn
	if c == nil {
		return nil
	}
	msgs, taken := c.msgs[1-r.q.side], c.taken[r.q.side]
	if r.q.lossy() {
		return msgs
	}
	at := slices.Index(r.q.recvs, r)
	if at < 0 || taken+at >= len(msgs) {
		return nil
	}
	return msgs[taken+at : taken+at+1]
}

// op is a posted send.
type op struct {
	id      uint64
	q       *queuePair
	conn    *connection
	side    int
	wr      provider.SendWR
	payload []byte // that is sent, or that comes to the sink

	local, remote []*extent
	right         *right   // at the peer
	uses          []*right // of ours
	badLocal      bool     // an SGE names memory that can't be used
	refused       bool     // the peer has to refuse it
	risky         bool     // the peer may have to
	inlined       bool

	begins *right // that work on our own memory makes
	ends   *right // that it ends

	over   bool // completed, or known to be
	atomic bool
	word   [8]byte // what an atomic operation leaves
}

func (o *op) String() string {
	return fmt.Sprintf("%v %d of %d bytes by %s", o.wr.Opcode, o.id, len(o.payload), o.q)
}

// takesReceive reports whether the peer needs a receive for o.
func (o *op) takesReceive() bool {
	switch o.wr.Opcode {
	case provider.WRSend, provider.WRSendWithInv, provider.WRSendWithImm, provider.WRRDMAWriteWithImm:
		return true
	}
	return false
}

func (o *op) answered() bool { return answeredOps.has(o.wr.Opcode) && o.wr.Opcode < 32 }

// rightState says whether a right exists.
type rightState uint8

const (
	pending rightState = iota // a work request is to make it
	live
	dying // a call is under way that ends it
	dead
)

// right is a region, or a window or fast registration for as long as it has the same key:
// through it bytes may be reached.
type right struct {
	p      *proc
	pd     *domain
	lo, hi int // of the memory
	base   uint64
	key    uint32
	access provider.Access
	state  rightState
	shut   bool // peers can't use it any more
	mr     provider.MR
	object *object
	window *window
	fast   *fastRegion
	parent *right     // of a window
	qp     *queuePair // of a window of type 2
	moving bool       // made by a work request

}

func (r *right) String() string {
	return fmt.Sprintf("%s's key %#x of [%d, %d)", r.p, r.key, r.lo, r.hi)
}

// usable reports whether work of ours in d that needs these rights succeeds with r (1), may
// succeed (0), or fails (-1).
func (r *right) usable(d *domain, need provider.Access) int {
	switch {
	case r.state == dead, r.pd != d, r.access&need != need, r.window != nil:
		return -1
	case r.state != live || r.object != nil || r.moving:
		return 0
	}
	return 1
}

// reachable reports, as usable does for our work, whether an access of q's peer succeeds.
func (r *right) reachable(q *queuePair, need provider.Access) int {
	switch {
	case r.state == dead, r.shut, r.pd != q.pd, r.access&need != need, r.qp != nil && r.qp != q:
		return -1
	case r.state != live || r.object != nil || r.moving || r.access&provider.AccessRemoteInvalidate != 0:
		return 0
	}
	return 1
}

type window struct {
	p     *proc
	pd    *domain
	mw    *memory.Window
	now   *right // as the bind that was posted last makes it
	gone  bool
	binds int // posted and not completed
}

type fastRegion struct {
	p    *proc
	pd   *domain
	area area
	mr   *memory.FastRegion
	now  *right
	gone bool
	work int // registrations and invalidations posted and not completed
}

// call is a call of a round, which runs at the same time as others.
type call struct {
	name   string
	rank   int
	run    func()
	finish func()
	done   bool
}

// Calls are prepared and finished in this order, so that what was posted is known when
// its completion is seen, and what was completed when its queue is closed.
const (
	rankPost = iota
	rankPoll
	rankOther
	rankEnd
)

// do runs calls at the same time and waits for all.
func (w *world) do(calls ...*call) {
	calls = slices.DeleteFunc(calls, func(c *call) bool { return c == nil })
	slices.SortStableFunc(calls, func(a, b *call) int { return a.rank - b.rank })
	if len(calls) == 0 {
		return
	}
	for _, c := range calls {
		w.note("%s", c.name)
	}
	done := make(chan *call, len(calls))
	for _, c := range calls {
		go func() {
			c.run()
			done <- c
		}()
	}
	late := time.NewTimer(time.Hour)
	defer late.Stop()
	for range calls {
		select {
		case c := <-done:
			c.done = true
		case <-late.C:
			for _, c := range calls {
				if !c.done {
					w.fail("%s: the call has not returned after an hour", c.name)
				}
			}
		}
	}
	for _, c := range calls {
		if c.finish != nil {
			c.finish()
		}
	}
}

// privateData returns the private data of a connection's request: its number.
func (c *connection) privateData() []byte { return binary.BigEndian.AppendUint32(nil, uint32(c.no)) }
