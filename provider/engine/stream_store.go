package engine

import (
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// objectStore is a segment whose payload is on its way to an object. The receive
// side goes on when it has arrived there.
type objectStore struct {
	pieces  []objectPiece
	payload *buf
	n       int
	a       rdmap.Action
	h       ddp.Header
	began   time.Time

	// What of a run of FPDUs is still to be taken (see takeRun).
	run, runULPDU int
}

// storeObject places the payload of a segment that target has found to be for an object,
// at least in part. What is for memory is placed at once, because nothing is flushed while
// the receive side has its lock, and after a flush the memory is the program's again. It
// reports whether there is an object to wait for.
func (s *stream) storeObject(a *rdmap.Action, h *ddp.Header, payload []byte) bool {
	c := s.rx.c
	pieces := moveMemory(c.pieces, payload, false)
	c.pieces = nil
	if len(pieces) == 0 {
		return false
	}
	st := &objectStore{pieces: pieces, payload: s.dev.chunks.get(), n: len(payload), a: *a, h: *h,
		began: time.Now()}
	copy(st.payload.b, payload) // the longest segment fits
	s.rx.store = st
	if err := s.unwatch(readStoring, true); err != nil { // it may be readable all the time
		s.cannotWatch(err)
	}
	s.dev.spawn(func() {
		err := writePieces(st.pieces, st.payload.b[:st.n])
		s.dev.chunks.put(st.payload) // before releasePieces: after that Close of the device may have begun
		releasePieces(st.pieces)
		s.storedTurn(st, err)
		s.settle()
	})
	return true
}

// storedTurn is rxTurn after a store.
func (s *stream) storedTurn(st *objectStore, err error) {
	s.rxMu.Lock()
	defer s.rxMu.Unlock()
	r := &s.rx
	if r.store != st {
		s.orphanOver() // the stream has ended
		return
	}
	s.endStore()
	switch {
	case s.over():
		return
	case err != nil:
		s.refuseStore(st, err)
		return
	}
	s.rxEnsure()
	s.deliver(&st.a, &st.h)
	s.parseRun(st.run, st.runULPDU)
	s.receive()
}

// endStore lets the receive side go on. rxMu is held.
func (s *stream) endStore() {
	if s.rx.store != nil {
		s.objectTook(s.rx.store.began)
		s.rx.store = nil
		if err := s.unwatch(readStoring, false); err != nil {
			s.cannotWatch(err)
		}
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

// refuseStore ends the stream because an object can't be written.
func (s *stream) refuseStore(st *objectStore, err error) {
	fault := errObjectWrite
	switch st.a.Kind {
	case rdmap.PlaceSend:
		fault = errObjectRecv
	case rdmap.PlaceReadResponse:
		fault = errObjectSink
		s.q.failSend(uint32(st.a.Read.Cookie), provider.WCLocProtErr)
	}
	e := s.endTerminate(fault, &st.h, st.h.Len()+st.a.Len, nil).because(err)
	e.event, e.raise = provider.EventQPFatal, true
	if fault == errObjectRecv {
		e.recvStatus = provider.WCLocProtErr
	}
	s.rx.recv.End()
	s.fail(e)
}

// objectSink reports whether the sink of a Read is an object, at least in part, and
// can be used.
func (s *stream) objectSink(sges []provider.SGE, length uint32) bool {
	pieces, ok := objectPieces(s.q.pd, sges, provider.AccessLocalWrite, 0, uint64(length))
	releasePieces(pieces)
	return ok
}

// orphan counts a call of an object whose stream, which admission counts, is about to end.
// It may be one too many, as it is there already.
func (s *stream) orphan() {
	if !s.admitted {
		return
	}
	a := &s.dev.accepted
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all++
	a.peers[s.peer()]++ // its connection is in the map
}

// orphanOver takes back what orphan counted.
func (s *stream) orphanOver() {
	if s.admitted {
		s.dev.discharge(s.peer())
	}
}
