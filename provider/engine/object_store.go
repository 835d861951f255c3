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
	began    time.Time // when all segments were added

	run, runULPDU int // the rest of the run of the receive context
}

// storedSegment is a segment of a store. past says that the receiver is past it already, so that
// other segments of the store can follow.
type storedSegment struct {
	a    rdmap.Action
	h    ddp.Header
	past bool
}

// storeObject starts a store with the payload of a segment that target has found to be at least
// partly for an object. It places the bytes for memory at once: nothing is flushed while the
// receive side has its lock, and after a flush the memory is the program's again. It reports
// whether there is an object to wait for.
func (rx *receiver) storeObject(a *rdmap.Action, h *ddp.Header, payload []byte) bool {
	c := rx.c
	pieces := memory.MoveMemory(c.pieces, payload, false)
	c.pieces = nil
	if len(pieces) == 0 {
		return false
	}
	c.releaseWrite()
	rx.store = &objectStore{pieces: pieces}
	rx.addStored(a, h, payload)
	rx.startStore()
	return true
}

// addStored adds a segment to the store. Nothing is delivered after a segment of a Write, or after
// any but the last segment of another message. The receiver then goes on to the next segment at
// once.
func (rx *receiver) addStored(a *rdmap.Action, h *ddp.Header, payload []byte) {
	st := rx.store
	past := !a.Last || a.Kind == rdmap.PlaceWrite
	st.segments = append(st.segments, storedSegment{*a, *h, past})
	if past {
		rx.recv.Commit(a)
	}
	for len(payload) > 0 {
		i, at := st.n/policy.Chunk, st.n%policy.Chunk
		if at == 0 {
			st.chunks[i] = rx.s.dev.chunks.Get()
		}
		n := copy(st.chunks[i][at:], payload)
		payload, st.n = payload[n:], st.n+n
	}
}

// gather adds to the store the segments that have come after its segment and go to the bytes that
// follow: more of the message, or of other Writes. Most of a store's cost is waiting for the
// object, so the object takes them together for little more than the first alone. All of them were
// in one receive context; policy.BatchOctets bounds them.
func (rx *receiver) gather() {
	if rx.s.params.MarkersRx { // in the context ULPDUs contain Markers
		return
	}
	c := rx.c
	for (c.run > 0 || rx.nextRun()) && rx.extendStore(c.b[rx.r+mpa.HeaderLen:][:c.runULPDU]) {
		c.run--
		rx.r += mpa.FPDULen(c.runULPDU)
	}
}

// nextRun verifies FPDUs in the context, without Markers, and makes those that follow each other
// with the same ULPDU length the run. It leaves a faulty FPDU to consumeFPDUs, which gets the same
// error again.
func (rx *receiver) nextRun() bool {
	c, buf := rx.c, rx.c.b[rx.r:rx.w]
	if c.run, c.runULPDU = rx.fpdu.Run(buf); c.run == 0 {
		span, need, err := rx.fpdu.Next(buf, nil)
		if err != nil || need > 0 {
			rx.need = uint32(need)
			return false
		}
		c.run, c.runULPDU = 1, len(span.ULPDU)
	}
	rx.received += uint32(c.run)
	return true
}

// extendStore adds a ULPDU to the store, if it continues the store. Otherwise it does nothing, and
// the ULPDU's faults are found when it is taken.
func (rx *receiver) extendStore(ulpdu []byte) bool {
	st := rx.store
	last := &st.segments[len(st.segments)-1]
	h, n, err := ddp.ParseHeader(ulpdu, len(ulpdu))
	if err != nil || !last.past || len(st.segments) == storeSegments {
		return false
	}
	payload := ulpdu[n:]
	a, err := rx.recv.Begin(&h, len(payload))
	if err != nil || a.Kind != last.a.Kind || a.Len == 0 || st.n+a.Len > policy.BatchOctets {
		return false
	}
	var found bool
	if a.Kind == rdmap.PlaceReadResponse {
		found = rx.readSink(&a)
	} else {
		found = rx.target(&a) == nil
	}
	continues := found && st.continues(rx.c.pieces, a.Len)
	rx.c.endUses()
	if !continues {
		return false
	}
	st.pieces[0].N += uint64(a.Len) // the piece is in use until all is stored
	rx.addStored(&a, &h, payload)
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

// startStore makes a goroutine store what has come for an object. If the goroutine that stored
// before is receiving (see storedTurn), it stores this, too. Otherwise the stream is still watched:
// startStore ends that, and starts a goroutine.
func (rx *receiver) startStore() {
	rx.gather()
	st := rx.store
	st.run, st.runULPDU, rx.c.run = rx.c.run, rx.c.runULPDU, 0 // the context may be given back
	st.began = time.Now()
	if rx.storer {
		return
	}
	if err := rx.s.unwatch(readStoring, true); err != nil { // it may be readable all the time
		rx.s.cannotWatch(err)
	}
	rx.s.dev.spawn(func() { rx.storeAll(st) })
}

// storeAll stores, and receives what comes after that, as long as it is for objects.
func (rx *receiver) storeAll(st *objectStore) {
	for st != nil {
		done, err := st.write()
		for _, b := range st.chunks {
			if b != nil {
				rx.s.dev.chunks.Put(b) // before ReleasePieces, after which Close of the device may begin
			}
		}
		memory.ReleasePieces(st.pieces)
		st = rx.storedTurn(st, done, err)
		rx.s.settle()
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
func (rx *receiver) storedTurn(st *objectStore, done int, err error) (next *objectStore) {
	rx.mu.Lock()
	defer rx.mu.Unlock()
	if rx.store != st {
		rx.s.orphanOver() // the stream has ended
		return nil
	}
	rx.s.closer.objectTook(st.began)
	rx.store, rx.storer = nil, true
	switch {
	case rx.s.over():
	case err != nil:
		rx.refuseStore(st.at(done), err)
	default:
		rx.stored(st)
	}
	rx.storer = false
	if rx.store == nil {
		rx.watchStored()
	}
	return rx.store
}

// stored delivers the stored segments, and receives more.
func (rx *receiver) stored(st *objectStore) {
	rx.ensureContext()
	for i := range st.segments {
		if g := &st.segments[i]; g.past {
			rx.countArrived(&g.a)
		} else {
			rx.deliver(&g.a, &g.h)
		}
	}
	rx.c.run, rx.c.runULPDU = st.run, st.runULPDU
	rx.parse()
	rx.receive()
}

// endObjects ends the waits for objects, whose calls may go on. rx.mu and tx.mu are held.
func (s *stream) endObjects() {
	s.rx.endStore()
	s.tx.endFetch()
}

// endStore ends the wait for an object, whose call may go on. rx.mu is held.
func (rx *receiver) endStore() {
	if rx.store != nil {
		rx.s.orphan()
		rx.s.closer.objectTook(rx.store.began)
		rx.store = nil
		rx.watchStored()
	}
}

// watchStored makes the poller watch the stream again after a store.
func (rx *receiver) watchStored() {
	if err := rx.s.unwatch(readStoring, false); err != nil {
		rx.s.cannotWatch(err)
	}
}

// refuseStore ends the stream because an object can't be written with the payload of a segment.
func (rx *receiver) refuseStore(g *storedSegment, err error) {
	fault := errObjectWrite
	switch g.a.Kind {
	case rdmap.PlaceSend:
		fault = errObjectRecv
	case rdmap.PlaceReadResponse:
		fault = errObjectSink
		rx.q.failSend(uint32(g.a.Read.Cookie), provider.WCLocProtErr)
	}
	e := endTerminate(fault, &g.h, g.h.Len()+g.a.Len, nil).because(err)
	e.event, e.raise = provider.EventQPFatal, true
	if fault == errObjectRecv {
		e.recvStatus = provider.WCLocProtErr
	}
	rx.recv.End()
	rx.s.fail(e)
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
