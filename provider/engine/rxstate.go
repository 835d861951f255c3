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
	r, w int        // c.b[r:w] was read and is not consumed
	part *rxPart    // bytes that were moved out of a context

	store *objectStore // must be stored in an object before anything else is taken

	taken uint32       // FPDUs so far
	need  uint32       // length of c.b[r:w] at which there is more to do, 0 if not known
	dense policy.Dense // the last reads cost at most little more than 2^dense times their bytes

	kept     bool // this stream counts against policy.ContextsKept
	storer   bool // the goroutine that has stored is receiving, and does the next store, too
	first    bool // no FPDU was received yet
	resumeTx bool // the transmit side has work
}

func (r *rxState) init(s *stream) {
	p := &s.params
	r.recv.Init(rdmap.ReceiverConfig{Inbound: &s.inbound, Outstanding: &s.outstanding,
		Extensions: s.dev.opts.Extensions, RDMAC: p.RDMAC})
	r.fpdu = mpa.NewReceiver(p.MarkersRx, p.CRC)
	r.first, r.dense = true, policy.DenseFirst
}

// midFPDU reports whether an FPDU has come in part, and the peer has to send the rest. It is false
// while an object stores, because bytes wait for the object then and not for the peer.
func (r *rxState) midFPDU() bool { return (r.w > r.r || r.part != nil) && !r.storing() }

// stop gives back what the receive side holds.
func (r *rxState) stop(s *stream) {
	s.endStore()
	s.dropPart()
	r.r, r.w = 0, 0
	if r.c != nil {
		r.c.endUses() // there are none unless a panic has ended a turn
	}
	s.rxPark()
}

// storing reports whether the receive side waits for an object.
func (r *rxState) storing() bool { return r.store != nil }

// inLong reports whether the receive side is inside an FPDU of which so much has come that reading
// the rest is better than keeping it as a part.
func (r *rxState) inLong() bool { return r.c != nil && r.w-r.r > partSmall }

// readLimit returns how many bytes the next read may take, when turn is left.
func (r *rxState) readLimit(turn int) int {
	return r.dense.ReadLimit(max(int(r.need)-(r.w-r.r), 0), turn)
}
