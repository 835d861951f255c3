package rdmap

import (
	"math/bits"
	"sync/atomic"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// ring is a queue of fixed depth for one producer and one consumer, which may be
// different goroutines: Push publishes an element to the consumer, Pop gives its place
// back to the producer. It allocates once, at the first Push, because most connections
// have Reads allowed and never use them.
type ring[T any] struct {
	slots []T // a power of two, so that the free-running indexes may wrap; the producer makes it
	depth uint32
	head  atomic.Uint32 // consumer's: index of the oldest element
	tail  atomic.Uint32 // producer's: index of the next free place
}

func (r *ring[T]) init(depth int) {
	r.depth = uint32(min(max(depth, 0), maxDepth))
}

// maxDepth bounds both read depths. RFC 6581 section 9.1 carries them in 14 bits
// and gives the largest value another meaning.
const maxDepth = 0x3ffe

// len loads head before tail, so that a third goroutine that only looks never
// sees the queue shorter than empty.
func (r *ring[T]) len() uint32 {
	h := r.head.Load()
	return min(r.tail.Load()-h, r.depth)
}

func (r *ring[T]) full() bool { return r.len() >= r.depth }

func (r *ring[T]) push(v T) bool {
	if r.full() {
		return false
	}
	if r.slots == nil {
		r.slots = make([]T, 1<<bits.Len32(r.depth-1))
	}
	t := r.tail.Load()
	r.slots[t&uint32(len(r.slots)-1)] = v
	r.tail.Store(t + 1)
	return true
}

func (r *ring[T]) front() *T {
	h := r.head.Load()
	if h == r.tail.Load() {
		return nil
	}
	return &r.slots[h&uint32(len(r.slots)-1)]
}

// at returns the element that was pushed as the i-th, counted from 0, or nil if it is
// not in the queue.
func (r *ring[T]) at(i uint32) *T {
	h := r.head.Load()
	if i-h >= r.tail.Load()-h {
		return nil
	}
	return &r.slots[i&uint32(len(r.slots)-1)]
}

func (r *ring[T]) pop() bool {
	h := r.head.Load()
	if h == r.tail.Load() {
		return false
	}
	var zero T
	r.slots[h&uint32(len(r.slots)-1)] = zero
	r.head.Store(h + 1)
	return true
}

// InboundRead is a peer's Read Request that has not been answered in full, or an
// atomic operation that was performed and whose response has not been sent.
type InboundRead struct {
	ReadRequest
	MSN  uint32 // of the Read Request, for a Terminate about it
	Done uint32 // octets of the response already handed to DDP; the responder's to change

	atomic bool // SinkSTag and SinkTO hold an AtomicResponse, so that a place takes no more room for it
}

// InboundAtomic returns the place of an atomic operation among the Reads that wait
// for their responses.
func InboundAtomic(msn uint32, r AtomicResponse) InboundRead {
	return InboundRead{ReadRequest: ReadRequest{SinkSTag: r.ID, SinkTO: r.Original}, MSN: msn, atomic: true}
}

// Atomic returns the response of an atomic operation, and false if r is a Read.
func (r *InboundRead) Atomic() (AtomicResponse, bool) {
	return AtomicResponse{ID: r.SinkSTag, Original: r.SinkTO}, r.atomic
}

// InboundReads is the untagged queue for Read and Atomic Requests: as many places as
// the IRD that this side granted. Requests are answered in the order they came (RFC
// 5040 section 5.2.1, RFC 7306 section 7).
//
// One goroutine pushes, the receive side, and one answers and pops, the transmit
// side; they need no lock between them.
//
// Pop a request before its response's last segment is handed to the LLP, not
// after: the peer's next Read Request may come as soon as that segment is out.
type InboundReads struct{ ring ring[InboundRead] }

// NewInboundReads returns a queue of ird places, which may be zero: then every
// Read Request is one too many. An ird beyond what RFC 6581 can negotiate is
// lowered to that. Toward siw grant powers of two, or give the queue the next
// one: siw rounds its outbound depth up.
//
//rfc:5040 RDMAP-5.2.2-02 Source keeps enough QN1 buffers for negotiated IRD
//rfc:5040 RDMAP-6.1-02 Inbound read limit (IRD) provided as negotiated
func NewInboundReads(ird int) *InboundReads {
	q := new(InboundReads)
	q.Init(ird)
	return q
}

// Init is NewInboundReads for a queue that is part of something else, before its
// first use.
func (q *InboundReads) Init(ird int) { q.ring.init(ird) }

// Depth returns how many requests fit.
func (q *InboundReads) Depth() int { return int(q.ring.depth) }

// Len returns how many requests wait.
func (q *InboundReads) Len() int { return int(q.ring.len()) }

// Full reports whether a further request would exceed the depth.
func (q *InboundReads) Full() bool { return q.ring.full() }

// Push appends a request, or returns false if the queue is full. Only the
// receive side calls it.
func (q *InboundReads) Push(r InboundRead) bool { return q.ring.push(r) }

// Front returns the oldest request, or nil. Only the transmit side calls it; the
// element is its own until Pop.
func (q *InboundReads) Front() *InboundRead { return q.ring.front() }

// Pop removes the oldest request, or returns false if there is none. Only the
// transmit side calls it.
func (q *InboundReads) Pop() bool { return q.ring.pop() }

// OutstandingRead is a Read Request or an Atomic Request of this side whose response
// is awaited.
type OutstandingRead struct {
	SinkSTag uint32
	ID       uint32 // Atomic: the request's identifier
	SinkTO   uint64
	Size     uint32 // octets
	Atomic   bool   // it is an atomic operation, which has no sink on the wire
	Cookie   uint64 // the engine's own, handed back in [Action.Read]
}

// OutstandingReads is this side's Read and Atomic Requests in the order they were
// sent, at most ORD of them.
//
// One goroutine pushes, the transmit side, and one matches responses and pops,
// the receive side ([Receiver] does both); they need no lock between them. Push a
// Read before its request is handed to the LLP.
//
//rfc:5040 RDMAP-6.1-03 Outbound read limit (ORD) provided as negotiated
//rfc:5040 RDMAP-6.1-04 Outstanding outbound reads never above ORD
type OutstandingReads struct{ ring ring[OutstandingRead] }

// NewOutstandingReads returns a queue of ord places, which may be zero: then
// this side may not read. An ord beyond what RFC 6581 can negotiate is lowered
// to that.
func NewOutstandingReads(ord int) *OutstandingReads {
	q := new(OutstandingReads)
	q.Init(ord)
	return q
}

// Init is NewOutstandingReads for a queue that is part of something else, before
// its first use.
func (q *OutstandingReads) Init(ord int) { q.ring.init(ord) }

// Depth returns how many Reads may be outstanding.
func (q *OutstandingReads) Depth() int { return int(q.ring.depth) }

// Len returns how many Reads are outstanding.
func (q *OutstandingReads) Len() int { return int(q.ring.len()) }

// Full reports whether a further Read must wait.
func (q *OutstandingReads) Full() bool { return q.ring.full() }

// Push appends a Read, or returns false if ORD Reads are outstanding. Only the
// transmit side calls it.
func (q *OutstandingReads) Push(r OutstandingRead) bool { return q.ring.push(r) }

// Front returns the Read that the next response must answer, or nil. Only the
// receive side calls it; do not change the element.
func (q *OutstandingReads) Front() *OutstandingRead { return q.ring.front() }

// WithMSN returns the Read whose request has this MSN, if the first had
// [ddp.FirstMSN] and it is outstanding, and otherwise nil. Only the receive side
// calls it; do not change the element.
func (q *OutstandingReads) WithMSN(msn uint32) *OutstandingRead { return q.ring.at(msn - ddp.FirstMSN) }

// Pop removes the oldest Read, or returns false if there is none. It is for
// flushing after the stream has ended; before that [Receiver.Commit] pops.
func (q *OutstandingReads) Pop() bool { return q.ring.pop() }
