package engine

import (
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

const (
	// storeChunks is how many buffers a store has, for as much payload as it may hold.
	storeChunks = policy.BatchOctets / policy.Chunk

	storeSegments = 64 // of a store, at most
)

// objectStore is payload on its way to an object: the payload of one segment, and of segments that
// came with it and go to the bytes after it (see gather). The receive side goes on when the object
// has all of it.
type objectStore struct {
	pieces   []memory.Piece      // one, if there are several segments
	chunks   [storeChunks]*chunk // n bytes of payload, the first of them full
	n        int
	vector   [storeChunks][]byte // the bytes of chunks, while one call writes them
	segments []storedSegment
	began    time.Time // zero while segments are added

	// The part of a run of FPDUs that is still to be taken (see takeRun).
	run, runULPDU int
}

// storedSegment is a segment of a store. past says that the receiver is past it already, so that
// other segments of the store can follow.
type storedSegment struct {
	a    rdmap.Action
	h    ddp.Header
	past bool
}

// useObject makes n bytes of a region that is an object, and in use for the peer, the destination
// of the payload.
func (c *rxContext) useObject(m *memory.Region, to uint64, n int) {
	c.pieces = append(c.pieces[:0], m.Piece(to, uint64(n)))
}

// resolveObjects does what resolve does if one of the regions is an object.
func (c *rxContext) resolveObjects(pd *pd, sges []provider.SGE, off, n uint64) bool {
	var ok bool
	c.pieces, ok = pd.Pieces(sges, provider.AccessLocalWrite, off, n)
	return ok
}

// dropObjects undoes useObject and resolveObjects.
func (c *rxContext) dropObjects() {
	memory.ReleasePieces(c.pieces)
	c.pieces = nil
}

// storeObject begins a store with the payload of a segment that target has found to be at least
// partly for an object. It places the bytes for memory at once: nothing is flushed while the
// receive side has its lock, and after a flush the memory is the program's again. It reports
// whether there is an object to wait for.
func (s *stream) storeObject(a *rdmap.Action, h *ddp.Header, payload []byte) bool {
	c := s.rx.c
	pieces := memory.MoveMemory(c.pieces, payload, false)
	c.pieces = nil
	if len(pieces) == 0 {
		return false
	}
	s.rx.store = &objectStore{pieces: pieces}
	s.addStored(a, h, payload)
	return true
}

// addStored adds a segment to the store. Nothing is delivered after a segment of a Write, or after
// any but the last segment of another message. The receiver then goes on to the next segment at
// once.
func (s *stream) addStored(a *rdmap.Action, h *ddp.Header, payload []byte) {
	st := s.rx.store
	past := !a.Last || a.Kind == rdmap.PlaceWrite
	st.segments = append(st.segments, storedSegment{*a, *h, past})
	if past {
		s.rx.recv.Commit(a)
	}
	for len(payload) > 0 {
		i, at := st.n/policy.Chunk, st.n%policy.Chunk
		if at == 0 {
			st.chunks[i] = s.dev.chunks.Get()
		}
		n := copy(st.chunks[i][at:], payload)
		payload, st.n = payload[n:], st.n+n
	}
}

// gather adds to the store the segments that have come after its segment and go to the bytes that
// follow: more of the message, or of other Writes. Most of a store's cost is waiting for the
// object, so the object takes them together for little more than the first alone. All of them were
// in one receive context; policy.BatchOctets bounds them.
func (s *stream) gather() {
	r := &s.rx
	st := r.store
	if s.params.MarkersRx { // in the context ULPDUs contain Markers
		return
	}
	for {
		if st.run == 0 {
			if st.run, st.runULPDU = s.nextRun(); st.run == 0 {
				return
			}
		}
		if !s.extendStore(r.c.b[r.r+mpa.HeaderLen:][:st.runULPDU]) {
			return
		}
		st.run--
		r.r += mpa.FPDULen(st.runULPDU)
	}
}

// nextRun verifies FPDUs in the context, without Markers, and returns how many follow each other
// with the same ULPDU length. They stay in the context. It leaves a faulty FPDU to takeFPDUs, which
// gets the same error again.
func (s *stream) nextRun() (n, ulpduLen int) {
	r := &s.rx
	buf := r.c.b[r.r:r.w]
	if n, ulpduLen = r.fpdu.Run(buf); n == 0 {
		span, need, err := r.fpdu.Next(buf, nil)
		if err != nil || need > 0 {
			r.need = uint32(need)
			return 0, 0
		}
		n, ulpduLen = 1, len(span.ULPDU)
	}
	r.taken += uint32(n)
	return n, ulpduLen
}

// extendStore adds a ULPDU to the store, if it continues the store. Otherwise it does nothing, and
// the ULPDU's faults are found when it is taken.
func (s *stream) extendStore(ulpdu []byte) bool {
	r := &s.rx
	st := r.store
	last := &st.segments[len(st.segments)-1]
	h, n, err := ddp.ParseHeader(ulpdu, len(ulpdu))
	if err != nil || !last.past || len(st.segments) == storeSegments {
		return false
	}
	payload := ulpdu[n:]
	a, err := r.recv.Begin(&h, len(payload))
	if err != nil || a.Kind != last.a.Kind || a.Len == 0 || st.n+a.Len > policy.BatchOctets {
		return false
	}
	var found bool
	if a.Kind == rdmap.PlaceReadResponse {
		found = s.readSink(&a)
	} else {
		found = s.target(&a) == nil
	}
	continues := found && st.continues(r.c.pieces, a.Len)
	r.c.endUses()
	if !continues {
		return false
	}
	st.pieces[0].N += uint64(a.Len) // the piece is in use until all is stored
	s.addStored(&a, &h, payload)
	return true
}

// continues reports whether the next n bytes of payload go where the store ends.
func (st *objectStore) continues(next []memory.Piece, n int) bool {
	if len(st.pieces) != 1 || len(next) != 1 {
		return false
	}
	p, q := &st.pieces[0], &next[0]
	return p.N == uint64(st.n) && q.N == uint64(n) && q.Region == p.Region && q.Remote == p.Remote &&
		q.Off == p.Off+p.N
}

// startStore makes a goroutine store what has come for an object, if the receive side has begun a
// store. If the goroutine that stored before is receiving (see storedTurn), it stores this, too.
// Otherwise the stream is still watched: startStore ends that, and starts a goroutine.
func (s *stream) startStore() {
	st := s.rx.store
	if st == nil || !st.began.IsZero() {
		return
	}
	s.gather()
	st.began = time.Now()
	if s.rx.storer {
		return
	}
	if err := s.unwatch(readStoring, true); err != nil { // it may be readable all the time
		s.cannotWatch(err)
	}
	s.dev.spawn(func() { s.storeAll(st) })
}

// storeAll stores, and receives what comes after that, as long as it is for objects.
func (s *stream) storeAll(st *objectStore) {
	for st != nil {
		done, err := st.write()
		for _, b := range st.chunks {
			if b != nil {
				s.dev.chunks.Put(b) // before ReleasePieces, after which Close of the device may begin
			}
		}
		memory.ReleasePieces(st.pieces)
		st = s.storedTurn(st, done, err)
		s.settle()
	}
}

// write makes the object take the payload: in one call, if the object can do that, otherwise one
// chunk at a time. After an error, done is how many bytes the object has certainly taken, less than
// n.
func (st *objectStore) write() (done int, err error) {
	if st.n > policy.Chunk {
		if w, ok := st.pieces[0].VectorWriter(); ok {
			return st.writeVector(w)
		}
	}
	for _, chunk := range st.chunks[:(st.n+policy.Chunk-1)/policy.Chunk] {
		b := chunk[:min(policy.Chunk, st.n-done)]
		pieces := st.pieces
		if len(b) < st.n { // then there is one piece
			part := st.pieces[0]
			part.Off, part.N = part.Off+uint64(done), uint64(len(b))
			pieces = []memory.Piece{part}
		}
		if err := memory.WritePieces(pieces, b); err != nil {
			return done, err
		}
		done += len(b)
	}
	return done, nil
}

// writeVector writes more than a chunk in one call, for a store of one piece.
func (st *objectStore) writeVector(w provider.VectorWriterAt) (done int, err error) {
	v := st.vector[:0]
	for left := st.n; left > 0; left -= policy.Chunk {
		v = append(v, st.chunks[len(v)][:min(policy.Chunk, left)])
	}
	p := &st.pieces[0]
	if done, err = w.WriteVectorAt(v, int64(p.Off)); err == nil && done >= st.n {
		return st.n, nil
	}
	return min(max(done, 0), st.n-1), p.WriteError(err)
}

// at returns the segment with the byte after the first n.
func (st *objectStore) at(n int) *storedSegment {
	for i := range st.segments {
		if n -= st.segments[i].a.Len; n < 0 {
			return &st.segments[i]
		}
	}
	panic("engine: a store is shorter than its segments")
}

// storedTurn receives after a store, of which the object has taken done bytes. It returns the next
// store, if the received bytes begin one.
func (s *stream) storedTurn(st *objectStore, done int, err error) (next *objectStore) {
	s.rxMu.Lock()
	defer s.rxMu.Unlock()
	r := &s.rx
	if r.store != st {
		s.orphanOver() // the stream has ended
		return nil
	}
	s.objectTook(st.began)
	r.store, r.storer = nil, true
	switch {
	case s.over():
	case err != nil:
		s.refuseStore(st.at(done), err)
	default:
		s.stored(st)
	}
	r.storer = false
	if r.store == nil {
		s.watchStored()
	}
	return r.store
}

// stored delivers the stored segments, and receives more.
func (s *stream) stored(st *objectStore) {
	s.rxEnsure()
	for i := range st.segments {
		if g := &st.segments[i]; g.past {
			s.countArrived(&g.a)
		} else {
			s.deliver(&g.a, &g.h)
		}
	}
	s.parseRun(st.run, st.runULPDU)
	s.receive()
}

// endStore ends the wait for an object, whose call may go on. rxMu is held.
func (s *stream) endStore() {
	if s.rx.store != nil {
		s.orphan()
		s.objectTook(s.rx.store.began)
		s.rx.store = nil
		s.watchStored()
	}
}

// watchStored makes the poller watch the stream again after a store.
func (s *stream) watchStored() {
	if err := s.unwatch(readStoring, false); err != nil {
		s.cannotWatch(err)
	}
}

// waitsForObject reports on which sides the stream waits for an object.
func (s *stream) waitsForObject() (storing, fetching bool) {
	s.rxMu.Lock()
	storing = s.rx.storing()
	s.rxMu.Unlock()
	s.txMu.Lock()
	fetching = s.tx.fetching()
	s.unlockTx()
	s.settle()
	return storing, fetching
}

// refuseStore ends the stream because an object can't be written with the payload of a segment.
func (s *stream) refuseStore(g *storedSegment, err error) {
	fault := errObjectWrite
	switch g.a.Kind {
	case rdmap.PlaceSend:
		fault = errObjectRecv
	case rdmap.PlaceReadResponse:
		fault = errObjectSink
		s.q.failSend(uint32(g.a.Read.Cookie), provider.WCLocProtErr)
	}
	e := endTerminate(fault, &g.h, g.h.Len()+g.a.Len, nil).because(err)
	e.event, e.raise = provider.EventQPFatal, true
	if fault == errObjectRecv {
		e.recvStatus = provider.WCLocProtErr
	}
	s.rx.recv.End()
	s.fail(e)
}

// objectSink reports whether the sink of a Read is at least partly an object, and can be used.
func (s *stream) objectSink(sges []provider.SGE, length uint32) bool {
	pieces, ok := s.q.pd.Pieces(sges, provider.AccessLocalWrite, 0, uint64(length))
	memory.ReleasePieces(pieces)
	return ok
}

// orphan counts a call of an object whose stream is about to end, if package cm counts that stream.
func (s *stream) orphan() {
	if s.admitted {
		s.dev.cm.CountOrphan(s.peer())
	}
}

// orphanOver undoes orphan.
func (s *stream) orphanOver() {
	if s.admitted {
		s.dev.cm.Discharge(s.peer())
	}
}
