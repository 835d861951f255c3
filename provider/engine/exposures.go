package engine

import (
	"math/bits"
	"math/rand/v2"
	"unsafe"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// The payload of a Send or Write goes out from the region, and its CRC is calculated
// before that. If a peer could write the octets in between, it would end a connection
// that is not its own, because the receiver finds a bad CRC. So memory that peers write is
// sent from a copy, which is made together with the CRC. Peers write memory by the rights of
// the region that is sent, through a window, or by another region over the same octets, of
// whatever protection domain or device.
//
// A right alone does not change the octets, and many programs register all their memory with
// it, also what no peer ever writes. So a region that has the right all its life (RegMR)
// exposes its memory when the first octet that a peer writes is about to be placed. It remains
// exposed until the region is closed. A window, or a region that a work request registers,
// exposes its memory for as long as it is bound or registered: peers are given one in order to
// use it.
//
// A region of RegMR has a gate for this, mr.still, which is open while nothing exposes its
// octets. A send that makes no copy enters that gate in place of mr.local, which costs no
// more. Before memory is exposed the gate is shut, which waits for the sends that are inside:
// each of them ends after a write that does not block. A goroutine that is inside takes locks under
// which nothing is waited for, and enters other gates, but waits for none: whoever is inside
// mr.remote may wait for mr.still, never the other way round.
//
// This goes by addresses. It does not cover pages that are mapped more than once, in this process
// or in several: a peer that writes them by a region over the other mapping can end the connection
// over which they are being sent. A program that sends to a peer should not let another peer write
// the same pages by another mapping.

// remoteWriting are the rights with which a peer changes memory.
const remoteWriting = provider.AccessRemoteWrite | provider.AccessRemoteAtomic

// exposed is of the process, as its memory is.
var exposed exposures

// exposures are the memory that peers write or may write, and the regions that are sent from
// without a copy unless that is their memory. Both change only when something is registered,
// bound, invalidated or closed, or written for the first time.
//
// Nothing is waited for with mu held: it is one lock for all devices of the process, and what is
// being sent may take as long as the system has no CPU for the thread that sends it.
type exposures struct {
	mu       sched.Mutex[locks.Exposed]
	writable intervals
	sources  intervals
}

// expose notes that peers can write v from now on, until cover, and returns v. It waits
// until nothing of v is being sent without a copy.
func (x *exposures) expose(v *interval) *interval {
	x.mu.Lock()
	sending := x.exposeLocked(v)
	x.mu.Unlock()
	x.drain(v, sending)
	return v
}

// exposeLocked is the part of expose with mu held. It returns the regions of which something is
// being sent, for drain. Where peers can write exactly the octets of v already, only what their
// exposure still waits for is being sent: so of any number of regions over the same memory only the
// first that is written visits the others.
func (x *exposures) exposeLocked(v *interval) (sending []*mr) {
	if same := x.writable.find(v); same != nil {
		same.join(v)
		return same.sending
	}
	x.writable.insert(v)
	x.sources.overlapping(v, func(s *interval) {
		s.m.exposures++
		s.m.still.Prepare()
		s.m.still.Bar()
		if s.m.still.Uses() > 0 {
			v.sending = append(v.sending, s.m)
		}
	})
	return v.sending
}

// drain waits until nothing of the regions is being sent that exposeLocked has returned for v.
func (x *exposures) drain(v *interval, sending []*mr) {
	if len(sending) == 0 {
		return
	}
	for _, m := range sending {
		m.still.Drain()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	v.sending = nil
}

// cover undoes expose, after the last peer has lost the right. There may be nothing to
// undo.
func (x *exposures) cover(v *interval) {
	if v == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.coverLocked(v)
}

// coverLocked is cover with mu held.
func (x *exposures) coverLocked(v *interval) {
	if same := v.leave(); same != nil {
		x.writable.replace(v, same)
		return
	}
	x.writable.remove(v)
	x.sources.overlapping(v, func(s *interval) {
		if s.m.exposures--; s.m.exposures == 0 && !s.m.windows.Closed() { // leave may be waiting
			s.m.still.Open()
		}
	})
}

// enter notes the memory of m before anybody can use it.
func (x *exposures) enter(m *mr) {
	if len(m.buf) == 0 { // an object, or nothing that could be sent
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	m.gated = true
	m.unwritten.Store(m.access&remoteWriting != 0)
	m.interval = newInterval(m.buf, m)
	x.writable.overlapping(m.interval, func(*interval) { m.exposures++ })
	if m.exposures > 0 {
		m.still.InitShut()
	}
	x.sources.insert(m.interval)
}

// willWrite exposes the memory of m before the first octet that a peer writes by the rights of
// m is placed. The caller is inside m.remote, so that m is not closed meanwhile, and uses no other
// region: no goroutine that places anything is sending at the same time.
func (x *exposures) willWrite(m *mr) {
	x.mu.Lock()
	var sending []*mr
	if m.written == nil {
		m.written = newInterval(m.buf, nil)
		sending = x.exposeLocked(m.written)
	} else { // by another stream, which may be waiting
		sending = x.writable.find(m.written).sending
	}
	x.mu.Unlock()
	x.drain(m.written, sending)
	m.unwritten.Store(false) // last: a stream that sees it places at once
}

// leave undoes enter and willWrite when m can't be used any more. It waits until nothing of m
// is being sent, and may be called several times, also concurrently.
func (x *exposures) leave(m *mr) {
	if !m.gated {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	m.still.Prepare()
	m.still.Bar()
	if m.still.Uses() > 0 {
		// While it is being sent it stays among the sources, for a peer that writes to its memory
		// by way of another region.
		x.mu.Unlock()
		m.still.Drain()
		x.mu.Lock()
	}
	if v := m.interval; v != nil {
		m.interval = nil
		x.sources.remove(v)
	}
	if v := m.written; v != nil {
		m.written = nil
		x.coverLocked(v)
	}
}

// interval is where a slice lies: the octets from lo to before hi.
type interval struct {
	lo, hi uintptr
	m      *mr // of sources

	// Of the tree, a treap ordered by lo and hi: it is as deep as a tree that is built in random
	// order. max is the highest hi of the subtree.
	left, right *interval
	max         uintptr
	priority    uint64

	// Of writable: a ring of intervals of the same octets, of which one is in the tree. nil for
	// one that is alone.
	before, after *interval
	sending       []*mr // what drain waits for; exposures.mu guards it
}

func newInterval(b []byte, m *mr) *interval { return new(interval).of(b, m) }

// of makes n, which is in no tree, the interval of b, and returns it: a window or region
// that comes and goes by work requests has one for all its life, and allocates none.
func (n *interval) of(b []byte, m *mr) *interval {
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	*n = interval{lo: lo, hi: lo + uintptr(len(b)), m: m, priority: rand.Uint64()}
	return n
}

// join adds v, which is in no ring, to the ring of n.
func (n *interval) join(v *interval) {
	if n.after == nil {
		n.before, n.after = n, n
	}
	v.before, v.after = n, n.after
	n.after.before = v
	n.after = v
}

// leave takes n out of its ring and returns one that remains, nil if n was alone.
func (n *interval) leave() *interval {
	rest := n.after
	if rest == nil {
		return nil
	}
	n.before.after, rest.before = rest, n.before
	if rest.after == rest {
		rest.before, rest.after = nil, nil
	}
	n.before, n.after = nil, nil
	return rest
}

// intervals are a set. To find those that overlap with another interval takes logarithmic
// time for each that is found.
type intervals struct{ root *interval }

func (t *intervals) insert(v *interval) {
	v.left, v.right, v.max = nil, nil, v.hi
	before, after := t.root.splitBy(v)
	t.root = join(join(before, v), after)
}

func (t *intervals) remove(v *interval) { t.root = t.root.without(v) }

// find returns one of the same octets as v, nil if there is none.
func (t *intervals) find(v *interval) *interval {
	n := t.root
	for n != nil && (n.lo != v.lo || n.hi != v.hi) {
		if v.less(n) {
			n = n.left
		} else {
			n = n.right
		}
	}
	return n
}

// replace puts w, of the same octets, in the place of v, if v is in the set.
func (t *intervals) replace(v, w *interval) {
	if t.find(v) == v {
		t.remove(v)
		t.insert(w)
	}
}

// overlapping calls f for all that have an octet in common with v.
func (t *intervals) overlapping(v *interval, f func(*interval)) { t.root.overlapping(v, f) }

func (n *interval) overlapping(v *interval, f func(*interval)) {
	for n != nil && n.max > v.lo {
		n.left.overlapping(v, f)
		if n.lo >= v.hi {
			return
		}
		if n.hi > v.lo {
			f(n)
		}
		n = n.right
	}
}

// less orders intervals by lo, then by hi, and those of the same octets by priority. Two
// priorities are the same once in 2^64.
func (n *interval) less(v *interval) bool {
	switch {
	case n.lo != v.lo:
		return n.lo < v.lo
	case n.hi != v.hi:
		return n.hi < v.hi
	}
	// Not by priority alone: intervals of the same octets, ordered as their priorities are, would
	// be a list. The lowest bits say nothing about the order of the numbers.
	return bits.Reverse64(n.priority) < bits.Reverse64(v.priority)
}

// splitBy divides the tree n into what is less than v and what is not.
func (n *interval) splitBy(v *interval) (before, after *interval) {
	if n == nil {
		return nil, nil
	}
	if n.less(v) {
		n.right, after = n.right.splitBy(v)
		n.measure()
		return n, after
	}
	before, n.left = n.left.splitBy(v)
	n.measure()
	return before, n
}

// join makes one tree of two, all of a being less than all of b.
func join(a, b *interval) *interval {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.priority > b.priority:
		a.right = join(a.right, b)
		a.measure()
		return a
	}
	b.left = join(a, b.left)
	b.measure()
	return b
}

// without is the tree n without v, which is in it.
func (n *interval) without(v *interval) *interval {
	switch {
	case n == nil:
		panic("engine: an interval of memory is not in its tree")
	case n == v:
		return join(n.left, n.right)
	case v.less(n):
		n.left = n.left.without(v)
	default:
		n.right = n.right.without(v)
	}
	n.measure()
	return n
}

func (n *interval) measure() {
	n.max = n.hi
	if n.left != nil {
		n.max = max(n.max, n.left.max)
	}
	if n.right != nil {
		n.max = max(n.max, n.right.max)
	}
}
