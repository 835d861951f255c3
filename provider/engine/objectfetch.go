package engine

import (
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// The transmit side of objects reads the payload of a message in pieces of a chunk, several at a
// time. So the object works while its earlier pieces are being sent, and a slow object returns
// several pieces in the time of one answer. Only the message being sent is read ahead, because a
// later message may have to contain bytes that are written until then.

// Faults of an object. They are ours and not the peer's: a local catastrophic error of the layer
// that places bytes. For an RDMA Read that can't be answered, RFC 5040 section 4.8 has a remote
// operation error.
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

// objectReads is how many pieces of a message are requested, or present and unsent, at a time: as
// much as a batch.
const objectReads = policy.BatchOctets / policy.Chunk

// objectFetch is n bytes of payload on their way from an object.
type objectFetch struct {
	payload *chunk
	n       uint32
	sent    uint32 // bytes that are in FPDUs; guarded by txMu
	ahead   bool   // it counts against policy.AheadMost
	err     error
	state   sched.Uint32 // a fetchState; from fetchDone on, payload and err can be read
}

type fetchState = uint32

const (
	fetchWaiting   fetchState = iota
	fetchDone                 // the object has answered
	fetchForgotten            // the stream ended before the object answered
)

// messageFetches are the pieces of the message being sent, in order; txMu guards them.
type messageFetches struct {
	pieces [objectReads]*objectFetch
	n      int
	next   uint32 // offset in the message after the last piece
}

// fetching reports whether the transmit side waits for an object. txMu is held.
func (t *txState) fetching() bool {
	return t.fetches != nil && t.fetches.n > 0 && t.fetches.pieces[0].state.Load() != fetchDone
}

// endFetch drops what was fetched. The goroutine that still reads a piece gives it back.
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
		s.orphan() // first, because the call may return at once
		if !f.state.CompareAndSwap(fetchWaiting, fetchForgotten) {
			s.orphanOver()
			s.dev.giveFetch(f)
		}
	}
	t.fetches = nil
}

// nextFetched returns the next segment of the message being sent, and its payload if that has come
// from the object. The payload may be read until dropFetched. An error is the object's. If ok is
// false and err is nil, the transmit side must wait.
func (t *txState) nextFetched(tagged bool) (seg ddp.Segment, p []byte, ok bool, err error) {
	if t.fetching() {
		return ddp.Segment{}, nil, false, nil
	}
	f := t.fetches.pieces[0]
	if f.err != nil {
		return ddp.Segment{}, nil, false, f.err
	}
	// If the MULPDU has changed since then, the last segment of a piece is shorter.
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

// dropFetched gives back the piece whose end nextFetched has reached.
func (t *txState) dropFetched(d *device) {
	m := t.fetches
	if f := m.pieces[0]; f.sent == f.n {
		d.giveFetch(f)
		m.n--
		copy(m.pieces[:], m.pieces[1:])
		m.pieces[m.n] = nil
	}
}

// giveFetch gives back the chunk of f.
func (d *device) giveFetch(f *objectFetch) {
	d.chunks.Put(f.payload)
	f.payload = nil
	if f.ahead {
		d.prog.ahead.Add(-1)
	}
}
