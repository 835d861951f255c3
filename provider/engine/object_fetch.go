package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// The transmit side of objects: the payload of a message is read in pieces of a chunk,
// several at a time, so that the object works while what it gave before is being sent,
// and one that takes long for an answer gives several in that time. What is read ahead
// is of the message being sent only: the one behind it may have to see what comes in
// between.

const (
	// objectReads is how many pieces of a message are asked for, or there and not
	// sent yet, at a time: as much as a batch.
	objectReads = batchOctets / chunkOctets

	// objectAhead is how many pieces the streams of a device together may have beyond
	// the one that each of them needs next, so that peers which don't take what they
	// have asked for can't pin four chunks each.
	objectAhead = 256
)

// objectFetch is payload on its way from an object: n octets.
type objectFetch struct {
	payload *buf
	n       uint32
	sent    uint32 // octets that are in FPDUs; txMu guards it
	ahead   bool   // it counts against objectAhead
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
// octets; txMu guards them.
type messageFetches struct {
	pieces [objectReads]*objectFetch
	n      int
	next   uint32 // offset in the message behind the last of them
}

// fetching reports whether the transmit side waits for an object. txMu is held.
func (t *txState) fetching() bool {
	return t.fetches != nil && t.fetches.n > 0 && t.fetches.pieces[0].state.Load() != fetchDone
}

// fetchAhead asks for the next pieces of a message of length octets, as many as may be
// on their way. find returns what is at n octets of the message, in use. It reports
// false if that can't be had and there is no other piece to go on with.
func (s *stream) fetchAhead(length uint32, tagged bool, find func(off uint32, n uint64) ([]objectPiece, bool)) bool {
	t := &s.tx
	if t.fetches == nil {
		t.fetches = new(messageFetches)
	}
	m := t.fetches
	for m.n < len(m.pieces) && m.next < length {
		ahead := m.n > 0
		if ahead && s.dev.prog.ahead.Add(1) > objectAhead {
			s.dev.prog.ahead.Add(-1)
			return true
		}
		// As many segments as fit into a chunk, and no more than the message has left.
		segment := ddp.MaxPayload(t.mulpdu, tagged)
		n := min(uint64(chunkOctets/segment*segment), uint64(length-m.next))
		pieces, ok := find(m.next, n)
		if !ok {
			// Whoever needs it finds out again, and says so.
			if ahead {
				s.dev.prog.ahead.Add(-1)
			}
			return ahead
		}
		m.pieces[m.n] = s.startFetch(pieces, uint32(n), ahead)
		m.n++
		m.next += uint32(n)
	}
	return true
}

// startFetch has the n octets that pieces name read.
func (s *stream) startFetch(pieces []objectPiece, n uint32, ahead bool) *objectFetch {
	f := &objectFetch{payload: s.dev.chunks.get(), n: n, ahead: ahead}
	if pieces = moveMemory(pieces, f.payload.b[:n], true); len(pieces) == 0 {
		f.state.Store(fetchDone)
		return f
	}
	sched.Go(func() {
		f.err = readPieces(pieces, f.payload.b[:n])
		releasePieces(pieces)
		if !f.state.CompareAndSwap(fetchWaiting, fetchDone) {
			s.dev.giveFetch(f)
			s.orphanOver()
			return
		}
		s.kickTx()
	})
	return f
}

// giveFetch gives back what f has.
func (d *device) giveFetch(f *objectFetch) {
	d.chunks.put(f.payload)
	f.payload = nil
	if f.ahead {
		d.prog.ahead.Add(-1)
	}
}

// endFetch forgets what was fetched. What is still on its way is given back by whoever
// brings it.
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
	header := t.mulpdu - ddp.MaxPayload(t.mulpdu, tagged)
	seg, ok = t.seg.Next(min(t.mulpdu, header+int(f.n-f.sent)))
	if !ok {
		panic("engine: the MULPDU has no room for payload")
	}
	p = f.payload.b[f.sent:][:seg.Len]
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

// fillObjectResponse is fillResponse for a source that is an object, of which the next
// segment can be had.
func (s *stream) fillObjectResponse() {
	t := &s.tx
	r := &t.resp
	done := r.Size - t.seg.Remaining()
	if err := s.fetchResponse(); err != nil {
		s.failResponse(err, done)
		return
	}
	seg, p, ok, err := t.nextFetched(true)
	switch {
	case err != nil:
		s.failResponse(errObjectRead, done)
		t.fault.because(err)
		return
	case !ok:
		return
	}
	h := rdmap.ReadResponseHeader(r.SinkSTag, seg.TO(r.SinkTO), seg.Last)
	t.b.begin(&h, seg.Len, t)
	t.b.addCopy(p, t)
	t.b.end(t, 0, false)
	t.dropFetched(s.dev)
	if seg.Last {
		countOne(&s.q.counters().sent.ReadResponse, r.Size)
		s.inbound.Pop()
		t.msg = msgNone
		t.endFetch(s)
		return
	}
	_ = s.fetchResponse() // it tells the next time, if what is there ends before
}

// fetchResponse is fetchAhead for the response under way. The error is that of
// readSource for what is needed next.
func (s *stream) fetchResponse() (err error) {
	r := &s.tx.resp
	ok := s.fetchAhead(r.Size, true, func(off uint32, n uint64) ([]objectPiece, bool) {
		var m *mr
		to := r.SourceTO + uint64(off)
		if m, _, err = readSource(s.q, r.SourceSTag, to, uint32(n)); err != nil {
			return nil, false
		}
		return []objectPiece{{m: m, remote: true, off: to - m.base, n: n}}, true
	})
	if ok {
		return nil
	}
	return err
}

// fillObjectWork is fillWork for a Send or Write with a source that is an object. It
// reports false if there is none, or what is wrong has nothing to do with it.
func (s *stream) fillObjectWork(w *sendWQE) bool {
	t := &s.tx
	if !s.fetchWork(w) {
		return false
	}
	seg, p, ok, err := t.nextFetched(w.isWrite())
	switch {
	case err != nil:
		s.failWork()
		t.fault.because(err)
		return true
	case !ok:
		return true
	}
	h := s.workHeader(w, seg)
	t.b.begin(&h, seg.Len, t)
	t.b.addCopy(p, t)
	t.b.end(t, t.next, seg.Last && w.op != provider.WRRDMAWriteWithImm)
	t.dropFetched(s.dev)
	if seg.Last {
		s.endWork(w)
		t.endFetch(s)
		return true
	}
	s.fetchWork(w) // it tells the next time, if what is there ends before
	return true
}

// fetchWork is fetchAhead for WQE next, w.
func (s *stream) fetchWork(w *sendWQE) bool {
	return s.fetchAhead(w.length, w.isWrite(), func(off uint32, n uint64) ([]objectPiece, bool) {
		return objectPieces(s.q.pd, s.q.sq.sgeRoom(s.tx.next)[:w.nsge], 0, uint64(off), n)
	})
}

// addCopy adds payload that is somebody else's as soon as it has returned.
func (b *txBatch) addCopy(p []byte, t *txState) {
	switch {
	case len(p) <= copyOctets:
		b.copyIn(p, t)
	case t.crc && !t.markers:
		b.snapshot(p, t)
	default:
		room := b.chunkRoom(len(p))
		copy(room, p)
		b.refer(room, t)
	}
}
