package engine

import (
	"errors"
	"io"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// receive takes what has arrived, within bounds. rxMu is held.
func (s *stream) receive() { _, _ = s.receiveTurn(policy.TurnMost) }

// receiveTurn receives what has arrived, within turn. It returns how much of the turn it used, and
// whether the turn ended before there was nothing more to receive or to answer. rxMu is held.
func (s *stream) receiveTurn(turn int) (used int, more bool) {
	r := &s.rx
	left := turn
	for full := true; full && (left > 0 || r.inLong()) && s.takes(); {
		before := r.taken
		var n int
		if n, full = s.readMore(left); n > 0 {
			left -= r.dense.Spent(n, int(r.taken-before), full)
		}
		more = full && left <= 0
	}
	s.rxPark()
	used = turn - left
	if r.resumeTx && !s.over() {
		r.resumeTx = false
		sent, unsent := s.runTx(policy.TurnOfBatch(left))
		used, more = used+sent, more || unsent
	}
	return used, more
}

// takes reports whether the receive side goes on: the stream is not to end, and no object stores.
func (s *stream) takes() bool { return !s.over() && !s.rx.storing() }

// rxEnsure borrows a receive context, and makes room in it for the longest FPDU.
func (s *stream) rxEnsure() {
	r := &s.rx
	if r.c == nil {
		r.c = s.dev.prog.contexts.Get()
		r.r, r.w = 0, 0
		if r.part != nil {
			s.fromPart()
		}
	}
	if s.params.MarkersRx && r.c.scratch == nil {
		r.c.scratch = make([]byte, 0, mpa.MaxFPDULen)
	}
	if r.r == r.w {
		r.r, r.w = 0, 0
	}
	if r.r > 0 && r.w > policy.ReadMost { // its used part should stay in the CPU's cache
		r.w = copy(r.c.b, r.c.b[r.r:r.w])
		r.r = 0
	}
}

// rxPark returns the context, unless it has a long part of an FPDU in it and few enough other
// streams keep theirs. In either case the context uses no region afterwards.
func (s *stream) rxPark() {
	r := &s.rx
	if r.midFPDU() && !s.over() {
		s.watch()
	}
	if r.c == nil {
		return
	}
	if !r.c.idle() {
		panic("engine: a receive context is parked with a region in use")
	}
	if n := r.w - r.r; n > 0 {
		if n > partSmall && (r.kept || s.dev.prog.keepContext()) {
			r.kept = true
			return
		}
		s.toPart()
	}
	s.giveContext()
}

// giveContext returns the context, which must be idle.
func (s *stream) giveContext() {
	r := &s.rx
	if r.kept {
		r.kept = false
		s.dev.prog.kept.Add(-1)
	}
	r.r, r.w = 0, 0
	s.dev.prog.contexts.Put(r.c)
	r.c = nil
}

// readMore reads once and handles what came. It asks for fewer bytes when little of the turn is
// left. It returns how many bytes came, and whether there may be more.
func (s *stream) readMore(turn int) (int, bool) {
	if s.rx.part != nil && s.rx.part.isLong() {
		return s.readPart()
	}
	s.rxEnsure()
	r := &s.rx
	c := r.c
	space := c.b[r.w:min(len(c.b), r.w+r.readLimit(turn))]
	c.iov[0] = space
	n, err := s.conn.Readv(c.iov[:1])
	if n == 0 {
		s.readFailed(err)
		return 0, false
	}
	r.w += n
	s.parse()
	return n, n == len(space)
}

func (s *stream) readFailed(err error) {
	switch {
	case err == nil, err == transport.ErrWouldBlock: // by value: a poller sees it all the time
	case errors.Is(err, io.EOF):
		s.endOfStream()
	default:
		s.connectionLost(err)
	}
}

// parse consumes whole FPDUs from the context.
func (s *stream) parse() {
	s.takeFPDUs()
	s.rx.c.leave()
	s.startStore()
}

// parseRun consumes FPDUs as parse does, where the first n have the same length and are verified
// already.
func (s *stream) parseRun(n, ulpduLen int) {
	s.takeRun(n, ulpduLen)
	s.parse()
}

// takeFPDUs consumes whole FPDUs, and may leave a region in use.
//
//rfc:5044 MPA-5.1-03 Receiver works when alignment is lost
//rfc:5044 MPA-6-02 Whole FPDU present before forwarding
func (s *stream) takeFPDUs() {
	r := &s.rx
	r.need = 0
	for r.w > r.r && s.takes() {
		buf := r.c.b[r.r:r.w]
		if n, ulpdu := r.fpdu.Run(buf); n > 0 {
			r.taken += uint32(n)
			s.takeRun(n, ulpdu)
			continue
		}
		span, need, err := r.fpdu.Next(buf, r.c.scratch)
		if err != nil {
			s.framingError(err)
			return
		}
		if need > 0 {
			r.need = uint32(need)
			return
		}
		r.taken++
		r.r += span.Len
		s.take(span.ULPDU)
	}
}

// firstFPDU lets a responder send after an FPDU was received and verified, whatever it contains.
//
//rfc:5044 MPA-7.1.2-4-01 Responder sends nothing before the first valid FPDU
//rfc:5044 MPA-7.1.2-4-02 An invalid first FPDU does not release the responder
func (s *stream) firstFPDU() {
	s.rx.first = false
	if !s.maySend.Load() {
		s.maySend.Store(true)
		s.rx.resumeTx = true
	}
}

// segment handles a DDP segment whose FPDU was verified.
//
//rfc:5044 MPA-4.4-13 CRC verified before anything in the FPDU is acted on
//rfc:5044 MPA-6-01 FPDU verified (start located, CRC ok) before passing up
//rfc:5041 DDP-7.1-06 Each segment is validated, not only the first
func (s *stream) segment(ulpdu []byte) {
	r := &s.rx
	first := r.first
	if first {
		s.firstFPDU()
	}
	h, n, err := ddp.ParseHeader(ulpdu, len(ulpdu))
	if err != nil {
		s.refuse(err, nil, 0, nil)
		return
	}
	payload := ulpdu[n:]
	a, err := r.recv.Begin(&h, len(payload))
	if err != nil {
		s.refuse(err, &h, len(payload), nil)
		return
	}
	switch a.Kind {
	case rdmap.TakeReadRequest:
		s.takeReadRequest(&a, &h, payload)
		return
	case rdmap.TakeTerminate:
		s.takeTerminate(&a, &h, payload)
		return
	case rdmap.TakeImmediate:
		s.takeImmediate(&a, &h, payload)
		return
	case rdmap.TakeAtomicRequest:
		s.takeAtomicRequest(&a, &h, payload)
		return
	case rdmap.TakeAtomicResponse:
		s.takeAtomicResponse(&a, &h, payload)
		return
	case rdmap.Drop:
		return
	}
	if first && s.isRTR(&a) {
		r.recv.Commit(&a)
		return
	}
	if err := s.target(&a); err != nil {
		s.refuse(err, &h, len(payload), nil)
		return
	}
	if len(r.c.pieces) > 0 && s.storeObject(&a, &h, payload) {
		return
	}
	r.c.copyIn(payload)
	r.c.release()
	s.deliver(&a, &h)
	if first && s.params.PeerToPeer && s.params.WaitFirstFPDU && a.Kind == rdmap.PlaceWrite && a.Len == 0 {
		r.recv.ForgetWrite() // an RTR indication: Immediate Data can't be part of it
	}
}

// isRTR reports whether the first segment of a stream is an RTR indication that the application
// must not see: a Send of length zero. A Write or a Read as RTR indication needs no treatment.
//
//rfc:6581 MPA2-9.2-14 Zero-length Send RTR is not surfaced to the ULP as a receive
func (s *stream) isRTR(a *rdmap.Action) bool {
	p := &s.params
	return p.PeerToPeer && p.WaitFirstFPDU && p.RTR&mpa.RTRSend != 0 &&
		a.Kind == rdmap.PlaceSend && a.Opcode == rdmap.OpSend && a.Last && a.Len == 0
}

// target checks a segment against the memory that it names, and prepares its payload to be placed.
// It keeps no result for later segments, because regions may be closed between the segments of a
// message.
func (s *stream) target(a *rdmap.Action) error {
	switch a.Kind {
	case rdmap.PlaceWrite:
		return s.rx.c.resolveWrite(s.q, a.STag, a.TO, a.Len)
	case rdmap.PlaceSend:
		w, sges, pd := s.q.frontRecv()
		var length uint64
		if w != nil {
			length = uint64(w.length)
		}
		if err := ddp.CheckUntagged(a.MO, a.Len, w != nil, length); err != nil {
			return err
		}
		if a.Len > 0 && !s.resolve(pd, sges, a) {
			return errRecvSGE
		}
	case rdmap.PlaceReadResponse:
		if !s.readSink(a) {
			s.q.failSend(uint32(a.Read.Cookie), provider.WCLocProtErr)
			return errSinkSGE
		}
	}
	return nil
}

// resolve prepares the payload of a segment of an untagged message, or of a Read's response, to be
// placed in the memory that the SGEs name. It reports false if that is impossible.
func (s *stream) resolve(pd *pd, sges []provider.SGE, a *rdmap.Action) bool {
	off, n := uint64(a.MO), uint64(a.Len)
	return s.rx.c.resolve(pd, sges, off, n) || s.rx.c.resolveObjects(pd, sges, off, n)
}

// countArrived counts a segment that was placed.
func (s *stream) countArrived(a *rdmap.Action) {
	s.countPlaced(a)
	if a.Kind == rdmap.PlaceReadResponse && s.closing() {
		s.countAnswer(a)
	}
}

// deliver advances the stream past a segment that was placed, and completes the work that ends with
// it.
//
//rfc:5040 RDMAP-5.1-02 Valid Write is not delivered to the sink ULP
//rfc:5040 RDMAP-5.3-04 Sends delivered in order
//rfc:5040 RDMAP-5.5-10-01 Sends delivered to ULP in DDP delivery order
//rfc:5041 DDP-5.4-02 Delivery iff L seen and all before it placed and delivered
func (s *stream) deliver(a *rdmap.Action, h *ddp.Header) {
	if a.Last && a.Opcode.Invalidates() {
		// This happens before the application sees the Send, and only when all of it has come. It
		// waits until the uses of the region are over.
		//
		//rfc:5040 RDMAP-5.3-10 SendInv: invalidated on delivery, before ULP sees it
		//rfc:5040 RDMAP-5.3-12 SendInv is not applied on placement, only on delivery
		s.rx.c.leave()
		if err := s.q.peer.Invalidate(a.Invalidate); err != nil {
			s.refuse(err, h, a.Len, nil)
			return
		}
	}
	s.rx.recv.Commit(a)
	s.countArrived(a)
	if !a.Last {
		return
	}
	switch a.Kind {
	case rdmap.PlaceSend:
		wc := provider.WC{ByteLen: a.MO + uint32(a.Len)}
		if a.Opcode.Invalidates() {
			//rfc:5040 RDMAP-5.3-11 SendInv: ULP told which STag
			wc.Flags, wc.InvalidatedRKey = provider.WCWithInv, a.Invalidate
		}
		s.finishRecv(wc, a.Opcode.Solicited())
	case rdmap.PlaceReadResponse:
		s.finishAnswered(a)
	}
}
