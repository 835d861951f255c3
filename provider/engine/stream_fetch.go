package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// fetchAhead asks for the next pieces of a message of length bytes, as many as may be on their way.
// find returns the n bytes at offset off of the message, in use. fetchAhead reports false if find
// fails and there is no other piece to go on with.
func (s *stream) fetchAhead(length uint32, tagged bool,
	find func(off uint32, n uint64) ([]memory.Piece, bool)) bool {
	t := &s.tx
	if t.fetches == nil {
		t.fetches = new(messageFetches)
	}
	m := t.fetches
	for m.n < len(m.pieces) && m.next < length {
		ahead := m.n > 0
		if ahead && s.dev.prog.ahead.Add(1) > policy.AheadMost {
			s.dev.prog.ahead.Add(-1)
			return true
		}
		// As many segments as fit into a chunk, and no more than the message has left.
		segment := ddp.MaxPayload(t.format.MULPDU, tagged)
		n := min(uint64(policy.Chunk/segment*segment), uint64(length-m.next))
		pieces, ok := find(m.next, n)
		if !ok {
			// The call that needs the piece gets the error again, and reports it.
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

// startFetch reads the n bytes that pieces name, on a goroutine if an object has them.
func (s *stream) startFetch(pieces []memory.Piece, n uint32, ahead bool) *objectFetch {
	f := &objectFetch{payload: s.dev.chunks.Get(), n: n, ahead: ahead}
	if pieces = memory.MoveMemory(pieces, f.payload[:n], true); len(pieces) == 0 {
		f.state.Store(fetchDone)
		return f
	}
	s.dev.spawn(func() {
		f.err = memory.ReadPieces(pieces, f.payload[:n])
		memory.ReleasePieces(pieces)
		s.objectAnswered()
		if !f.state.CompareAndSwap(fetchWaiting, fetchDone) {
			s.dev.giveFetch(f)
			s.orphanOver()
			return
		}
		s.resumeTx()
	})
	return f
}

// fillObjectResponse adds the next segment of a Read Response whose source is an object. The
// transmit side does not wait for that object.
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
	t.b.Add(&h, p, 0, false)
	t.dropFetched(s.dev)
	if seg.Last {
		countOne(&s.q.counters().sent.ReadResponse, r.Size)
		s.inbound.Pop()
		t.task = taskNone
		t.endFetch(s)
		return
	}
	_ = s.fetchResponse() // an error shows when the present pieces are sent
}

// fetchResponse calls fetchAhead for the response under way. It returns ReadSource's error for the
// bytes that are needed next.
func (s *stream) fetchResponse() (err error) {
	r := &s.tx.resp
	ok := s.fetchAhead(r.Size, true, func(off uint32, n uint64) ([]memory.Piece, bool) {
		var m *memory.Region
		to := r.SourceTO + uint64(off)
		if m, _, err = s.q.peer.ReadSource(r.SourceSTag, to, uint32(n)); err != nil {
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
	h := w.head(s.tx.sendMSN).Header(seg.MO(), seg.Last)
	t.b.Add(&h, p, t.next, seg.Last && w.op != provider.WRRDMAWriteWithImm)
	t.dropFetched(s.dev)
	if seg.Last {
		s.endWork(w)
		t.endFetch(s)
		return true
	}
	s.fetchWork(w) // an error shows when the present pieces are sent
	return true
}

// fetchWork calls fetchAhead for WQE next, w.
func (s *stream) fetchWork(w *sendWQE) bool {
	return s.fetchAhead(w.length, w.isWrite(), func(off uint32, n uint64) ([]memory.Piece, bool) {
		return s.q.pd.Pieces(s.q.sq.sgeRoom(s.tx.next)[:w.nsge], 0, uint64(off), n)
	})
}
