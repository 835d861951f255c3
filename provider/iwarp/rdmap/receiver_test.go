package rdmap

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// stream is a receiver whose peer is the test.
type stream struct {
	t   *testing.T
	r   *Receiver
	in  *InboundReads
	out *OutstandingReads
}

func newStream(t *testing.T, ird, ord int) *stream {
	in, out := NewInboundReads(ird), NewOutstandingReads(ord)
	return &stream{t: t, r: NewReceiver(ReceiverConfig{Inbound: in, Outstanding: out}), in: in, out: out}
}

// begin runs Begin and fails the test if that changed anything.
func (s *stream) begin(story string, h ddp.Header, n int) (Action, error) {
	s.t.Helper()
	before, inLen, outLen := *s.r, s.in.Len(), s.out.Len()
	a, err := s.r.Begin(&h, n)
	if *s.r != before || s.in.Len() != inLen || s.out.Len() != outLen {
		s.t.Errorf("%s: Begin changed the receiver", story)
	}
	return a, err
}

// want sends a good segment: its action must be the given one, and is committed.
func (s *stream) want(story string, h ddp.Header, n int, want Action) {
	s.t.Helper()
	a, err := s.begin(story, h, n)
	if err != nil {
		s.t.Fatalf("%s: refused: %v", story, err)
	}
	got := a
	got.seq = 0
	want.Len, want.Last = n, h.Last
	want.STag, want.TO, want.MSN = h.STag, h.TO, h.MSN
	want.Opcode = ParseControl(h.ULPCtl).Opcode
	if got != want {
		s.t.Fatalf("%s:\n got %+v\nwant %+v", story, got, want)
	}
	s.r.Commit(&a)
}

// refuse sends a bad segment, which must be refused with the code and change nothing.
func (s *stream) refuse(story, code string, h ddp.Header, n int) {
	s.t.Helper()
	if a, err := s.begin(story, h, n); wire(err) != code || a != (Action{}) {
		s.t.Errorf("%s: %+v, %s (%v); want %s", story, a, wire(err), err, code)
	}
}

// with returns h with one thing changed.
func with(h ddp.Header, change func(*ddp.Header)) ddp.Header {
	change(&h)
	return h
}

//rfc:5040 RDMAP-5.3-02 One Send consumes one buffer
//rfc:5040 RDMAP-5.3-04 Sends delivered in order
//rfc:5040 RDMAP-5.3-08 Zero-length Send consumes a buffer
//rfc:5040 RDMAP-7.2-03 Opcode consistent across segments of one message
//rfc:5041 DDP-4.3-09 MSN counters are independent per QN
func TestSendsInOrder(t *testing.T) {
	s := newStream(t, 1, 0)
	first, last := Action{Kind: PlaceSend, First: true}, Action{Kind: PlaceSend}

	s.want("a Send of one segment", SendHeader(OpSend, 0, 1, 0, true), 100, first)
	s.want("a Send without payload consumes a buffer too", SendHeader(OpSend, 0, 2, 0, true), 0, first)
	s.want("a Send of three segments begins", SendHeader(OpSendSE, 0, 3, 0, false), 1482, first)
	if msn, open := s.r.SendMSN(); msn != 3 || !open || !s.r.MidMessage() {
		t.Errorf("MSN %d, open %v; want the middle of message 3", msn, open)
	}
	s.refuse("its opcode may not change", "0/2/06", SendHeader(OpSend, 0, 3, 1482, false), 1482)
	s.refuse("nor its MSN", "1/2/03", SendHeader(OpSendSE, 0, 4, 1482, false), 1482)
	s.refuse("nor may it start again", "1/2/04", SendHeader(OpSendSE, 0, 3, 0, false), 1482)
	second := last
	second.MO = 1482
	s.want("it goes on where it stopped", SendHeader(OpSendSE, 0, 3, 1482, false), 1482, second)
	s.want("a Read Request in between has its own MSN", ReadRequestHeader(1), ReadRequestLen,
		Action{Kind: TakeReadRequest, First: true})
	third := last
	third.MO = 2964
	s.want("it ends", SendHeader(OpSendSE, 0, 3, 2964, true), 1, third)
	if msn, open := s.r.SendMSN(); msn != 4 || open || s.r.MidMessage() {
		t.Errorf("MSN %d, open %v; want message 4 next", msn, open)
	}
	s.refuse("it can't come twice", "1/2/03", SendHeader(OpSendSE, 0, 3, 0, true), 1)
}

//rfc:5040 RDMAP-4.1-02 RsvdULP octets 2-5 are the Invalidate STag
//rfc:5040 RDMAP-4.1-10 Invalidate STag ignored where the opcode has none
//rfc:5041 DDP-5.4-04 RsvdULP given on delivery
func TestOnlySendWithInvalidateInvalidates(t *testing.T) {
	s := newStream(t, 0, 0)
	const stag = 0xabcdef01
	for i, op := range []Opcode{OpSend, OpSendInvalidate, OpSendSE, OpSendSEInvalidate} {
		h := SendHeader(op, 0, uint32(i+1), 0, true)
		h.ULP32 = stag
		want := Action{Kind: PlaceSend, First: true}
		if op.Invalidates() {
			want.Invalidate = stag
		}
		s.want(op.String()+" with an STag in the field", h, 1, want)
	}
}

//rfc:5040 RDMAP-5.1-02 Valid Write is not delivered to the sink ULP
//rfc:5040 RDMAP-5.1-03 Write may start at a TO other than zero
//rfc:5040 RDMAP-5.1-06 Zero-length Write allowed, not STag-checked
//rfc:5041 DDP-4.2-07 STag that changes within a message: refused or validated
//rfc:5041 DDP-4.2-08 Message may start at any TO
//rfc:5041 DDP-5.3-03 Sink copes with tagged segments in non-rising TO order
//rfc:5041 DDP-5.3-07 Interleaving of an untagged and a tagged message is legal
func TestWritesAmongSends(t *testing.T) {
	s := newStream(t, 0, 1)
	s.out.Push(OutstandingRead{SinkSTag: 5, SinkTO: 0, Size: 10})
	first, more := Action{Kind: PlaceWrite, First: true}, Action{Kind: PlaceWrite}

	s.want("a Write of one segment", WriteHeader(0x100, 7, true), 64, first)
	s.want("a Write of several segments begins", WriteHeader(0x100, 5000, false), 1486, first)
	s.want("a Send begins while it is unfinished", SendHeader(OpSend, 0, 1, 0, false), 10, Action{Kind: PlaceSend, First: true})
	s.refuse("another buffer in the same Write", "1/1/00", WriteHeader(0x200, 6486, false), 1486)
	s.refuse("a Read Response inside it", "0/2/06", ReadResponseHeader(5, 0, true), 10)
	s.want("an empty segment may name any buffer", WriteHeader(0xffffffff, math.MaxUint64, false), 0, more)
	s.want("its segments may come in any TO order", WriteHeader(0x100, 0, false), 1486, more)
	s.want("the Send ends", SendHeader(OpSend, 0, 1, 10, true), 10, Action{Kind: PlaceSend, MO: 10})
	s.want("the Write ends", WriteHeader(0x100, 2000, true), 3, more)
	s.want("an empty Write names no buffer", WriteHeader(0, math.MaxUint64, true), 0, first)
	s.want("an empty segment begins a Write", WriteHeader(0x300, 0, false), 0, first)
	s.want("the first octets decide on its buffer", WriteHeader(0x400, 0, false), 1, more)
	s.refuse("then it stays", "1/1/00", WriteHeader(0x300, 0, false), 1)
	s.want("the Write ends without octets", WriteHeader(0, 0, true), 0, more)
	s.want("the next may write elsewhere", WriteHeader(0x300, 0, true), 1, first)
	if s.r.MidMessage() {
		t.Error("a message is unfinished")
	}
}

//rfc:5040 RDMAP-4.2-02 No ULP payload after ReadReq/Terminate headers
//rfc:5040 RDMAP-5.2.1-02 ReadReq consumes one buffer of QN 1
//rfc:5040 RDMAP-5.2.1-11 ReadReq must be one segment (L=1, MO=0)
//rfc:5040 RDMAP-6.1-05 Inbound reads above IRD are refused
func TestReadRequestsUpToIRD(t *testing.T) {
	s := newStream(t, 2, 0)
	take := Action{Kind: TakeReadRequest, First: true}
	s.want("a Read Request", ReadRequestHeader(1), 28, take)
	s.in.Push(InboundRead{MSN: 1})
	s.refuse("one octet short", "0/2/ff", ReadRequestHeader(2), 27)
	s.refuse("without its header", "0/2/ff", ReadRequestHeader(2), 0)
	s.refuse("one octet too long", "1/2/05", ReadRequestHeader(2), 29)
	s.refuse("in two segments", "1/2/05", with(ReadRequestHeader(2), func(h *ddp.Header) { h.Last = false }), 14)
	s.refuse("whole, but not the last segment", "1/2/05", with(ReadRequestHeader(2), func(h *ddp.Header) { h.Last = false }), 28)
	s.refuse("its second half", "1/2/04", with(ReadRequestHeader(2), func(h *ddp.Header) { h.MO = 14 }), 14)
	s.refuse("on the queue of Sends", "1/2/01", with(ReadRequestHeader(2), func(h *ddp.Header) { h.QN = 0 }), 28)
	s.refuse("out of turn", "1/2/03", ReadRequestHeader(3), 28)
	s.want("the second", ReadRequestHeader(2), 28, take)
	s.in.Push(InboundRead{MSN: 2})
	s.refuse("one more than the IRD", "1/2/02", ReadRequestHeader(3), 28)
	s.in.Pop()
	s.want("once a response is out there is a place", ReadRequestHeader(3), 28, take)
}

func TestNoReadsWithoutIRD(t *testing.T) {
	r := NewReceiver(ReceiverConfig{})
	h := ReadRequestHeader(1)
	if _, err := r.Begin(&h, 28); wire(err) != "1/2/02" {
		t.Errorf("%v, want 1/2/02", err)
	}
	h = ReadResponseHeader(1, 0, true)
	if _, err := r.Begin(&h, 28); wire(err) != "0/2/06" {
		t.Errorf("%v, want 0/2/06", err)
	}
}

//rfc:5040 RDMAP-5.2.2-03 Response delivered to ULP
//rfc:5040 RDMAP-5.2.2-05 Sink may check STag/TO/length against the request
//rfc:5040 RDMAP-5.2.2-06 Unsolicited Response must not place data
//rfc:5040 RDMAP-5.5-20-01 Multiple reads: Responses in request order
//rfc:5041 DDP-5.2-09 STag/TO not checked for zero-length tagged message
//rfc:5041 DDP-4.2-04 RsvdULP given to ULP on delivery
//rfc:5040 RDMAP-5.5-11-01 Responses delivered in DDP delivery order
func TestReadResponsesAnswerReads(t *testing.T) {
	s := newStream(t, 0, 3)
	s.refuse("a response nobody asked for", "0/2/06", ReadResponseHeader(1, 0, true), 10)

	a := OutstandingRead{SinkSTag: 0xa00, SinkTO: 1000, Size: 3000, Cookie: 1}
	b := OutstandingRead{SinkSTag: 0xb00, SinkTO: 0, Size: 0, Cookie: 2}
	c := OutstandingRead{SinkSTag: 0xc00, SinkTO: math.MaxUint64 - 9, Size: 9, Cookie: 3}
	for _, read := range []OutstandingRead{a, b, c} {
		if !s.out.Push(read) {
			t.Fatal("no place for a Read")
		}
	}
	s.refuse("the second Read's response first", "1/1/00", ReadResponseHeader(0xc00, math.MaxUint64-9, true), 9)
	s.refuse("another buffer", "1/1/00", ReadResponseHeader(0xa01, 1000, false), 1486)
	s.refuse("another place in the buffer", "1/1/01", ReadResponseHeader(0xa00, 999, false), 1486)
	s.refuse("too much at once", "1/1/01", ReadResponseHeader(0xa00, 1000, true), 3001)
	s.refuse("too little", "1/1/01", ReadResponseHeader(0xa00, 1000, true), 2999)
	s.refuse("nothing at all", "1/1/01", ReadResponseHeader(0xa00, 1000, true), 0)

	s.want("the first segment", ReadResponseHeader(0xa00, 1000, false), 1486, Action{Kind: PlaceReadResponse, First: true, Read: a})
	if !s.r.MidMessage() {
		t.Error("the response is unfinished")
	}
	s.refuse("the same again", "1/1/01", ReadResponseHeader(0xa00, 1000, false), 1486)
	s.refuse("a gap", "1/1/01", ReadResponseHeader(0xa00, 2487, false), 1486)
	s.refuse("a Write inside the response", "0/2/06", WriteHeader(0xa00, 2486, true), 10)
	s.refuse("the next Read's response before this one's end", "1/1/00", ReadResponseHeader(0xc00, 2486, true), 9)
	s.want("an empty segment", ReadResponseHeader(0, 0, false), 0, Action{Kind: PlaceReadResponse, MO: 1486, Read: a})
	s.want("a Send in between", SendHeader(OpSend, 0, 1, 0, true), 5, Action{Kind: PlaceSend, First: true})
	s.want("the second segment", ReadResponseHeader(0xa00, 2486, false), 1486, Action{Kind: PlaceReadResponse, MO: 1486, Read: a})
	s.refuse("one octet too many", "1/1/01", ReadResponseHeader(0xa00, 3972, true), 29)
	s.refuse("one octet missing at the end", "1/1/01", ReadResponseHeader(0xa00, 3972, true), 27)
	if s.out.Len() != 3 {
		t.Errorf("%d Reads outstanding, want all 3 until a response is whole", s.out.Len())
	}
	s.want("the last segment", ReadResponseHeader(0xa00, 3972, true), 28, Action{Kind: PlaceReadResponse, MO: 2972, Read: a})
	if s.out.Len() != 2 || s.r.MidMessage() {
		t.Errorf("%d Reads outstanding, want 2", s.out.Len())
	}

	s.refuse("octets for an empty Read", "1/1/01", ReadResponseHeader(0xb00, 0, true), 1)
	s.want("an empty response, whose STag and TO do not count", ReadResponseHeader(0xffffffff, math.MaxUint64, true), 0,
		Action{Kind: PlaceReadResponse, First: true, Read: b})

	s.want("all octets, but not the last segment", ReadResponseHeader(0xc00, math.MaxUint64-9, false), 9,
		Action{Kind: PlaceReadResponse, First: true, Read: c})
	s.refuse("no octet may follow", "1/1/01", ReadResponseHeader(0xc00, math.MaxUint64, true), 1)
	s.refuse("not even in a segment that is not the last", "1/1/01", ReadResponseHeader(0xc00, math.MaxUint64, false), 1)
	s.want("an empty last segment", ReadResponseHeader(0, 0, true), 0, Action{Kind: PlaceReadResponse, MO: 9, Read: c})
	s.refuse("all Reads are answered", "0/2/06", ReadResponseHeader(0xc00, 0, true), 0)
}

//rfc:5040 RDMAP-5.4-03 Terminate consumes one buffer; placement of one guaranteed
//rfc:5040 RDMAP-5.4-04 Terminate delivered to RDMAP and to the ULP
//rfc:5041 DDP-7.1-03 Segments after an error dropped silently
func TestTerminateEndsTheStream(t *testing.T) {
	s := newStream(t, 1, 1)
	s.want("a Send begins", SendHeader(OpSend, 0, 1, 0, false), 10, Action{Kind: PlaceSend, First: true})
	s.refuse("a Terminate on another queue", "1/2/01", with(TerminateHeader(), func(h *ddp.Header) { h.QN = 0 }), 4)
	s.refuse("a second Terminate", "1/2/03", with(TerminateHeader(), func(h *ddp.Header) { h.MSN = 2 }), 4)
	s.refuse("the second half of one", "1/2/04", with(TerminateHeader(), func(h *ddp.Header) { h.MO = 4 }), 4)
	s.refuse("the first half of one", "1/2/05", with(TerminateHeader(), func(h *ddp.Header) { h.Last = false }), 4)
	s.refuse("one without a control field", "0/2/ff", TerminateHeader(), 3)
	s.refuse("one longer than any", "1/2/05", TerminateHeader(), MaxTerminateLen+1)
	s.want("a Terminate, in the middle of the Send", TerminateHeader(), MaxTerminateLen, Action{Kind: TakeTerminate, First: true})
	if !s.r.Ended() {
		t.Error("the stream goes on")
	}
	for _, h := range []ddp.Header{SendHeader(OpSend, 0, 1, 10, true), {}, TerminateHeader()} {
		if a, err := s.begin("whatever comes then is dropped", h, 10); err != nil || a.Kind != Drop {
			t.Errorf("after a Terminate: %+v, %v", a, err)
		} else {
			s.r.Commit(&a)
		}
	}
}

//rfc:5041 DDP-7.1-03 Segments after an error dropped silently
//rfc:5040 RDMAP-7.1-4-01 First error wins
func TestEndDropsEverything(t *testing.T) {
	s := newStream(t, 1, 1)
	s.refuse("the first error", "1/2/03", SendHeader(OpSend, 0, 9, 0, true), 10)
	s.r.End()
	if a, err := s.begin("a second error is none", SendHeader(OpSend, 0, 9, 0, true), 10); err != nil || a.Kind != Drop || a.Len != 10 {
		t.Errorf("%+v, %v", a, err)
	}
}

// One wrong field at a time, in an otherwise good segment of each kind.
//
//rfc:5040 RDMAP-4.1-08 Rsv bits ignored on receive
//rfc:5040 RDMAP-4.1-12 Reserved opcodes 8-15 rejected when extensions off
//rfc:5040 RDMAP-7.2-01 DDP fields validated on every message
//rfc:5040 RDMAP-7.2-02 Opcode valid
//rfc:5040 RDMAP-7.2-04 RV valid
//rfc:5041 DDP-4.1-03 T flag must agree with the opcode's buffer model
//rfc:5041 DDP-4.1-10 Reserved bits not checked on receive
//rfc:5041 DDP-4.1-13 Unknown DV, tagged: error 1/1/0x04
//rfc:5041 DDP-4.1-14 Unknown DV, untagged: error 1/2/0x06
//rfc:5041 DDP-7.1u1-01 Untagged: QN valid
//rfc:5041 DDP-7.1u3-01 Untagged: MO within buffer
//rfc:5041 DDP-7.1u5-01 Untagged: MSN in legal range
func TestOneWrongField(t *testing.T) {
	good := []struct {
		h ddp.Header
		n int
	}{
		{WriteHeader(1, 2, true), 100},
		{ReadRequestHeader(1), 28},
		{ReadResponseHeader(0xa, 0xb, true), 12},
		{SendHeader(OpSend, 0, 1, 0, true), 100},
		{SendHeader(OpSendInvalidate, 9, 1, 0, true), 100},
		{SendHeader(OpSendSE, 0, 1, 0, true), 100},
		{SendHeader(OpSendSEInvalidate, 9, 1, 0, true), 100},
		{TerminateHeader(), 4},
	}
	either := func(tagged bool, yes, no string) string {
		if tagged {
			return yes
		}
		return no
	}
	for _, g := range good {
		op := ParseControl(g.h.ULPCtl).Opcode
		s := newStream(t, 1, 1)
		s.out.Push(OutstandingRead{SinkSTag: 0xa, SinkTO: 0xb, Size: 12})
		untagged := func(code string) string { return either(op.Tagged(), "ok", code) }
		for _, tt := range []struct {
			field  string
			change func(*ddp.Header)
			want   string
		}{
			{"nothing", func(*ddp.Header) {}, "ok"},
			{"DV 0", func(h *ddp.Header) { h.Version = 0 }, either(op.Tagged(), "1/1/04", "1/2/06")},
			{"DV 2", func(h *ddp.Header) { h.Version = 2 }, either(op.Tagged(), "1/1/04", "1/2/06")},
			{"DV 3", func(h *ddp.Header) { h.Version = 3 }, either(op.Tagged(), "1/1/04", "1/2/06")},
			{"RV 0", func(h *ddp.Header) { h.ULPCtl &= 0x3f }, "0/2/05"},
			{"RV 2", func(h *ddp.Header) { h.ULPCtl ^= 0xc0 }, "0/2/05"},
			{"RV 3", func(h *ddp.Header) { h.ULPCtl |= 0xc0 }, "0/2/05"},
			{"DDP reserved bits", func(h *ddp.Header) { h.Reserved = 0xf }, "ok"},
			{"RDMAP reserved bits", func(h *ddp.Header) { h.ULPCtl |= 0x30 }, "ok"},
			{"a reserved opcode", func(h *ddp.Header) { h.ULPCtl |= 0x08 }, "0/2/06"},
			{"the other T bit", func(h *ddp.Header) { h.Tagged = !h.Tagged }, "0/2/06"},
			{"QN 3", func(h *ddp.Header) { h.QN = 3 }, untagged("1/2/01")},
			{"the next QN", func(h *ddp.Header) { h.QN = (h.QN + 1) % 3 }, untagged("1/2/01")},
			{"the last QN", func(h *ddp.Header) { h.QN = math.MaxUint32 }, untagged("1/2/01")},
			{"MSN 0", func(h *ddp.Header) { h.MSN = 0 }, untagged("1/2/03")},
			{"MSN 2", func(h *ddp.Header) { h.MSN = 2 }, untagged("1/2/03")},
			{"MSN 2^31 + 1", func(h *ddp.Header) { h.MSN = 1<<31 + 1 }, untagged("1/2/03")},
			{"MO 1", func(h *ddp.Header) { h.MO = 1 }, untagged("1/2/04")},
			{"MO 2^32 - 1", func(h *ddp.Header) { h.MO = math.MaxUint32 }, untagged("1/2/04")},
		} {
			_, err := s.begin(tt.field, with(g.h, tt.change), g.n)
			if got := wire(err); got != tt.want {
				t.Errorf("%v with %s: %s, want %s", op, tt.field, got, tt.want)
			}
		}
	}
}

// Of several errors in one segment the first in the documented order is returned.
func TestOrderOfChecks(t *testing.T) {
	s := newStream(t, 0, 0)
	h := ddp.Header{Tagged: true, ULPCtl: 0x8f, QN: 9, MSN: 9, MO: 9}
	s.refuse("DV before all", "1/1/04", h, 0)
	h.Version = 1
	s.refuse("then RV", "0/2/05", h, 0)
	h.ULPCtl = 0x4f
	s.refuse("then the opcode", "0/2/06", h, 0)
	h.ULPCtl = 0x41
	s.refuse("then the T bit", "0/2/06", h, 0)
	h.Tagged = false
	s.refuse("then QN", "1/2/01", h, 0)
	h.QN = 1
	s.refuse("then MSN", "1/2/03", h, 0)
	h.MSN = 1
	s.refuse("then MO", "1/2/04", h, 0)
	h.MO = 0
	s.refuse("then a place in the queue", "1/2/02", h, 0)
}

//rfc:5041 DDP-4.3-07 MSN wraps 0xFFFFFFFF to 0
func TestReceiverWrapsMSN(t *testing.T) {
	last := uint32(math.MaxUint32)
	in := NewInboundReads(4)
	r := NewReceiver(ReceiverConfig{Inbound: in, FirstSendMSN: &last, FirstReadMSN: &last})
	s := &stream{t: t, r: r, in: in, out: NewOutstandingReads(0)}
	s.want("the Send before the wrap", SendHeader(OpSend, 0, last, 0, true), 1, Action{Kind: PlaceSend, First: true})
	s.want("the Send after it", SendHeader(OpSend, 0, 0, 0, true), 1, Action{Kind: PlaceSend, First: true})
	s.want("the Read Request before the wrap", ReadRequestHeader(last), 28, Action{Kind: TakeReadRequest, First: true})
	s.want("the Read Request after it", ReadRequestHeader(0), 28, Action{Kind: TakeReadRequest, First: true})
}

// An FPDU with a wrong CRC is not committed, so the next segment meets the previous state.
func TestUncommittedSegmentLeavesNoTrace(t *testing.T) {
	s := newStream(t, 1, 1)
	s.out.Push(OutstandingRead{SinkSTag: 1, SinkTO: 0, Size: 10})
	for _, g := range []struct {
		h ddp.Header
		n int
	}{
		{SendHeader(OpSend, 0, 1, 0, true), 10},
		{WriteHeader(1, 0, false), 10},
		{ReadResponseHeader(1, 0, true), 10},
		{ReadRequestHeader(1), 28},
		{TerminateHeader(), 4},
	} {
		a, err := s.begin("begun", g.h, g.n)
		b, err2 := s.begin("begun again", g.h, g.n)
		if err != nil || err2 != nil || a != b {
			t.Errorf("%+v: %+v, %v and then %+v, %v", g.h, a, err, b, err2)
		}
	}
}

// Committing an action that is not the current one is a bug of the engine, not a fault of the peer.
func TestCommitTwicePanics(t *testing.T) {
	s := newStream(t, 0, 0)
	h := SendHeader(OpSend, 0, 1, 0, true)
	a, err := s.r.Begin(&h, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.r.Commit(&a)
	defer func() {
		if recover() == nil {
			t.Error("the second Commit of the same action was taken")
		}
	}()
	s.r.Commit(&a)
}

func TestNegativeLength(t *testing.T) {
	s := newStream(t, 0, 0)
	s.refuse("a payload of minus one octet", "2/0/03", SendHeader(OpSend, 0, 1, 0, true), -1)
}

func TestReceiverAllocatesNothing(t *testing.T) {
	in, out := NewInboundReads(2), NewOutstandingReads(2)
	r := NewReceiver(ReceiverConfig{Inbound: in, Outstanding: out})
	msn, readMSN := uint32(1), uint32(1)
	step := func(h ddp.Header, n int) {
		a, err := r.Begin(&h, n)
		if err != nil {
			t.Fatal(err)
		}
		r.Commit(&a)
	}
	n := testing.AllocsPerRun(100, func() {
		step(SendHeader(OpSend, 0, msn, 0, false), 1000)
		step(WriteHeader(7, 7, true), 1000)
		step(SendHeader(OpSend, 0, msn, 1000, true), 1000)
		msn++
		out.Push(OutstandingRead{SinkSTag: 1, SinkTO: 2, Size: 3})
		step(ReadResponseHeader(1, 2, true), 3)
		step(ReadRequestHeader(readMSN), ReadRequestLen)
		in.Push(InboundRead{MSN: readMSN})
		in.Pop()
		readMSN++
		bad := SendHeader(OpSend, 0, msn+1, 0, true)
		if _, err := r.Begin(&bad, 10); err == nil {
			t.Fatal("a wrong MSN was taken")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestKindNames(t *testing.T) {
	for k, want := range map[Kind]string{
		Drop: "Drop", PlaceSend: "PlaceSend", PlaceWrite: "PlaceWrite", TakeReadRequest: "TakeReadRequest",
		PlaceReadResponse: "PlaceReadResponse", TakeTerminate: "TakeTerminate", 99: "kind 99",
	} {
		if k.String() != want {
			t.Errorf("%q, want %q", k, want)
		}
	}
}

// TestShortPathsAgreeWithBegin: with any octet of the header changed, WholeSend, BeginWrite and
// MidResponse accept a ULPDU exactly if Begin returns the same for it.
//
//rfc:5040 RDMAP-7.2-01 DDP fields validated on every message
//rfc:5040 RDMAP-7.2-04 RV valid
func TestShortPathsAgreeWithBegin(t *testing.T) {
	out := NewOutstandingReads(1)
	out.Push(OutstandingRead{SinkSTag: 0x1234, SinkTO: 0x5678, Size: 7, Cookie: 5})
	r := NewReceiver(ReceiverConfig{Outstanding: out})
	send := ddp.Header{Last: true, Version: ddp.Version, MSN: 1}
	send.ULPCtl = Control{Version: Version, Opcode: OpSend}.Octet()
	write := ddp.Header{Tagged: true, Last: true, Version: ddp.Version, STag: 0x1234, TO: 0x5678}
	write.ULPCtl = Control{Version: Version, Opcode: OpWrite}.Octet()
	response := ReadResponseHeader(0x1234, 0x5678, false)
	taken := map[string]int{}
	for _, good := range []ddp.Header{send, write, response} {
		for at := range good.Len() {
			for change := range 256 {
				ulpdu := append(good.AppendTo(nil), "payload"...)
				ulpdu[at] ^= byte(change)
				h, payload, err := ddp.Parse(ulpdu)
				var a Action
				if err == nil {
					a, err = r.Begin(&h, len(payload))
				}
				_, op, whole := r.WholeSend(ulpdu)
				if want := err == nil && a.Kind == PlaceSend && a.First && a.Last &&
					!a.Opcode.Invalidates(); whole != want || whole && op != a.Opcode {
					t.Errorf("octet %d of %+v changed by %#02x: WholeSend %v, Begin %+v, %v", at, good, change,
						whole, a, err)
				}
				g, _, begun := r.BeginWrite(ulpdu)
				if want := err == nil && a.Kind == PlaceWrite && a.Len > 0; begun != want || begun &&
					(g.STag != a.STag || g.TO != a.TO || g.Last != a.Last) {
					t.Errorf("octet %d of %+v changed by %#02x: BeginWrite %+v, %v, Begin %+v, %v", at, good,
						change, g, begun, a, err)
				}
				cookie, at0, _, mid := r.MidResponse(ulpdu)
				if want := err == nil && a.Kind == PlaceReadResponse && a.Len > 0 && !a.Last; mid != want || mid &&
					(cookie != a.Read.Cookie || at0 != a.MO) {
					t.Errorf("octet %d of %+v changed by %#02x: MidResponse %v, Begin %+v, %v", at, good, change,
						mid, a, err)
				}
				if mid {
					taken["response"]++
				}
				if whole {
					taken["Send"]++
				}
				if begun {
					taken["Write"]++
				}
			}
		}
	}
	if taken["Send"] < 1000 || taken["Write"] < 1000 || taken["response"] < 8 {
		t.Errorf("taken: %v", taken)
	}
}

// wire formats an error as the layer/type/code of its Terminate.
func wire(err error) string {
	if err == nil {
		return "ok"
	}
	var e *iwarp.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	return fmt.Sprintf("%d/%d/%02x", e.Layer, e.EType, e.Code)
}

func hexOf(b []byte) string { return hex.EncodeToString(b) }
