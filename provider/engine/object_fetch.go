package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
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
	sent    uint32 // bytes that are in FPDUs; guarded by tx.mu
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

// messageFetches are the pieces of the message being sent, in order; tx.mu guards them.
type messageFetches struct {
	pieces [objectReads]*objectFetch
	n      int
	next   uint32 // offset in the message after the last piece
}

// waiting reports whether the object has not yet answered for the first piece. tx.mu is held.
func (m *messageFetches) waiting() bool {
	return m.n > 0 && m.pieces[0].state.Load() != fetchDone
}

// endFetch drops what was fetched. The goroutine that still reads a piece gives it back.
func (tx *sender) endFetch() {
	m := tx.fetches
	if m == nil {
		return
	}
	for _, f := range m.pieces[:m.n] {
		if f.state.Load() == fetchDone {
			tx.s.dev.giveFetch(f)
			continue
		}
		tx.s.orphan() // first, because the call may return at once
		if !f.state.CompareAndSwap(fetchWaiting, fetchForgotten) {
			tx.s.orphanOver()
			tx.s.dev.giveFetch(f)
		}
	}
	tx.fetches = nil
}

// nextFetched returns the next segment of the message being sent, and its payload if that has come
// from the object. The payload may be read until dropFetched. An error is the object's. If ok is
// false and err is nil, the transmit side must wait.
func (tx *sender) nextFetched(tagged bool) (seg ddp.Segment, p []byte, ok bool, err error) {
	if tx.fetching() {
		return ddp.Segment{}, nil, false, nil
	}
	f := tx.fetches.pieces[0]
	if f.err != nil {
		return ddp.Segment{}, nil, false, f.err
	}
	// If the MULPDU has changed since then, the last segment of a piece is shorter.
	mulpdu := tx.format.MULPDU
	header := mulpdu - ddp.MaxPayload(mulpdu, tagged)
	seg, ok = tx.seg.Next(min(mulpdu, header+int(f.n-f.sent)))
	if !ok {
		panic("engine: the MULPDU has no room for payload")
	}
	p = f.payload[f.sent:][:seg.Len]
	f.sent += uint32(seg.Len)
	return seg, p, true, nil
}

// dropFetched gives back the piece whose end nextFetched has reached. What is in the batch stays
// there, even if the socket is full, because the object is not read twice.
func (tx *sender) dropFetched() {
	tx.b.BeginMessage(tx.seg)
	m := tx.fetches
	if f := m.pieces[0]; f.sent == f.n {
		tx.s.dev.giveFetch(f)
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

// fetchAhead asks for the next pieces of a message of length bytes, as many as may be on their way.
// find returns the n bytes at offset off of the message, in use. fetchAhead reports false if find
// fails and there is no other piece to go on with.
func (tx *sender) fetchAhead(length uint32, tagged bool,
	find func(off uint32, n uint64) ([]memory.Piece, bool)) bool {
	if tx.fetches == nil {
		tx.fetches = new(messageFetches)
	}
	m := tx.fetches
	for m.n < len(m.pieces) && m.next < length {
		ahead := m.n > 0
		if ahead && tx.s.dev.prog.ahead.Add(1) > policy.AheadMost {
			tx.s.dev.prog.ahead.Add(-1)
			return true
		}
		// As many segments as fit into a chunk, and no more than the message has left.
		segment := ddp.MaxPayload(tx.format.MULPDU, tagged)
		n := min(uint64(policy.Chunk/segment*segment), uint64(length-m.next))
		pieces, ok := find(m.next, n)
		if !ok {
			// The call that needs the piece gets the error again, and reports it.
			if ahead {
				tx.s.dev.prog.ahead.Add(-1)
			}
			return ahead
		}
		m.pieces[m.n] = tx.startFetch(pieces, uint32(n), ahead)
		m.n++
		m.next += uint32(n)
	}
	return true
}

// startFetch reads the n bytes that pieces name, on a goroutine if an object has them.
func (tx *sender) startFetch(pieces []memory.Piece, n uint32, ahead bool) *objectFetch {
	f := &objectFetch{payload: tx.s.dev.chunks.Get(), n: n, ahead: ahead}
	if pieces = memory.MoveMemory(pieces, f.payload[:n], true); len(pieces) == 0 {
		f.state.Store(fetchDone)
		return f
	}
	tx.s.dev.spawn(func() {
		f.err = memory.ReadPieces(pieces, f.payload[:n])
		memory.ReleasePieces(pieces)
		tx.s.closer.objectAnswered()
		if !f.state.CompareAndSwap(fetchWaiting, fetchDone) {
			tx.s.dev.giveFetch(f)
			tx.s.orphanOver()
			return
		}
		tx.s.resume()
	})
	return f
}

// fillObjectResponse adds the next segment of a Read Response whose source is an object. The
// transmit side does not wait for that object.
func (tx *sender) fillObjectResponse() {
	r := &tx.resp
	done := r.Size - tx.seg.Remaining()
	if err := tx.fetchResponse(); err != nil {
		tx.failResponse(err, done)
		return
	}
	seg, p, ok, err := tx.nextFetched(true)
	switch {
	case err != nil:
		tx.failResponse(errObjectRead, done)
		tx.fault.because(err)
		return
	case !ok:
		return
	}
	h := rdmap.ReadResponseHeader(r.SinkSTag, seg.TO(r.SinkTO), seg.Last)
	tx.b.Add(&h, p, 0, false)
	tx.dropFetched()
	if seg.Last {
		countOne(&tx.q.counters().sent.ReadResponse, r.Size)
		tx.s.inbound.Pop()
		tx.task = taskNone
		tx.endFetch()
		return
	}
	_ = tx.fetchResponse() // an error shows when the present pieces are sent
}

// fetchResponse calls fetchAhead for the response under way. It returns ReadSource's error for the
// bytes that are needed next.
func (tx *sender) fetchResponse() (err error) {
	r := &tx.resp
	ok := tx.fetchAhead(r.Size, true, func(off uint32, n uint64) ([]memory.Piece, bool) {
		var m *memory.Region
		to := r.SourceTO + uint64(off)
		if m, _, err = tx.q.peer.ReadSource(r.SourceSTag, to, uint32(n)); err != nil {
			return nil, false
		}
		return []memory.Piece{m.Piece(to, n)}, true
	})
	if ok {
		return nil
	}
	return err
}

// fillObjectWork adds the next segment of a Send or Write whose source is an object. It reports
// false if the source is no object, or the fault has another cause.
func (tx *sender) fillObjectWork(w *sendWQE) bool {
	if !tx.fetchWork(w) {
		return false
	}
	seg, p, ok, err := tx.nextFetched(w.isWrite())
	switch {
	case err != nil:
		tx.failWork()
		tx.fault.because(err)
		return true
	case !ok:
		return true
	}
	h := w.head(tx.sendMSN).Header(seg.MO(), seg.Last)
	tx.b.Add(&h, p, tx.next, seg.Last && w.op != provider.WRRDMAWriteWithImm)
	tx.dropFetched()
	if seg.Last {
		tx.endWork(w)
		tx.endFetch()
		return true
	}
	tx.fetchWork(w) // an error shows when the present pieces are sent
	return true
}

// fetchWork calls fetchAhead for WQE next, w.
func (tx *sender) fetchWork(w *sendWQE) bool {
	return tx.fetchAhead(w.length, w.isWrite(), func(off uint32, n uint64) ([]memory.Piece, bool) {
		return tx.q.pd.Pieces(tx.q.sq.sgeRoom(tx.next)[:w.nsge], 0, uint64(off), n)
	})
}
