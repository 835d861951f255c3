package rdmap

import (
	"math/bits"
	"sync/atomic"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// ring is a queue of fixed depth for one producer and one consumer, which may be different
// goroutines. Push publishes an element to the consumer; Pop returns its place to the producer. The
// ring allocates at the first Push, because most connections permit Reads but never use them.
type ring[T any] struct {
	slots []T // the length is a power of two, so that the indexes may wrap; the producer allocates it
	depth uint32
	head  atomic.Uint32 // of the consumer: index of the oldest element
	tail  atomic.Uint32 // of the producer: index of the next free place
}

func (r *ring[T]) init(depth int) {
	r.depth = uint32(min(max(depth, 0), maxDepth))
}

// maxDepth limits both read depths, because RFC 6581 section 9.1 carries them in 14 bits and gives
// the largest value another meaning.
const maxDepth = 0x3ffe

// len loads head before tail, so that a third goroutine never reads a negative length.
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

// at returns the i-th element that was pushed, counted from 0, or nil if it is not in the queue.
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

// InboundRead is a peer's Read Request that has not been answered in full, or an atomic operation
// that was performed and whose response has not been sent.
type InboundRead struct {
	ReadRequest
	MSN  uint32 // of the Read Request, for a Terminate about it
	Done uint32 // octets of the response handed to DDP so far; only the responder changes it

	atomic bool // SinkSTag and SinkTO hold an AtomicResponse, which keeps the struct small
}

// InboundAtomic returns an element for an atomic operation, which waits among the Reads for its
// response.
func InboundAtomic(msn uint32, r AtomicResponse) InboundRead {
	return InboundRead{ReadRequest: ReadRequest{SinkSTag: r.ID, SinkTO: r.Original}, MSN: msn, atomic: true}
}

// Atomic returns the response of an atomic operation, and false if r is a Read.
func (r *InboundRead) Atomic() (AtomicResponse, bool) {
	return AtomicResponse{ID: r.SinkSTag, Original: r.SinkTO}, r.atomic
}

// InboundReads is the untagged queue for Read and Atomic Requests. It has as many places as the IRD
// that this side granted. Requests are answered in the order of arrival (RFC 5040 section 5.2.1,
// RFC 7306 section 7).
//
// One goroutine, the receive side, pushes, and one, the transmit side, answers and pops; they need
// no lock between them.
//
// Pop a request before its response's last segment is handed to the LLP, not after, because the
// peer's next Read Request may arrive as soon as that segment is sent.
type InboundReads struct{ ring ring[InboundRead] }

// NewInboundReads returns a queue of ird places, which may be zero: then every Read Request is
// refused. An ird beyond what RFC 6581 can negotiate is lowered to that. siw rounds its outbound
// depth up to a power of two, so grant siw powers of two, or give the queue the next one.
//
//rfc:5040 RDMAP-5.2.2-02 Source keeps enough QN1 buffers for negotiated IRD
//rfc:5040 RDMAP-6.1-02 Inbound read limit (IRD) provided as negotiated
func NewInboundReads(ird int) *InboundReads {
	q := new(InboundReads)
	q.Init(ird)
	return q
}

// Init initialises a queue that is part of another struct, before its first use.
func (q *InboundReads) Init(ird int) { q.ring.init(ird) }

// Depth returns the number of places.
func (q *InboundReads) Depth() int { return int(q.ring.depth) }

// Len returns the number of waiting requests.
func (q *InboundReads) Len() int { return int(q.ring.len()) }

// Full reports whether a further request would exceed the depth.
func (q *InboundReads) Full() bool { return q.ring.full() }

// Push appends a request, or returns false if the queue is full. Only the
// receive side calls it.
func (q *InboundReads) Push(r InboundRead) bool { return q.ring.push(r) }

// Front returns the oldest request, or nil. Only the transmit side calls it, and owns the element
// until Pop.
func (q *InboundReads) Front() *InboundRead { return q.ring.front() }

// Pop removes the oldest request, or returns false if there is none. Only the
// transmit side calls it.
func (q *InboundReads) Pop() bool { return q.ring.pop() }

// OutstandingRead is a Read Request or an Atomic Request of this side that is waiting for its
// response.
type OutstandingRead struct {
	SinkSTag uint32
	ID       uint32 // Atomic: the request's identifier
	SinkTO   uint64
	Size     uint32 // octets
	Atomic   bool   // an atomic operation, which has no sink on the wire
	Cookie   uint64 // the engine's own value, returned in [Action.Read]
}

// OutstandingReads is this side's Read and Atomic Requests in the order of sending, at most ORD of
// them.
//
// One goroutine, the transmit side, pushes, and one, the receive side, matches responses and pops
// ([Receiver] does both); they need no lock between them. Push a Read before its request is handed
// to the LLP.
//
//rfc:5040 RDMAP-6.1-03 Outbound read limit (ORD) provided as negotiated
//rfc:5040 RDMAP-6.1-04 Outstanding outbound reads never above ORD
type OutstandingReads struct{ ring ring[OutstandingRead] }

// NewOutstandingReads returns a queue of ord places, which may be zero: then this side may not
// read. An ord beyond what RFC 6581 can negotiate is lowered to that.
func NewOutstandingReads(ord int) *OutstandingReads {
	q := new(OutstandingReads)
	q.Init(ord)
	return q
}

// Init initialises a queue that is part of another struct, before its first use.
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

// WithMSN returns the outstanding Read whose request has this MSN, or nil; the first request must
// have had [ddp.FirstMSN]. Only the receive side calls it; do not change the element.
func (q *OutstandingReads) WithMSN(msn uint32) *OutstandingRead { return q.ring.at(msn - ddp.FirstMSN) }

// Pop removes the oldest Read, or returns false if there is none. Use it for flushing after the
// stream has ended; before that [Receiver.Commit] pops.
func (q *OutstandingReads) Pop() bool { return q.ring.pop() }
