package engine

import (
	"errors"
	"io"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

const (
	// rxOctets is the buffer of a context. It holds the longest FPDU with its markers
	// several times over.
	rxOctets = 256 << 10

	// rxKept is how many streams of a device may keep a receive context between
	// turns because a long FPDU has come in part, each until it has stood still from
	// one look at stalled streams to the next. Beyond that the part is moved to memory
	// of its size, so that peers that stall can't pin a context each.
	rxKept = 32
)

// rxContext is what receiving needs while octets are in flight. It is lent to one
// stream at a time.
type rxContext struct {
	b       []byte // rxOctets
	scratch []byte // ULPDU without its markers

	iov   [maxSGE + 1][]byte
	spans [maxSGE]span
	mFor  *qp // the QP whose peer's right to write to m was checked, nil without m

	// m is in use for that peer until leave: Writes that follow each other often name the
	// same region.
	m *mr

	// place is where a segment's payload goes: in regions in use until release.
	place  [maxSGE][]byte
	nplace int
	nspans int
	pieces []objectPiece // instead, where one of the regions is an object
}

func newRxContext() *rxContext { return &rxContext{b: make([]byte, rxOctets)} }

// resolve makes the n octets at offset off of what the SGEs name ready to be
// written. With false they can't be.
func (c *rxContext) resolve(pd *pd, sges []provider.SGE, off, n uint64) bool {
	spans, ok := resolveLocal(pd, sges, provider.AccessLocalWrite, c.spans[:0])
	if !ok {
		clear(spans)
		return false
	}
	c.nspans = len(spans)
	c.nplace = len(appendSpans(c.place[:0], spans, off, n))
	return true
}

// resolveWrite makes n octets of the region that a Write names ready to be
// written.
func (c *rxContext) resolveWrite(q *qp, stag uint32, to uint64, n int) error {
	if c.m != nil && c.mFor == q && c.m.stag == stag && n > 0 {
		// It is in use, so that it is neither closed nor invalidated. What remains to
		// be checked are the bounds.
		if p, ok := c.m.slice(to, uint64(n)); ok {
			c.place[0], c.nplace = p, 1
			return nil
		}
	}
	c.leave()
	m, p, err := writeTarget(q, stag, to, n)
	if err != nil || m == nil {
		return err
	}
	if m.src != nil {
		c.useObject(m, to, n)
		return nil
	}
	c.m, c.mFor = m, q
	c.place[0], c.nplace = p, 1
	return nil
}

// release ends the use of the regions that resolve began.
func (c *rxContext) release() {
	if c.nspans > 0 {
		releaseSpans(c.spans[:c.nspans])
		clear(c.spans[:c.nspans])
	}
	clear(c.place[:c.nplace])
	c.nspans, c.nplace = 0, 0
}

// leave ends the use of the region that resolveWrite began. It comes before
// anything that may wait, and at the end of what one read has brought.
func (c *rxContext) leave() {
	if c.m != nil {
		c.m.releaseRemote()
		c.m, c.mFor = nil, nil
	}
}

// idle reports whether the context uses no region and nothing of a segment is left in it.
// That must be so between turns, and while it is not lent: the next stream would get what
// is left.
func (c *rxContext) idle() bool {
	return c.m == nil && c.mFor == nil && c.nspans == 0 && c.nplace == 0 && len(c.pieces) == 0
}

// endUses ends all uses of regions. There are some only after a panic has ended a turn.
func (c *rxContext) endUses() {
	c.leave()
	c.release()
	c.dropObjects()
}

// copyIn copies payload to its place.
func (c *rxContext) copyIn(payload []byte) {
	for _, p := range c.place[:c.nplace] {
		payload = payload[copy(p, payload):]
	}
}

// rxState is the receive side of a stream; rxMu guards it.
type rxState struct {
	recv rdmap.Receiver
	fpdu mpa.Receiver

	c    *rxContext // nil while nothing is in flight
	r, w int        // c.b[r:w] was read and not consumed
	part *rxPart    // what was moved out of a context

	direct directFPDU
	store  *objectStore // what has to arrive at an object before anything else is taken

	looks   uint32 // of pollers since somebody was about to sleep (see mute.go)
	attends uint32 // when looks was 0
	taken   uint32 // FPDUs so far
	need    uint32 // what r to w has to reach until there is more to be done, 0 if that is not known
	dense   uint8  // the last reads have cost at most 2^dense times their octets

	mayDirect bool // payload may be placed before its CRC is known
	kept      bool // this stream counts against rxKept
	first     bool // no FPDU was received yet
	kick      bool // the transmit side has something to look at
	eof       bool
}

func (r *rxState) init(s *stream) {
	p := &s.params
	r.recv.Init(rdmap.ReceiverConfig{Inbound: &s.inbound, Outstanding: &s.outstanding, Extensions: s.dev.opts.Extensions, RDMAC: p.RDMAC})
	r.fpdu = mpa.NewReceiver(p.MarkersRx, p.CRC)
	r.mayDirect = !p.MarkersRx && (!p.CRC || s.dev.opts.Placement == PlaceStreaming)
	r.first, r.dense = true, denseFirst
}

// midFPDU reports whether an FPDU has come in part.
func (r *rxState) midFPDU() bool { return r.direct.active || r.w > r.r || r.part != nil }

// stop gives back what the receive side has.
func (r *rxState) stop(s *stream) {
	if r.storing() {
		s.orphan()
	}
	s.endStore()
	s.dropPart()
	r.r, r.w, r.direct = 0, 0, directFPDU{}
	if r.c != nil {
		r.c.endUses()
	}
	s.rxPark()
}

// receive takes what has arrived, within bounds. rxMu is held.
func (s *stream) receive() { _, _ = s.receiveTurn(turnMost) }

// receiveTurn is receive with another turn. It returns what it has used of that, and
// whether it ended before there was nothing more to receive, or to answer.
func (s *stream) receiveTurn(turn int) (used int, more bool) {
	r := &s.rx
	left := turn
	for full := true; full && (left > 0 || r.inLong()) && !s.over() && !r.storing(); {
		before := r.taken
		var n int
		if n, full = s.readMore(left); n > 0 {
			left -= r.spent(n, int(r.taken-before), full)
		}
		more = full && left <= 0
	}
	s.rxPark()
	used = turn - left
	if r.kick && !s.over() {
		r.kick = false
		sent, unsent := s.pumpTx(max(left, batchLeast))
		used, more = used+sent, more || unsent
	}
	return used, more
}

// receiveEarly takes octets that were read behind the start-up frame.
func (s *stream) receiveEarly(early []byte) {
	for len(early) > 0 && !s.over() {
		s.rxEnsure()
		n := copy(s.rx.c.b[s.rx.w:], early)
		s.rx.w += n
		early = early[n:]
		s.parse()
	}
	s.rxPark()
	s.rx.kick = false // start looks at the transmit side anyway
}

// rxEnsure borrows a context, and makes room in it for the longest FPDU.
func (s *stream) rxEnsure() {
	r := &s.rx
	if r.c == nil {
		r.c = s.dev.prog.contexts.get()
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
	if r.r > 0 && len(r.c.b)-r.w < rxOctets/2 {
		r.w = copy(r.c.b, r.c.b[r.r:r.w])
		r.r = 0
	}
}

// rxPark gives the context back, unless there is a long part of an FPDU in it and not
// too many other streams keep theirs. Nothing is in use by way of it either way.
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
	if s.keeps.Load() {
		return
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

// giveContext gives the context back, which must be idle.
func (s *stream) giveContext() {
	r := &s.rx
	if r.kept {
		r.kept = false
		s.dev.prog.kept.Add(-1)
	}
	r.r, r.w = 0, 0
	s.dev.prog.contexts.put(r.c)
	r.c = nil
}

// readMore reads once and handles what came. It asks for less when little is left of the
// turn. It returns how many octets came, and whether there may be more.
func (s *stream) readMore(turn int) (int, bool) {
	if s.rx.direct.active && !s.rx.direct.placed() {
		return s.readDirect()
	}
	if s.rx.part != nil && s.rx.part.isLong() {
		return s.readPart()
	}
	s.rxEnsure()
	r := &s.rx
	c := r.c
	space := c.b[r.w:min(len(c.b), r.w+r.readLimit(turn))]
	c.iov[0] = space
	var n int
	var err error
	if s.looker != nil && r.looks >= muteAfter {
		n, err = s.looker.ReadLooks(c.iov[:1], looksPerPoll)
	} else {
		n, err = s.conn.Readv(c.iov[:1])
	}
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
	case err == nil, err == transport.ErrWouldBlock: // the value itself: a poller sees it all the time
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
}

// parseRun is parse where the first n FPDUs are of the same length and verified
// already.
func (s *stream) parseRun(n, ulpduLen int) {
	s.takeRun(n, ulpduLen)
	s.parse()
}

// takeFPDUs is parse, which may leave a region in use.
//
//rfc:5044 MPA-5.1-03 Receiver works when alignment is lost
//rfc:5044 MPA-6-02 Whole FPDU present before forwarding
func (s *stream) takeFPDUs() {
	r := &s.rx
	r.need = 0
	for r.w > r.r && !s.over() && !r.storing() {
		if r.direct.active {
			if !r.direct.placed() || !s.endDirect() {
				return
			}
			continue
		}
		buf := r.c.b[r.r:r.w]
		if n, ulpdu := r.fpdu.Run(buf); n > 0 {
			r.direct.recent = false
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
			if r.mayDirect {
				s.tryDirect(buf)
			}
			return
		}
		r.taken++
		r.r += span.Len
		r.direct.recent = false
		s.take(span.ULPDU)
	}
}

// firstFPDU lets a responder send, now that an FPDU was received and verified,
// whatever is in it.
//
//rfc:5044 MPA-7.1.2-4-01 Responder sends nothing before the first valid FPDU
//rfc:5044 MPA-7.1.2-4-02 An invalid first FPDU does not release the responder
func (s *stream) firstFPDU() {
	s.rx.first = false
	if !s.maySend.Load() {
		s.maySend.Store(true)
		s.rx.kick = true
	}
}

// segment takes a DDP segment whose FPDU was verified.
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
	if err := s.target(&a, 0, a.Len); err != nil {
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

// isRTR reports whether the first segment of a stream is an RTR indication that
// the application must not see: it is a Send of length zero. As a Write or a Read
// it needs no treatment.
//
//rfc:6581 MPA2-9.2-14 Zero-length Send RTR is not surfaced to the ULP as a receive
func (s *stream) isRTR(a *rdmap.Action) bool {
	p := &s.params
	return p.PeerToPeer && p.WaitFirstFPDU && p.RTR&mpa.RTRSend != 0 &&
		a.Kind == rdmap.PlaceSend && a.Opcode == rdmap.OpSend && a.Last && a.Len == 0
}

// target checks a segment against the memory that it is for, all of it, and
// makes n octets at offset off of its payload ready to be placed. Between the
// segments of a message, and between the reads of a segment, regions may go; so
// nothing of this is kept.
func (s *stream) target(a *rdmap.Action, off, n int) error {
	switch a.Kind {
	case rdmap.PlaceWrite:
		return s.rx.c.resolveWrite(s.q, a.STag, a.TO+uint64(off), n)
	case rdmap.PlaceSend:
		pd := s.q.pd
		w, sges := s.q.rq.front()
		if w == nil && s.q.shared != nil {
			w, sges, pd = s.q.shared.take()
		}
		var length uint64
		if w != nil {
			length = uint64(w.length)
		}
		if err := ddp.CheckUntagged(a.MO, a.Len, w != nil, length); err != nil {
			return err
		}
		if at := uint64(a.MO) + uint64(off); n > 0 && !s.rx.c.resolve(pd, sges, at, uint64(n)) &&
			!s.rx.c.resolveObjects(pd, sges, at, uint64(n)) {
			return errRecvSGE
		}
	case rdmap.PlaceReadResponse:
		if !s.readSink(a, off, n) {
			s.q.failSend(uint32(a.Read.Cookie), provider.WCLocProtErr)
			return errSinkSGE
		}
	}
	return nil
}

// deliver moves the stream past a segment that was placed, and completes what
// ends with it.
//
//rfc:5040 RDMAP-5.1-02 Valid Write is not delivered to the sink ULP
//rfc:5040 RDMAP-5.3-04 Sends delivered in order
//rfc:5040 RDMAP-5.5-10-01 Sends delivered to ULP in DDP delivery order
//rfc:5041 DDP-5.4-02 Delivery iff L seen and all before it placed and delivered
func (s *stream) deliver(a *rdmap.Action, h *ddp.Header) {
	if a.Last && a.Opcode.Invalidates() {
		// It happens before the application sees the Send, and only when all
		// of it has come. It waits for the uses of the region.
		//
		//rfc:5040 RDMAP-5.3-10 SendInv: invalidated on delivery, before ULP sees it
		//rfc:5040 RDMAP-5.3-12 SendInv is not applied on placement, only on delivery
		s.rx.c.leave()
		if err := invalidateRemote(s.q, a.Invalidate); err != nil {
			s.refuse(err, h, a.Len, nil)
			return
		}
	}
	s.rx.recv.Commit(a)
	s.countPlaced(a)
	if a.Kind == rdmap.PlaceReadResponse && s.closing.Load() {
		s.countAnswer(a)
	}
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
		if s.q.shared != nil {
			s.q.finishShared(wc, a.Opcode.Solicited())
			return
		}
		s.q.finishRecv(wc, a.Opcode.Solicited())
	case rdmap.PlaceReadResponse:
		s.finishRead(a)
	}
}
