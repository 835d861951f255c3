package engine

import (
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// The transmit side of objects: the payload of a message is read in pieces of a chunk,
// several at a time, so that the object works while what it gave before is being sent,
// and one that takes long for an answer gives several in that time. What is read ahead
// is of the message being sent only: the next message may have to contain what is written
// in between.

// Faults of an object. They are ours and not the peer's: a local catastrophic error
// of the layer that places bytes, and where it is an RDMA Read that can't be
// answered, the remote operation error that RFC 5040 section 4.8 has for that.
var (
	errObjectWrite = &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPLocalCatastrophic,
		Reason: "the object of the region could not be written"}
	errObjectRecv = &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPLocalCatastrophic,
		Reason: "the object of a receive's region could not be written"}
	errObjectSink = &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPLocalCatastrophic,
		Reason: "the object of the sink of a Read could not be written"}
	errObjectRead = &iwarp.Error{Layer: iwarp.LayerRDMAP, EType: iwarp.RDMAPRemoteOperation,
		Code: iwarp.RDMAPCatastrophicStream, Reason: "the object of the region could not be read"}
)

// objectReads is how many pieces of a message are asked for, or there and not
// sent yet, at a time: as much as a batch.
const objectReads = policy.BatchOctets / policy.Chunk

// objectFetch is payload on its way from an object: n bytes.
type objectFetch struct {
	payload *chunk
	n       uint32
	sent    uint32 // bytes that are in FPDUs; txMu guards it
	ahead   bool   // it counts against policy.AheadMost
	err     error
	state   sched.Uint32 // a fetchState; from fetchDone on payload and err can be read
}

type fetchState = uint32

const (
	fetchWaiting   fetchState = iota
	fetchDone                 // the object has answered
	fetchForgotten            // before it had, the stream ended
)

// messageFetches are the pieces of the message being sent, in the order of their
// bytes; txMu guards them.
type messageFetches struct {
	pieces [objectReads]*objectFetch
	n      int
	next   uint32 // offset in the message after the last of them
}

// fetching reports whether the transmit side waits for an object. txMu is held.
func (t *txState) fetching() bool {
	return t.fetches != nil && t.fetches.n > 0 && t.fetches.pieces[0].state.Load() != fetchDone
}

// endFetch forgets what was fetched. What is still on its way is given back by the
// goroutine that reads it.
func (t *txState) endFetch(s *stream) {
	m := t.fetches
	if m == nil {
		return
	}
	for _, f := range m.pieces[:m.n] {
		if f.state.Load() == fetchDone {
			s.dev.giveFetch(f)
			continue
		}
		s.orphan() // first, as the call may be over at once
		if !f.state.CompareAndSwap(fetchWaiting, fetchForgotten) {
			s.orphanOver()
			s.dev.giveFetch(f)
		}
	}
	t.fetches = nil
}

// nextFetched returns the next segment of the message being sent and its payload, if
// that has come from the object; it may be read until dropFetched. An error is of the
// object. Without either the transmit side has to wait.
func (t *txState) nextFetched(tagged bool) (seg ddp.Segment, p []byte, ok bool, err error) {
	if t.fetching() {
		return ddp.Segment{}, nil, false, nil
	}
	f := t.fetches.pieces[0]
	if f.err != nil {
		return ddp.Segment{}, nil, false, f.err
	}
	// If the MULPDU has changed meanwhile, the last segment of a piece is shorter.
	mulpdu := t.format.MULPDU
	header := mulpdu - ddp.MaxPayload(mulpdu, tagged)
	seg, ok = t.seg.Next(min(mulpdu, header+int(f.n-f.sent)))
	if !ok {
		panic("engine: the MULPDU has no room for payload")
	}
	p = f.payload[f.sent:][:seg.Len]
	f.sent += uint32(seg.Len)
	return seg, p, true, nil
}

// dropFetched gives back the piece that nextFetched has come to the end of.
func (t *txState) dropFetched(d *device) {
	m := t.fetches
	if f := m.pieces[0]; f.sent == f.n {
		d.giveFetch(f)
		m.n--
		copy(m.pieces[:], m.pieces[1:])
		m.pieces[m.n] = nil
	}
}

// giveFetch gives back what f has.
func (d *device) giveFetch(f *objectFetch) {
	d.chunks.Put(f.payload)
	f.payload = nil
	if f.ahead {
		d.prog.ahead.Add(-1)
	}
}
