package rdmap

import (
	"fmt"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// Kind is what an [Action] asks for.
type Kind uint8

// The kinds of actions.
const (
	// Drop: the stream has ended; the segment is to be ignored without a word
	// (RFC 5041 section 7.1).
	Drop Kind = iota
	// PlaceSend: the payload goes to offset MO of the receive buffer that the
	// message consumes. With First a buffer is taken, and ddp.CheckUntagged
	// decides about it; with Last the message is delivered.
	PlaceSend
	// PlaceWrite: the payload goes to offset TO of the buffer STag, if
	// ddp.CheckTagged allows. Nothing is delivered.
	PlaceWrite
	// TakeReadRequest: the payload is a [ReadRequest], for ParseReadRequest; push
	// it to the [InboundReads].
	TakeReadRequest
	// PlaceReadResponse: the payload goes to offset MO of the sink buffer of
	// Read, if that is still registered: ddp.CheckTagged. With Last the Read is
	// complete.
	PlaceReadResponse
	// TakeTerminate: the payload is a [Terminate], for ParseTerminate. Nothing
	// more is to be expected from the peer.
	TakeTerminate
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
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Action says what to do with one segment. It is a value; nothing in it refers
// to the receiver.
type Action struct {
	Kind   Kind
	Opcode Opcode
	First  bool // the segment is the first of its message
	Last   bool // the segment is the last of its message: deliver after Commit
	Len    int  // octets of payload

	MSN uint32 // untagged: sequence number of the message
	MO  uint32 // octets of the message before this segment

	STag uint32 // tagged: as in the header
	TO   uint64 // tagged: as in the header

	Invalidate uint32 // the STag to invalidate on delivery, if Opcode.Invalidates

	Read OutstandingRead // PlaceReadResponse: the Read that is answered

	seq uint64
}

// Receiver is the receive side of one RDMAP stream: it validates each segment as
// far as that needs no knowledge of memory, and says what to do with it. See the
// package comment for the sequence of calls.
//
// Begin changes nothing, so that an FPDU whose CRC turns out wrong leaves no
// trace; Commit moves the state on. A Receiver is used by one goroutine at a
// time.
type Receiver struct {
	send   ddp.UntaggedQueue
	read   ddp.UntaggedQueue
	term   ddp.UntaggedQueue
	sendOp Opcode // opcode of the unfinished Send message

	tagged taggedMessage

	in  *InboundReads
	out *OutstandingReads

	seq   uint64 // counts commits
	ended bool
}

// taggedMessage is the unfinished tagged message: there is at most one, because
// DDP sends messages one after the other (RFC 5041 section 5.3).
type taggedMessage struct {
	open   bool
	placed bool // stag is that of a segment with payload
	op     Opcode
	stag   uint32
	done   uint32 // octets of a Read Response that were committed
}

// ReceiverConfig is what a [Receiver] works with.
type ReceiverConfig struct {
	// Inbound bounds the Read Requests that the peer may have unanswered. The
	// receiver looks at it; the engine pushes to it.
	Inbound *InboundReads
	// Outstanding holds the Reads that the peer's responses must answer. The
	// receiver matches and pops; the engine pushes to it.
	Outstanding *OutstandingReads

	// FirstSendMSN and FirstReadMSN are the first MSN of the queues for Send and
	// Read Request, for tests of the wrap at 2^32. Nil is 1.
	FirstSendMSN, FirstReadMSN *uint32
}

// NewReceiver returns the receiver of a stream on which nothing has arrived. A
// nil Inbound or Outstanding stands for one without places.
func NewReceiver(c ReceiverConfig) *Receiver {
	if c.Inbound == nil {
		c.Inbound = NewInboundReads(0)
	}
	if c.Outstanding == nil {
		c.Outstanding = NewOutstandingReads(0)
	}
	return &Receiver{
		send: ddp.NewUntaggedQueue(QNSend, firstMSN(c.FirstSendMSN)),
		read: ddp.NewUntaggedQueue(QNReadRequest, firstMSN(c.FirstReadMSN)),
		term: ddp.NewUntaggedQueue(QNTerminate, ddp.FirstMSN),
		in:   c.Inbound,
		out:  c.Outstanding,
	}
}

func firstMSN(msn *uint32) uint32 {
	if msn == nil {
		return ddp.FirstMSN
	}
	return *msn
}

// Begin validates a segment with header h and payloadLen octets of payload, and
// says what to do with it. It changes nothing: the same segment may be begun
// again, and one that is never committed was never there.
//
// The error is a package variable of this package or of ddp, of type
// *iwarp.Error; it is what the Terminate for the segment reports. DDP's version
// is checked first, then RDMAP's, the opcode, the buffer model, and then what the
// message type demands.
//
//rfc:5040 RDMAP-7.2-01
//rfc:5040 RDMAP-7.2-02
//rfc:5040 RDMAP-7.2-04
//rfc:5040 RDMAP-4.1-08
//rfc:5040 RDMAP-4.1-12
//rfc:5041 DDP-4.1-03
//rfc:5041 DDP-4.1-10
//rfc:5041 DDP-7.1-03
func (r *Receiver) Begin(h *ddp.Header, payloadLen int) (a Action, err error) {
	if r.ended {
		return Action{Kind: Drop, Len: payloadLen}, nil
	}
	if payloadLen < 0 {
		return Action{}, ddp.ErrShortSegment
	}
	if err := ddp.CheckVersion(h); err != nil {
		return Action{}, err
	}
	c := ParseControl(h.ULPCtl)
	switch {
	case c.Version != Version:
		return Action{}, ErrVersion
	case !c.Opcode.Defined():
		return Action{}, ErrReservedOpcode
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
	default:
		err = r.beginSend(&a, h)
	}
	if err != nil {
		return Action{}, err
	}
	return a, nil
}

// beginSend passes a segment of a Send message that continues its queue. A
// change of opcode within a message is refused: which of the two it is decides
// about events and invalidation.
//
//rfc:5040 RDMAP-7.2-03
//rfc:5040 RDMAP-4.1-10
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

// beginReadRequest passes a Read Request, whose message is its header and
// nothing else. The queue has as many buffers as the IRD, so one request more is
// one for which there is no buffer.
//
//rfc:5040 RDMAP-4.2-02
//rfc:5040 RDMAP-5.2.1-02
//rfc:5040 RDMAP-5.2.1-11
//rfc:5040 RDMAP-6.1-05
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

// beginTerminate passes the one Terminate of a stream, cut short or not.
//
//rfc:5040 RDMAP-5.4-03
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

// beginWrite passes a Write segment. Segments may come in any TO order; each is
// checked by itself against the STag table, but all with payload must name the
// same buffer.
//
//rfc:5041 DDP-4.2-07
//rfc:5041 DDP-4.2-08
//rfc:5041 DDP-5.3-03
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

// beginReadResponse passes a segment that continues the response to the oldest
// outstanding Read, and ends it exactly where the Read ends. STag and TO of a
// segment without payload count for nothing.
//
//rfc:5040 RDMAP-5.2.2-05
//rfc:5040 RDMAP-5.2.2-06
//rfc:5041 DDP-5.2-09
//rfc:5041 DDP-5.2-10
func (r *Receiver) beginReadResponse(a *Action) error {
	if err := r.beginTagged(a); err != nil {
		return err
	}
	read := r.out.Front()
	if read == nil {
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

// Commit moves the state past the segment for which Begin returned a, once its
// FPDU is proven good and what a asks for was done. With a Read Request, push it
// to the inbound queue too; with the last segment of a Read Response, Commit
// frees the Read's place.
//
// An action is committed once and before the next one is; anything else is a
// fault of the caller and panics.
func (r *Receiver) Commit(a *Action) {
	if a.Kind == Drop {
		return
	}
	if a.seq != r.seq {
		panic("rdmap: Commit of an Action that is not the receiver's current one")
	}
	r.seq++
	switch a.Kind {
	case PlaceSend:
		r.send.Commit(a.Last, a.Len)
		r.sendOp = a.Opcode
	case TakeReadRequest:
		r.read.Commit(a.Last, a.Len)
	case TakeTerminate:
		r.term.Commit(a.Last, a.Len)
		r.ended = true
	case PlaceWrite, PlaceReadResponse:
		r.commitTagged(a)
	}
}

func (r *Receiver) commitTagged(a *Action) {
	if a.Last {
		r.tagged = taggedMessage{}
		if a.Kind == PlaceReadResponse {
			r.out.Pop()
		}
		return
	}
	r.tagged.open = true
	r.tagged.op = a.Opcode
	if a.Len > 0 {
		r.tagged.placed = true
		r.tagged.stag = a.STag
	}
	if a.Kind == PlaceReadResponse {
		r.tagged.done += uint32(a.Len)
	}
}

// End ends the stream from this side: every further segment is dropped. It is
// for when an error was found and a Terminate is to be sent.
//
//rfc:5041 DDP-7.1-03
//rfc:5040 RDMAP-7.1-4-01
func (r *Receiver) End() { r.ended = true }

// Ended reports whether a Terminate was committed or End was called.
func (r *Receiver) Ended() bool { return r.ended }

// SendMSN returns the MSN of the Send message that is unfinished or comes next,
// and whether it is unfinished.
func (r *Receiver) SendMSN() (msn uint32, open bool) { return r.send.MSN(), r.send.Open() }

// MidMessage reports whether a message of any kind is unfinished: a stream that
// ends there was cut off.
func (r *Receiver) MidMessage() bool { return r.send.Open() || r.tagged.open }
