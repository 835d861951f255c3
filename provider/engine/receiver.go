package engine

import (
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// receiver is the receive side of a stream.
type receiver struct {
	s *stream
	q *qp // the stream's

	mu sched.Mutex[locks.RX] // guards the fields after it

	recv rdmap.Receiver
	fpdu mpa.Receiver

	c    *rxContext // nil while nothing is in flight
	r, w int        // c.b[r:w] was read and is not consumed
	part *rxPart    // bytes that were moved out of a context

	store *objectStore // must be stored in an object before anything else is taken

	received  uint32           // FPDUs so far
	need      uint32           // length of c.b[r:w] at which there is more to do, 0 if not known
	costShift policy.CostShift // the last reads cost at most little more than 2^costShift times their bytes

	kept     bool // this stream counts against policy.ContextsKept
	storer   bool // the goroutine that has stored is receiving, and does the next store, too
	first    bool // no FPDU was received yet
	resumeTx bool // the transmit side has work
}

func (rx *receiver) init(s *stream) {
	p := &s.params
	rx.recv.Init(rdmap.ReceiverConfig{Inbound: &s.inbound, Outstanding: &s.outstanding,
		Extensions: s.dev.opts.Extensions, RDMAC: p.RDMAC})
	rx.fpdu = mpa.NewReceiver(p.MarkersRx, p.CRC)
	rx.first, rx.costShift = true, policy.CostShiftFirst
}

// midFPDU reports whether an FPDU has come in part, and the peer has to send the rest. It is false
// while an object stores, because bytes wait for the object then and not for the peer.
func (rx *receiver) midFPDU() bool { return (rx.w > rx.r || rx.part != nil) && !rx.storing() }

// stop gives back what the receive side holds.
func (rx *receiver) stop() {
	rx.dropPart()
	rx.r, rx.w = 0, 0
	if rx.c != nil {
		rx.c.endUses() // there are none unless a panic has ended a turn
	}
	rx.park()
}

// storing reports whether the receive side waits for an object.
func (rx *receiver) storing() bool { return rx.store != nil }

// inLong reports whether the receive side is inside an FPDU of which so much has come that reading
// the rest is better than keeping it as a part.
func (rx *receiver) inLong() bool { return rx.c != nil && rx.w-rx.r > partSmall }

// readLimit returns how many bytes the next read may take, when budget is left.
func (rx *receiver) readLimit(budget int) int {
	return rx.costShift.ReadLimit(max(int(rx.need)-(rx.w-rx.r), 0), budget)
}

// oneTurn receives, and releases rx.mu.
func (rx *receiver) oneTurn(budget int) (used int, more bool) {
	defer rx.mu.Unlock()
	return rx.receiveTurn(budget)
}

// poll receives what has arrived, unless another goroutine is receiving. Readiness is level
// triggered, so nothing is lost then.
func (rx *receiver) poll(budget int) (used int, more bool) {
	if !rx.mu.TryLock() {
		return 0, false
	}
	used, more = rx.oneTurn(budget)
	rx.s.settle()
	return used, more
}

// pollDirect receives what has arrived for a poll that reads the stream directly. It returns false
// if another goroutine is receiving.
func (rx *receiver) pollDirect(budget int) (used int, ok bool) {
	if !rx.mu.TryLock() {
		return 0, false
	}
	used, _ = rx.oneTurn(budget)
	rx.s.settle()
	return used, true
}

// toPart moves the unconsumed bytes of the context to a part.
func (rx *receiver) toPart() {
	rx.part = rx.s.dev.prog.parts.Get()
	rx.part.fill(rx.c.b[rx.r:rx.w], int(rx.need))
	rx.part.count(&rx.s.dev.prog.partOctets)
	rx.r, rx.w = 0, 0
}

// fromPart moves the bytes of the part back to the context.
func (rx *receiver) fromPart() {
	rx.r, rx.w = 0, copy(rx.c.b, rx.part.b)
	if rx.part.need > rx.w {
		rx.need = uint32(rx.part.need)
	}
	rx.dropPart()
}

// dropPart gives the part back.
func (rx *receiver) dropPart() {
	if rx.part != nil {
		rx.part.b = nil
		rx.part.count(&rx.s.dev.prog.partOctets)
		rx.s.dev.prog.parts.Put(rx.part)
		rx.part = nil
	}
}

// longPart returns how many bytes a long part of an FPDU has, 0 if there is none. rx.mu is held.
func (rx *receiver) longPart() int64 {
	if rx.part == nil {
		return 0
	}
	return rx.part.counted
}

// readPart reads once, into the part in which an FPDU has begun. Its results are those of readMore.
func (rx *receiver) readPart() (int, bool) {
	p := rx.part
	space := p.room()
	p.count(&rx.s.dev.prog.partOctets)
	p.iov[0] = space
	n, err := rx.s.conn.Readv(p.iov[:])
	p.iov[0] = nil
	if n == 0 {
		rx.readFailed(err)
		return 0, false
	}
	p.b = p.b[:len(p.b)+n]
	if len(p.b) == p.need {
		rx.ensureContext()
		rx.parse()
	}
	return n, n == len(space)
}

// unkeep takes the receive context from a stream that has kept it for too long. rx.mu is held.
func (rx *receiver) unkeep() {
	if !rx.kept || rx.c == nil {
		return
	}
	rx.toPart()
	rx.giveContext()
}
