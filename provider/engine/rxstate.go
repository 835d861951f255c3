package engine

import (
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// rxState is the receive side of a stream; rxMu guards it.
type rxState struct {
	recv rdmap.Receiver
	fpdu mpa.Receiver

	c    *rxContext // nil while nothing is in flight
	r, w int        // c.b[r:w] was read and not consumed
	part *rxPart    // what was moved out of a context

	store *objectStore // what has to arrive at an object before anything else is taken

	taken uint32       // FPDUs so far
	need  uint32       // what r to w has to reach until there is more to be done, 0 if that is not known
	dense policy.Dense // the last reads have cost little more than 2^dense times their bytes at most

	kept     bool // this stream counts against policy.ContextsKept
	storer   bool // the goroutine that has stored is receiving, and goes on with the next store
	first    bool // no FPDU was received yet
	resumeTx bool // the transmit side has something to look at
}

func (r *rxState) init(s *stream) {
	p := &s.params
	r.recv.Init(rdmap.ReceiverConfig{Inbound: &s.inbound, Outstanding: &s.outstanding,
		Extensions: s.dev.opts.Extensions, RDMAC: p.RDMAC})
	r.fpdu = mpa.NewReceiver(p.MarkersRx, p.CRC)
	r.first, r.dense = true, policy.DenseFirst
}

// midFPDU reports whether an FPDU has come in part.
func (r *rxState) midFPDU() bool { return r.w > r.r || r.part != nil }

// stop gives back what the receive side has.
func (r *rxState) stop(s *stream) {
	if r.storing() {
		s.orphan()
	}
	s.endStore()
	s.dropPart()
	r.r, r.w = 0, 0
	if r.c != nil {
		r.c.endUses()
	}
	s.rxPark()
}

// storing reports whether the receive side waits for an object.
func (r *rxState) storing() bool { return r.store != nil }

// inLong reports whether the receive side is inside an FPDU of which so much has come that
// reading the rest is better than keeping the part.
func (r *rxState) inLong() bool { return r.c != nil && r.w-r.r > partSmall && !r.storing() }

// readLimit is how many bytes the next read takes, when turn is left.
func (r *rxState) readLimit(turn int) int {
	return r.dense.ReadLimit(max(int(r.need)-(r.w-r.r), 0), turn)
}
