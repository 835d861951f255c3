package engine

import (
	"errors"
	"io"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// receive takes what has arrived, within bounds. rx.mu is held.
func (rx *receiver) receive() { _, _ = rx.receiveTurn(policy.BudgetMost) }

// receiveTurn receives what has arrived, within budget. It returns how much of the budget it used,
// and whether the turn ended before there was nothing more to receive or to answer. rx.mu is held.
func (rx *receiver) receiveTurn(budget int) (used int, more bool) {
	left := budget
	for full := true; full && (left > 0 || rx.inLong()) && rx.goesOn(); {
		before := rx.received
		var n int
		if n, full = rx.readMore(left); n > 0 {
			left -= rx.costShift.Spent(n, int(rx.received-before), full)
		}
		more = full && left <= 0
	}
	rx.park()
	used = budget - left
	if rx.resumeTx && !rx.s.over() {
		rx.resumeTx = false
		sent, sendMore := rx.s.tx.run(policy.BudgetOfBatch(left))
		used, more = used+sent, more || sendMore
	}
	return used, more
}

// goesOn reports whether the receive side goes on: the stream is not to end, and no object stores.
func (rx *receiver) goesOn() bool { return !rx.s.over() && !rx.storing() }

// ensureContext borrows a receive context, and makes room in it for the longest FPDU.
func (rx *receiver) ensureContext() {
	if rx.c == nil {
		rx.c = rx.s.dev.prog.contexts.Get()
		rx.r, rx.w = 0, 0
		if rx.part != nil {
			rx.fromPart()
		}
	}
	if rx.s.params.MarkersRx && rx.c.scratch == nil {
		rx.c.scratch = make([]byte, 0, mpa.MaxFPDULen)
	}
	if rx.r == rx.w {
		rx.r, rx.w = 0, 0
	}
	if rx.r > 0 && rx.w > policy.ReadMost { // its used part should stay in the CPU's cache
		rx.w = copy(rx.c.b, rx.c.b[rx.r:rx.w])
		rx.r = 0
	}
}

// park returns the context, unless it has a long part of an FPDU in it and few enough other
// streams keep theirs. In either case the context uses no region afterwards.
func (rx *receiver) park() {
	if rx.midFPDU() && !rx.s.over() {
		rx.s.watch()
	}
	if rx.c == nil {
		return
	}
	if !rx.c.idle() {
		panic("engine: a receive context is parked with a region in use")
	}
	if n := rx.w - rx.r; n > 0 {
		if n > partSmall && (rx.kept || rx.s.dev.prog.keepContext()) {
			rx.kept = true
			return
		}
		rx.toPart()
	}
	rx.giveContext()
}

// giveContext returns the context, which must be idle.
func (rx *receiver) giveContext() {
	if rx.kept {
		rx.kept = false
		rx.s.dev.prog.kept.Add(-1)
	}
	rx.r, rx.w, rx.c.run = 0, 0, 0
	rx.s.dev.prog.contexts.Put(rx.c)
	rx.c = nil
}

// readMore reads once and handles what came. It asks for fewer bytes when little of the budget is
// left. It returns how many bytes came, and whether there may be more.
func (rx *receiver) readMore(budget int) (int, bool) {
	if rx.part != nil && rx.part.isLong() {
		return rx.readPart()
	}
	rx.ensureContext()
	c := rx.c
	space := c.b[rx.w:min(len(c.b), rx.w+rx.readLimit(budget))]
	c.iov[0] = space
	n, err := rx.s.conn.Readv(c.iov[:1])
	if n == 0 {
		rx.readFailed(err)
		return 0, false
	}
	rx.w += n
	rx.parse()
	return n, n == len(space)
}

func (rx *receiver) readFailed(err error) {
	switch {
	case err == nil, err == transport.ErrWouldBlock: // by value: a poller sees it all the time
	case errors.Is(err, io.EOF):
		rx.endOfStream()
	default:
		rx.connectionLost(err)
	}
}

// parse consumes whole FPDUs from the context.
func (rx *receiver) parse() {
	rx.consumeFPDUs()
	rx.c.releaseWrite()
}

// consumeFPDUs consumes whole FPDUs, and may leave a region in use.
//
//rfc:5044 MPA-5.1-03 Receiver works when alignment is lost
//rfc:5044 MPA-6-02 Whole FPDU present before forwarding
func (rx *receiver) consumeFPDUs() {
	rx.need = 0
	c := rx.c
	if c.run > 0 {
		rx.consumeRun()
	}
	for rx.w > rx.r && rx.goesOn() {
		buf := c.b[rx.r:rx.w]
		if n, ulpduLen := rx.fpdu.Run(buf); n > 0 {
			rx.received += uint32(n)
			c.run, c.runULPDU = n, ulpduLen
			rx.consumeRun()
			continue
		}
		span, need, err := rx.fpdu.Next(buf, c.scratch)
		if err != nil {
			rx.framingError(err)
			return
		}
		if need > 0 {
			rx.need = uint32(need)
			return
		}
		rx.received++
		rx.r += span.Len
		rx.consume(span.ULPDU)
	}
}

// firstFPDU lets a responder send after an FPDU was received and verified, whatever it contains.
//
//rfc:5044 MPA-7.1.2-4-01 Responder sends nothing before the first valid FPDU
//rfc:5044 MPA-7.1.2-4-02 An invalid first FPDU does not release the responder
func (rx *receiver) firstFPDU() {
	rx.first = false
	if !rx.s.maySend.Load() {
		rx.s.maySend.Store(true)
		rx.resumeTx = true
	}
}

// segment handles a DDP segment whose FPDU was verified.
//
//rfc:5044 MPA-4.4-13 CRC verified before anything in the FPDU is acted on
//rfc:5044 MPA-6-01 FPDU verified (start located, CRC ok) before passing up
//rfc:5041 DDP-7.1-06 Each segment is validated, not only the first
func (rx *receiver) segment(ulpdu []byte) {
	first := rx.first
	if first {
		rx.firstFPDU()
	}
	h, n, err := ddp.ParseHeader(ulpdu, len(ulpdu))
	if err != nil {
		rx.refuse(err, nil, 0, nil)
		return
	}
	payload := ulpdu[n:]
	a, err := rx.recv.Begin(&h, len(payload))
	if err != nil {
		rx.refuse(err, &h, len(payload), nil)
		return
	}
	switch a.Kind {
	case rdmap.TakeReadRequest:
		rx.handleReadRequest(&a, &h, payload)
		return
	case rdmap.TakeTerminate:
		rx.handleTerminate(&a, &h, payload)
		return
	case rdmap.TakeImmediate:
		rx.handleImmediate(&a, &h, payload)
		return
	case rdmap.TakeAtomicRequest:
		rx.handleAtomicRequest(&a, &h, payload)
		return
	case rdmap.TakeAtomicResponse:
		rx.handleAtomicResponse(&a, &h, payload)
		return
	case rdmap.Drop:
		return
	}
	if first && rx.isRTR(&a) {
		rx.recv.Commit(&a)
		return
	}
	if err := rx.target(&a); err != nil {
		rx.refuse(err, &h, len(payload), nil)
		return
	}
	if len(rx.c.pieces) > 0 && rx.storeObject(&a, &h, payload) {
		return
	}
	rx.c.copyIn(payload)
	rx.c.release()
	rx.deliver(&a, &h)
	if first && rx.s.params.PeerToPeer && rx.s.params.WaitFirstFPDU && a.Kind == rdmap.PlaceWrite && a.Len == 0 {
		rx.recv.ForgetWrite() // an RTR indication: Immediate Data can't be part of it
	}
}

// isRTR reports whether the first segment of a stream is an RTR indication that the application
// must not see: a Send of length zero. A Write or a Read as RTR indication needs no treatment.
//
//rfc:6581 MPA2-9.2-14 Zero-length Send RTR is not surfaced to the ULP as a receive
func (rx *receiver) isRTR(a *rdmap.Action) bool {
	p := &rx.s.params
	return p.PeerToPeer && p.WaitFirstFPDU && p.RTR&mpa.RTRSend != 0 &&
		a.Kind == rdmap.PlaceSend && a.Opcode == rdmap.OpSend && a.Last && a.Len == 0
}

// target checks a segment against the memory that it names, and prepares its payload to be placed.
// It keeps no result for later segments, because regions may be closed between the segments of a
// message.
func (rx *receiver) target(a *rdmap.Action) error {
	switch a.Kind {
	case rdmap.PlaceWrite:
		return rx.c.resolveWrite(&rx.q.peer, a.STag, a.TO, a.Len)
	case rdmap.PlaceSend:
		w, sges, pd := rx.q.frontRecv()
		var length uint64
		if w != nil {
			length = uint64(w.length)
		}
		if err := ddp.CheckUntagged(a.MO, a.Len, w != nil, length); err != nil {
			return err
		}
		if a.Len > 0 && !rx.resolve(&pd.Domain, sges, a) {
			return errRecvSGE
		}
	case rdmap.PlaceReadResponse:
		if !rx.readSink(a) {
			rx.q.failSend(uint32(a.Read.Cookie), provider.WCLocProtErr)
			return errSinkSGE
		}
	}
	return nil
}

// resolve prepares the payload of a segment of an untagged message, or of a Read's response, to be
// placed in the memory that the SGEs name. It reports false if that is impossible.
func (rx *receiver) resolve(d *memory.Domain, sges []provider.SGE, a *rdmap.Action) bool {
	off, n := uint64(a.MO), uint64(a.Len)
	return rx.c.resolve(d, sges, off, n) || rx.c.resolveObjects(d, sges, off, n)
}

// countArrived counts a segment that was placed.
func (rx *receiver) countArrived(a *rdmap.Action) {
	rx.countPlaced(a)
	if a.Kind == rdmap.PlaceReadResponse && rx.s.closing() {
		rx.s.closer.countAnswer(a)
	}
}

// deliver advances the stream past a segment that was placed, and completes the work that ends with
// it.
//
//rfc:5040 RDMAP-5.1-02 Valid Write is not delivered to the sink ULP
//rfc:5040 RDMAP-5.3-04 Sends delivered in order
//rfc:5040 RDMAP-5.5-10-01 Sends delivered to ULP in DDP delivery order
//rfc:5041 DDP-5.4-02 Delivery iff L seen and all before it placed and delivered
func (rx *receiver) deliver(a *rdmap.Action, h *ddp.Header) {
	if a.Last && a.Opcode.Invalidates() {
		// This happens before the application sees the Send, and only when all of it has come. It
		// waits until the uses of the region are over.
		//
		//rfc:5040 RDMAP-5.3-10 SendInv: invalidated on delivery, before ULP sees it
		//rfc:5040 RDMAP-5.3-12 SendInv is not applied on placement, only on delivery
		rx.c.releaseWrite()
		if err := rx.q.peer.Invalidate(a.Invalidate); err != nil {
			rx.refuse(err, h, a.Len, nil)
			return
		}
	}
	rx.recv.Commit(a)
	rx.countArrived(a)
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
		rx.q.finishRecv(wc, a.Opcode.Solicited())
	case rdmap.PlaceReadResponse:
		rx.finishAnswered(a)
	}
}

// countPlaced counts a placed segment of any kind. rx.mu is held.
func (rx *receiver) countPlaced(a *rdmap.Action) {
	r := &rx.q.counters().received
	switch a.Kind {
	case rdmap.PlaceSend:
		countSegment(&r.Send, a.Len, a.Last)
	case rdmap.PlaceWrite:
		countSegment(&r.Write, a.Len, a.Last)
	case rdmap.PlaceReadResponse:
		countSegment(&r.ReadResponse, a.Len, a.Last)
	}
}

// consumeRun handles the run of the receive context, until the stream ends or a store takes over
// what is left of the run.
func (rx *receiver) consumeRun() {
	c := rx.c
	size, ulpduLen := mpa.FPDULen(c.runULPDU), c.runULPDU
	for n := c.run; n > 0 && n == c.run && !rx.s.over(); {
		ulpdu := c.b[rx.r+mpa.HeaderLen:][:ulpduLen]
		rx.r += size
		n--
		c.run = n
		rx.consume(ulpdu)
	}
}

// consume handles a ULPDU whose FPDU was verified.
func (rx *receiver) consume(ulpdu []byte) {
	if !rx.placeWrite(ulpdu) && !rx.placeSend(ulpdu) && !rx.placeResponse(ulpdu) {
		rx.segment(ulpdu)
	}
}

// placeWrite handles a segment of a Write to the region that is already in use for the peer, as
// segment would. It leaves anything else, or a faulty segment, to segment.
//
// A region is in use for the peer only after the first FPDU of a stream. releaseWrite ends that use
// after each read.
func (rx *receiver) placeWrite(ulpdu []byte) bool {
	m := rx.c.m
	if m == nil || rx.c.mFor != &rx.q.peer {
		return false
	}
	g, payload, ok := rx.recv.BeginWrite(ulpdu)
	if !ok || g.STag != m.STag() {
		return false
	}
	p, ok := m.Slice(g.TO, uint64(len(payload)))
	if !ok {
		return false
	}
	copy(p, payload)
	rx.recv.CommitWrite(g, len(payload))
	countSegment(&rx.q.counters().received.Write, len(payload), g.Last)
	return true
}

// placeSend handles a Send that is one segment and goes to a receive of one SGE, as most do, as
// segment would. It leaves anything else, or a faulty segment, to segment.
func (rx *receiver) placeSend(ulpdu []byte) bool {
	payload, op, ok := rx.recv.WholeSend(ulpdu)
	if !ok || rx.first || len(payload) == 0 {
		return false
	}
	w, sges, pd := rx.q.frontRecv()
	if w == nil || w.nsge != 1 || uint64(len(payload)) > uint64(w.length) {
		return false
	}
	if !place(pd, &sges[0], 0, payload) {
		return false
	}
	rx.recv.CommitSend(op)
	countOne(&rx.q.counters().received.Send, uint32(len(payload)))
	rx.q.finishRecv(provider.WC{ByteLen: uint32(len(payload))}, op.Solicited())
	return true
}

// placeResponse handles a segment in the middle of a Read Response that goes to one SGE, as segment
// would. On a network a long response is hundreds of them. It leaves anything else, or a faulty
// segment, to segment.
func (rx *receiver) placeResponse(ulpdu []byte) bool {
	cookie, at, payload, ok := rx.recv.MidResponse(ulpdu)
	if !ok || rx.first || rx.s.closing() {
		return false
	}
	sq, i := &rx.q.sq, uint32(cookie)
	if sq.at(i).nsge != 1 || !place(rx.q.pd, &sq.sgeRoom(i)[0], at, payload) {
		return false
	}
	rx.recv.CommitMidResponse(len(payload))
	countSegment(&rx.q.counters().received.ReadResponse, len(payload), false)
	return true
}

// place copies payload to offset at of the memory that an SGE of ours names. It reports false if
// that is not a region that the receive side may write to.
func place(pd *pd, sge *provider.SGE, at uint32, payload []byte) bool {
	m := pd.Table.Local(sge.LKey)
	if m == nil {
		return false
	}
	p, ok := m.Octets(&pd.Domain, sge, provider.AccessLocalWrite)
	if ok {
		copy(p[at:], payload)
	}
	m.Release()
	return ok
}
