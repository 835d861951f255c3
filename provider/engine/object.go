package engine

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// A region need not be memory: it may be anything whose octets can be read and
// written by their offset, say a file (provider.PD.RegObject). What the object does
// may take long, so that nobody who holds a lock of a stream, or serves others, waits
// for it: a goroutine of its own does, and meanwhile that side of that stream stands
// still. The receive side reads no further, so that TCP holds the peer back; the
// transmit side sends no further. Everything else goes on.
//
// The region of an object has no octets in memory (mr.buf is empty), so that slice
// finds nothing in it: all that is for memory, the short paths above all, fails there
// and leaves it to the general one, which ends here.

// Faults of an object. They are ours and not the peer's: a local catastrophic error
// of the layer that places octets, and where it is an RDMA Read that can't be
// answered, the remote operation error that RFC 5040 section 4.8 has for that.
var (
	errObjectWrite = &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPLocalCatastrophic, Reason: "what is behind the region could not be written"}
	errObjectRecv  = &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPLocalCatastrophic, Reason: "what is behind the region of a receive could not be written"}
	errObjectSink  = &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPLocalCatastrophic, Reason: "what is behind the sink of a Read could not be written"}
	errObjectRead  = &iwarp.Error{Layer: iwarp.LayerRDMAP, EType: iwarp.RDMAPRemoteOperation, Code: iwarp.RDMAPCatastrophicStream, Reason: "what is behind the region could not be read"}
)

// objectRights are those that the region of an object can have. An invalidation by
// the peer would have to wait for the object, and an atomic operation is none.
const objectRights = provider.AccessLocalWrite | provider.AccessRemoteWrite | provider.AccessRemoteRead | provider.AccessZeroBased

// RegObject implements provider.PD.
func (p *pd) RegObject(o io.ReaderAt, size uint64, access provider.Access) (provider.MR, error) {
	const op = "ibv_reg_mr"
	name := fmt.Sprintf("object of %d octets", size)
	writable := access&provider.AccessLocalWrite != 0
	switch {
	case o == nil, size == 0, size > math.MaxInt64,
		!writable && access&provider.AccessRemoteWrite != 0:
		return nil, fail(op, name, syscall.EINVAL)
	case access&^objectRights != 0:
		return nil, fail(op, name, fmt.Errorf("rights %s, of which the region of an object can have %s: %w", access, objectRights, syscall.EINVAL))
	}
	m := &mr{pd: p, src: o, length: size, access: access}
	if m.dst, _ = o.(io.WriterAt); writable && m.dst == nil {
		return nil, fail(op, name, fmt.Errorf("the rights ask for writing, and the object has no WriteAt: %w", syscall.EACCES))
	}
	if access&provider.AccessZeroBased == 0 {
		m.base = randomBase()
	}
	if m.base > math.MaxUint64-size {
		return nil, fail(op, name, syscall.EINVAL)
	}
	if err := p.enter(op, name, m); err != nil {
		return nil, err
	}
	return m, nil
}

// objectPiece is n octets, from off on, of a region that is in use until release. They
// belong to the octets of a payload from at on.
type objectPiece struct {
	m      *mr
	remote bool
	off, n uint64
	at     uint64
}

// of returns the part of the payload b that belongs to the piece.
func (p *objectPiece) of(b []byte) []byte { return b[p.at : p.at+p.n] }

// memory is the piece's octets in its region, nil for an object.
func (p *objectPiece) memory() []byte {
	if p.m.src != nil {
		return nil
	}
	return p.m.buf[p.off : p.off+p.n]
}

func (p *objectPiece) release() {
	if p.remote {
		p.m.releaseRemote()
	} else {
		p.m.release()
	}
}

// moveMemory copies at once those pieces of a payload that are memory, not objects, and
// returns the others: what waits for an object then neither touches memory nor keeps it
// in use. With out it copies to the payload b, otherwise from there.
func moveMemory(pieces []objectPiece, b []byte, out bool) []objectPiece {
	return slices.DeleteFunc(pieces, func(p objectPiece) bool {
		memory := p.memory()
		switch {
		case memory == nil:
			return false
		case out:
			copy(p.of(b), memory)
		default:
			copy(memory, p.of(b))
		}
		p.release()
		return true
	})
}

func releasePieces(pieces []objectPiece) {
	for i := range pieces {
		pieces[i].release()
	}
}

// objectPieces are the n octets at offset off of what the SGEs of a work request of
// ours name, in use until releasePieces. It is what resolveLocal is for memory, and
// reports false for what that refuses: what can't be used, and what needs no object. A
// region that work requests register can't be beside an object: who ends it would have
// to wait for the object.
func objectPieces(pd *pd, sges []provider.SGE, need provider.Access, off, n uint64) ([]objectPiece, bool) {
	var pieces []objectPiece
	object := false
	at := uint64(0)
	for i := range sges {
		s := &sges[i]
		length := uint64(s.Length)
		if length == 0 {
			continue
		}
		m := pd.dev.stags.local(s.LKey)
		if m == nil || m.pd != pd || m.access&need != need || !m.holds(s.Addr, length) || m.owner != nil {
			if m != nil {
				m.release()
			}
			releasePieces(pieces)
			return nil, false
		}
		object = object || m.src != nil
		if off >= length || n == 0 {
			off -= min(off, length)
			m.release()
			continue
		}
		took := min(length-off, n)
		pieces = append(pieces, objectPiece{m: m, off: s.Addr - m.base + off, n: took, at: at})
		off, n, at = 0, n-took, at+took
	}
	if !object || n > 0 {
		releasePieces(pieces)
		return nil, false
	}
	return pieces, true
}

// readPieces reads each piece, all of objects, to its part of b. A short read is an error:
// the region is longer than its object.
func readPieces(pieces []objectPiece, b []byte) error {
	for i := range pieces {
		p := &pieces[i]
		if n, err := p.m.src.ReadAt(p.of(b), int64(p.off)); uint64(n) < p.n {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("reading %d octets at %d of what is behind %s: %w", p.n, p.off, p.m.name(), err)
		}
	}
	return nil
}

// writePieces is readPieces the other way.
func writePieces(pieces []objectPiece, b []byte) error {
	for i := range pieces {
		p := &pieces[i]
		if n, err := p.m.dst.WriteAt(p.of(b), int64(p.off)); err != nil || uint64(n) < p.n {
			if err == nil {
				err = io.ErrShortWrite
			}
			return fmt.Errorf("writing %d octets at %d of what is behind %s: %w", p.n, p.off, p.m.name(), err)
		}
	}
	return nil
}

// because notes in an ending by Terminate what of ours has failed.
func (e *ending) because(err error) *ending {
	if t, is := e.cause.(*provider.TerminateError); is {
		t.Err = err
	}
	return e
}

// objectStore is a segment whose payload is on its way to an object. The receive
// side goes on behind it when it has arrived there.
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

// storing reports whether the receive side waits for an object.
func (r *rxState) storing() bool { return r.store != nil }

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
	st := &objectStore{pieces: pieces, payload: s.dev.chunks.get(), n: len(payload), a: *a, h: *h, began: time.Now()}
	copy(st.payload.b, payload) // the longest segment fits
	s.rx.store = st
	if err := s.unwatch(readStoring, true); err != nil { // it may be readable all the time
		s.cannotWatch(err)
	}
	sched.Go(func() {
		err := writePieces(st.pieces, st.payload.b[:st.n])
		s.dev.chunks.put(st.payload) // before releasePieces: after that the device may be closed
		releasePieces(st.pieces)
		s.storedTurn(st, err)
		s.settle()
	})
	return true
}

// storedTurn is rxTurn behind a store.
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

// useObject makes n octets of a region that is an object, and in use for the peer,
// what the payload is for.
func (c *rxContext) useObject(m *mr, to uint64, n int) {
	c.pieces = append(c.pieces[:0], objectPiece{m: m, remote: true, off: to - m.base, n: uint64(n)})
}

// resolveObjects is resolve where one of the regions is an object.
func (c *rxContext) resolveObjects(pd *pd, sges []provider.SGE, off, n uint64) bool {
	var ok bool
	c.pieces, ok = objectPieces(pd, sges, provider.AccessLocalWrite, off, n)
	return ok
}

// dropObjects undoes useObject and resolveObjects.
func (c *rxContext) dropObjects() {
	releasePieces(c.pieces)
	c.pieces = nil
}
