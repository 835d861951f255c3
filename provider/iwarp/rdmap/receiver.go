package rdmap

import (
	"fmt"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// Kind is what an [Action] requests.
type Kind uint8

// The kinds of actions.
const (
	// Drop: ignore the segment without an answer, because the stream has ended (RFC 5041 section
	// 7.1).
	Drop Kind = iota
	// PlaceSend: the payload goes to offset MO of the receive buffer that the message consumes.
	// With First, take a buffer and check it with ddp.CheckUntagged. With Last, deliver the
	// message.
	PlaceSend
	// PlaceWrite: the payload goes to offset TO of the buffer STag, if ddp.CheckTagged permits it.
	// Nothing is delivered.
	PlaceWrite
	// TakeReadRequest: the payload is a [ReadRequest], for ParseReadRequest. Push it to the
	// [InboundReads].
	TakeReadRequest
	// PlaceReadResponse: the payload goes to offset MO of the sink buffer of Read, if
	// ddp.CheckTagged finds it still registered. With Last the Read is complete.
	PlaceReadResponse
	// TakeTerminate: the payload is a [Terminate], for ParseTerminate. The peer sends nothing after
	// it.
	TakeTerminate

	// TakeImmediate: the payload is for ParseImmediate. The message consumes a
	// receive buffer, as a Send does, and places nothing there.
	TakeImmediate
	// TakeAtomicRequest: the payload is an [AtomicRequest], for ParseAtomicRequest. Push the result
	// to the [InboundReads].
	TakeAtomicRequest
	// TakeAtomicResponse: the payload is an [AtomicResponse], for ParseAtomicResponse. If its ID is
	// Read's, Read is complete; otherwise it is [ErrAtomicResponseID].
	TakeAtomicResponse
)

// String returns the kind's Go name.
func (k Kind) String() string {
	switch k {
	case Drop:
		return "Drop"
	case PlaceSend:
		return "PlaceSend"
	case PlaceWrite:
		return "PlaceWrite"
	case TakeReadRequest:
		return "TakeReadRequest"
	case PlaceReadResponse:
		return "PlaceReadResponse"
	case TakeTerminate:
		return "TakeTerminate"
	case TakeImmediate:
		return "TakeImmediate"
	case TakeAtomicRequest:
		return "TakeAtomicRequest"
	case TakeAtomicResponse:
		return "TakeAtomicResponse"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Action describes what to do with one segment. It is a value that does not refer to the receiver.
type Action struct {
	Kind   Kind
	Opcode Opcode
	First  bool // first segment of its message
	Last   bool // last segment of its message: deliver it after Commit
	Len    int  // octets of payload

	MSN uint32 // untagged: sequence number of the message
	MO  uint32 // octets of the message before this segment

	STag uint32 // tagged: as in the header
	TO   uint64 // tagged: as in the header

	Invalidate uint32 // the STag to invalidate on delivery, if Opcode.Invalidates

	Read OutstandingRead // PlaceReadResponse, TakeAtomicResponse: the request that is answered

	AfterWrite bool   // TakeImmediate: the peer's previous message was a Write
	Written    uint32 // AfterWrite: length of that Write in octets

	seq uint64
}

// Receiver is the receive side of one RDMAP stream. It makes all checks of a segment that need no
// knowledge of memory, and returns what to do with it. The package comment shows the sequence of
// calls.
//
// Begin changes nothing, so an FPDU with a wrong CRC leaves no trace; Commit advances the state. A
// Receiver is used by one goroutine at a time.
type Receiver struct {
	send   ddp.UntaggedQueue
	read   ddp.UntaggedQueue
	term   ddp.UntaggedQueue
	atomic ddp.UntaggedQueue
	sendOp Opcode // opcode of the unfinished Send message

	version    uint8 // DV and RV, which have the same number
	general    bool  // every segment needs Begin: the stream has ended, or is an RDMAC one
	extensions bool
	afterWrite bool   // the peer's last message that has ended, responses excluded, is a Write
	written    uint32 // octets of the last Write

	tagged taggedMessage

	in  *InboundReads
	out *OutstandingReads

	seq   uint64 // counts commits
	ended bool
}

// taggedMessage is the unfinished tagged message. There is at most one, because DDP sends messages
// one after the other (RFC 5041 section 5.3).
type taggedMessage struct {
	open   bool
	placed bool // stag comes from a segment with payload
	op     Opcode
	stag   uint32
	done   uint32 // committed octets
}

// ReceiverConfig configures a [Receiver].
type ReceiverConfig struct {
	// Inbound limits the peer's unanswered Read Requests. The receiver reads it; the engine pushes
	// to it.
	Inbound *InboundReads
	// Outstanding holds the Reads that the peer's responses must answer. The
	// receiver matches and pops; the engine pushes to it.
	Outstanding *OutstandingReads

	// Extensions permits the messages of RFC 7306. Without it their opcodes are reserved.
	Extensions bool

	// RDMAC makes the stream one of the RDMA Consortium's version, if MPA's start-up agreed on
	// that: DV and RV must be 0 in every segment. It excludes Extensions.
	RDMAC bool

	// FirstSendMSN and FirstReadMSN are the first MSN of the queues for Sends and Read Requests,
	// for tests of the wrap at 2^32. Nil means 1.
	FirstSendMSN, FirstReadMSN *uint32
}

// NewReceiver returns the receiver of a stream on which nothing has arrived. A nil Inbound or
// Outstanding has no places.
func NewReceiver(c ReceiverConfig) *Receiver {
	r := new(Receiver)
	r.Init(c)
	return r
}

// Init initialises a receiver that is part of another struct, before its first use.
func (r *Receiver) Init(c ReceiverConfig) {
	if c.Inbound == nil {
		c.Inbound = NewInboundReads(0)
	}
	if c.Outstanding == nil {
		c.Outstanding = NewOutstandingReads(0)
	}
	*r = Receiver{
		send: ddp.NewUntaggedQueue(QNSend, firstMSN(c.FirstSendMSN)),
		read: ddp.NewUntaggedQueue(QNReadRequest, firstMSN(c.FirstReadMSN)),
		term: ddp.NewUntaggedQueue(QNTerminate, ddp.FirstMSN),
		in:   c.Inbound,
		out:  c.Outstanding,

		atomic:     ddp.NewUntaggedQueue(QNAtomicResponse, ddp.FirstMSN),
		extensions: c.Extensions && !c.RDMAC,
		version:    Version,
	}
	if c.RDMAC {
		r.version, r.general = RDMACVersion, true
	}
}

func firstMSN(msn *uint32) uint32 {
	if msn == nil {
		return ddp.FirstMSN
	}
	return *msn
}

// Begin validates a segment with header h and payloadLen octets of payload, and returns what to do
// with it. It changes nothing: the same segment may be begun again, and one that is never committed
// has no effect.
//
// The error is a package variable of this package or of ddp, of type *iwarp.Error, for the
// Terminate about the segment. Begin checks DDP's version first, then RDMAP's, the opcode, the
// buffer model, and then the rules of the message type.
//
//rfc:5040 RDMAP-7.2-01 DDP fields validated on every message
//rfc:7306 EXT-8.2-01 DDP fields, opcode and version validated
func (r *Receiver) Begin(h *ddp.Header, payloadLen int) (a Action, err error) {
	//rfc:5041 DDP-7.1-03 Segments after an error dropped silently
	if r.ended {
		return Action{Kind: Drop, Len: payloadLen}, nil
	}
	if payloadLen < 0 {
		return Action{}, ddp.ErrShortSegment
	}
	//rfc:5041 DDP-4.1-10 Reserved bits not checked on receive
	//rfc:5044 RDMAC-C.1-02 No mixing of versions between MPA, DDP and RDMAP
	if err := ddp.CheckVersion(h, r.version); err != nil {
		return Action{}, err
	}
	//rfc:5040 RDMAP-4.1-08 Rsv bits ignored on receive
	c := ParseControl(h.ULPCtl)
	switch {
	//rfc:5040 RDMAP-7.2-04 RV valid
	case c.Version != r.version:
		return Action{}, ErrVersion
	//rfc:5040 RDMAP-7.2-02 Opcode valid
	//rfc:5040 RDMAP-4.1-12 Reserved opcodes 8-15 rejected when extensions off
	//rfc:7306 EXT-4.1-05 Opcodes 12-14 unassigned, 15 experimental rejected
	case !c.Opcode.Defined() && !(r.extensions && c.Opcode.Extension()):
		return Action{}, ErrReservedOpcode
	//rfc:5041 DDP-4.1-03 T flag must agree with the opcode's buffer model
	case c.Opcode.Tagged() != h.Tagged:
		return Action{}, ErrBufferModel
	}
	a.Opcode, a.Last, a.Len, a.seq = c.Opcode, h.Last, payloadLen, r.seq
	a.MSN, a.MO, a.STag, a.TO = h.MSN, h.MO, h.STag, h.TO
	switch c.Opcode {
	case OpWrite:
		err = r.beginWrite(&a)
	case OpReadResponse:
		err = r.beginReadResponse(&a)
	case OpReadRequest:
		err = r.beginReadRequest(&a, h)
	case OpTerminate:
		err = r.beginTerminate(&a, h)
	case OpImmediate, OpImmediateSE:
		err = r.beginImmediate(&a, h)
	case OpAtomicRequest:
		err = r.beginAtomicRequest(&a, h)
	case OpAtomicResponse:
		err = r.beginAtomicResponse(&a, h)
	default:
		err = r.beginSend(&a, h)
	}
	if err != nil {
		return Action{}, err
	}
	return a, nil
}

// BeginWrite validates the most frequent ULPDU: a segment of an RDMA Write with payload, which
// begins a message or continues one. It returns the arguments for ddp.CheckTagged, and the payload,
// which is a part of ulpdu. Use CommitWrite instead of Commit afterwards.
//
// If it returns false, it has decided nothing, and the caller calls Begin.
func (r *Receiver) BeginWrite(ulpdu []byte) (g ddp.Tagged, payload []byte, ok bool) {
	g, payload, ok = ddp.ParseTagged(ulpdu)
	if !ok || r.general || len(payload) == 0 || g.ULPCtl&^ctlReservedMask != Version<<ctlVersionShift|uint8(OpWrite) {
		return ddp.Tagged{}, nil, false
	}
	if t := &r.tagged; t.open && (t.op != OpWrite || t.placed && t.stag != g.STag) {
		return ddp.Tagged{}, nil, false
	}
	return g, payload, true
}

// CommitWrite commits the segment that BeginWrite returned; n is its payload in octets.
func (r *Receiver) CommitWrite(g ddp.Tagged, n int) {
	r.seq++
	if g.Last {
		r.endWrite(n)
		r.tagged = taggedMessage{}
		return
	}
	t := &r.tagged
	t.open, t.placed, t.op, t.stag = true, true, OpWrite, g.STag
	t.done += uint32(n)
}

// MidResponse validates a segment with payload of an RDMA Read Response that is not its last. It
// returns the Cookie of the Read that the response answers, the offset of the payload in the Read's
// sink, and the payload, which is a part of ulpdu. Use CommitMidResponse instead of Commit
// afterwards.
//
// If it returns false, it has decided nothing, and the caller calls Begin.
func (r *Receiver) MidResponse(ulpdu []byte) (cookie uint64, at uint32, payload []byte, ok bool) {
	g, payload, ok := ddp.ParseTagged(ulpdu)
	if !ok || g.Last || r.general || len(payload) == 0 ||
		g.ULPCtl&^ctlReservedMask != Version<<ctlVersionShift|uint8(OpReadResponse) {
		return 0, 0, nil, false
	}
	t, read := &r.tagged, r.out.Front()
	if t.open && t.op != OpReadResponse || read == nil || read.Atomic || g.STag != read.SinkSTag ||
		g.TO != read.SinkTO+uint64(t.done) || uint64(len(payload)) > uint64(read.Size-t.done) {
		return 0, 0, nil, false
	}
	return read.Cookie, t.done, payload, true
}

// CommitMidResponse commits the segment that MidResponse returned; n is its payload in octets.
func (r *Receiver) CommitMidResponse(n int) {
	r.seq++
	t := &r.tagged
	t.open, t.placed, t.op, t.stag = true, true, OpReadResponse, r.out.Front().SinkSTag
	t.done += uint32(n)
}

// endWrite stores the length of the Write, for Immediate Data after it. n is the payload of its
// last segment, in octets.
func (r *Receiver) endWrite(n int) { r.written, r.afterWrite = r.tagged.done+uint32(n), true }

// WholeSend validates a Send without Invalidate that is one segment: the next of its queue, while
// no other is unfinished. The payload is a part of ulpdu. The caller still has to call
// ddp.CheckUntagged. Use CommitSend instead of Commit afterwards.
//
// If it returns false, it has decided nothing, and the caller calls Begin.
func (r *Receiver) WholeSend(ulpdu []byte) (payload []byte, op Opcode, ok bool) {
	payload, ctl, ok := r.send.Whole(ulpdu)
	if !ok || r.general {
		return nil, 0, false
	}
	switch ctl &^ ctlReservedMask {
	case Version<<ctlVersionShift | uint8(OpSend):
		return payload, OpSend, true
	case Version<<ctlVersionShift | uint8(OpSendSE):
		return payload, OpSendSE, true
	}
	return nil, 0, false
}

// CommitSend commits the Send that WholeSend returned.
func (r *Receiver) CommitSend(op Opcode) {
	r.seq++
	r.send.Commit(true, 0)
	r.sendOp, r.afterWrite = op, false
}

// beginSend accepts a segment of a Send message that continues its queue. It refuses a change of
// opcode within a message, because events and invalidation depend on the opcode.
//
//rfc:5040 RDMAP-7.2-03 Opcode consistent across segments of one message
//rfc:5040 RDMAP-4.1-10 Invalidate STag ignored where the opcode has none
func (r *Receiver) beginSend(a *Action, h *ddp.Header) error {
	if err := r.send.Check(h, a.Len); err != nil {
		return err
	}
	if r.send.Open() && a.Opcode != r.sendOp {
		return ErrOpcodeChanged
	}
	a.Kind = PlaceSend
	a.First = !r.send.Open()
	if a.Opcode.Invalidates() {
		a.Invalidate = h.ULP32
	}
	return nil
}

// beginReadRequest accepts a Read Request, whose message is only its header. The queue has as many
// buffers as the IRD, so an excess request finds no buffer.
//
//rfc:5040 RDMAP-4.2-02 No ULP payload after ReadReq/Terminate headers
//rfc:5040 RDMAP-5.2.1-02 ReadReq consumes one buffer of QN 1
//rfc:5040 RDMAP-5.2.1-11 ReadReq must be one segment (L=1, MO=0)
//rfc:5040 RDMAP-6.1-05 Inbound reads above IRD are refused
func (r *Receiver) beginReadRequest(a *Action, h *ddp.Header) error {
	if err := r.read.Check(h, a.Len); err != nil {
		return err
	}
	switch {
	case r.in.Full():
		return ErrReadDepth
	case a.Len > ReadRequestLen, !a.Last:
		return ErrLongReadReq
	case a.Len < ReadRequestLen:
		return ErrShortReadRequest
	}
	a.Kind = TakeReadRequest
	a.First = true
	return nil
}

// beginTerminate accepts the one Terminate of a stream, even if it is cut short.
//
//rfc:5040 RDMAP-5.4-03 Terminate consumes one buffer; placement of one guaranteed
func (r *Receiver) beginTerminate(a *Action, h *ddp.Header) error {
	if err := r.term.Check(h, a.Len); err != nil {
		return err
	}
	switch {
	case a.Len > MaxTerminateLen, !a.Last:
		return ErrLongTerminate
	case a.Len < TerminateControlLen:
		return ErrShortTerminate
	}
	a.Kind = TakeTerminate
	a.First = true
	return nil
}

// beginWrite accepts a Write segment. Segments may come in any TO order. Each is checked separately
// against the STag table, but all with payload must name the same buffer.
//
//rfc:5041 DDP-4.2-07 STag that changes within a message: refused or validated
//rfc:5041 DDP-4.2-08 Message may start at any TO
//rfc:5041 DDP-5.3-03 Sink copes with tagged segments in non-rising TO order
func (r *Receiver) beginWrite(a *Action) error {
	if err := r.beginTagged(a); err != nil {
		return err
	}
	if r.tagged.placed && a.Len > 0 && a.STag != r.tagged.stag {
		return ddp.ErrSTagChanged
	}
	a.Kind = PlaceWrite
	return nil
}

// beginReadResponse accepts a segment that continues the response to the oldest outstanding Read,
// and ends it exactly where the Read ends. It ignores STag and TO of a segment without payload.
//
//rfc:5040 RDMAP-5.2.2-05 Sink may check STag/TO/length against the request
//rfc:5040 RDMAP-5.2.2-06 Unsolicited Response must not place data
//rfc:5041 DDP-5.2-09 STag/TO not checked for zero-length tagged message
//rfc:5041 DDP-5.2-10 Zero-length segment with L=0 does not confuse reassembly
func (r *Receiver) beginReadResponse(a *Action) error {
	if err := r.beginTagged(a); err != nil {
		return err
	}
	read := r.out.Front()
	if read == nil || read.Atomic {
		return ErrUnsolicited
	}
	done := r.tagged.done
	left := read.Size - done
	if a.Len > 0 {
		switch {
		case a.STag != read.SinkSTag:
			return ErrResponseSTag
		case a.TO != read.SinkTO+uint64(done):
			return ErrResponseTO
		case uint64(a.Len) > uint64(left):
			return ErrResponseLong
		}
	}
	if a.Last && uint64(a.Len) != uint64(left) {
		return ErrResponseEnd
	}
	a.Kind = PlaceReadResponse
	a.MO = done
	a.Read = *read
	return nil
}

func (r *Receiver) beginTagged(a *Action) error {
	if r.tagged.open && r.tagged.op != a.Opcode {
		return ErrOpcodeChanged
	}
	a.First = !r.tagged.open
	return nil
}

// Commit advances the state past the segment for which Begin returned a. Call it after the CRC of
// the FPDU has been verified and the action has been done. Also push a Read or Atomic Request to
// the inbound queue. For an Atomic Response or the last segment of a Read Response, Commit frees
// the place of the answered request.
//
// Commit each action once, before the next one. Anything else is a bug of the caller and panics.
func (r *Receiver) Commit(a *Action) {
	if a.Kind == Drop {
		return
	}
	if a.seq != r.seq {
		panic("rdmap: Commit of an Action that is not the receiver's current one")
	}
	r.seq++
	switch a.Kind {
	case PlaceSend, TakeImmediate:
		r.send.Commit(a.Last, a.Len)
		r.sendOp, r.afterWrite = a.Opcode, false
	case TakeReadRequest, TakeAtomicRequest:
		r.read.Commit(a.Last, a.Len)
		r.afterWrite = false
	case TakeAtomicResponse:
		r.atomic.Commit(a.Last, a.Len)
		r.out.Pop()
	case TakeTerminate:
		r.term.Commit(a.Last, a.Len)
		r.End()
	case PlaceWrite, PlaceReadResponse:
		r.commitTagged(a)
	}
}

func (r *Receiver) commitTagged(a *Action) {
	if a.Last {
		if a.Kind == PlaceReadResponse {
			r.out.Pop()
		} else {
			r.endWrite(a.Len)
		}
		r.tagged = taggedMessage{}
		return
	}
	r.tagged.open = true
	r.tagged.op = a.Opcode
	if a.Len > 0 {
		r.tagged.placed = true
		r.tagged.stag = a.STag
	}
	r.tagged.done += uint32(a.Len)
}

// End ends the stream from this side: every further segment is dropped. Call it when an error was
// found and a Terminate will be sent.
//
//rfc:5041 DDP-7.1-03 Segments after an error dropped silently
//rfc:5040 RDMAP-7.1-4-01 First error wins
func (r *Receiver) End() { r.ended, r.general = true, true }

// Ended reports whether a Terminate was committed or End was called.
func (r *Receiver) Ended() bool { return r.ended }

// SendMSN returns the MSN of the unfinished Send message, or of the next one if there is none; open
// reports which.
func (r *Receiver) SendMSN() (msn uint32, open bool) { return r.send.MSN(), r.send.Open() }

// MidMessage reports whether a message of any kind is unfinished: a stream that
// ends there was cut off.
func (r *Receiver) MidMessage() bool { return r.send.Open() || r.tagged.open }
