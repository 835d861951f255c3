package rdmap

import (
	"bytes"
	"math"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"pgregory.net/rapid"
)

// The segments of RFC 7306 appendix A, figure by figure and field by field. The
// octets are put together by hand from the figures: DDP control with L and DV 1,
// RDMAP control with RV 1.
//
//rfc:7306 EXT-4.1-01 RV=1 for extension messages
//rfc:7306 EXT-4.1-02 Opcodes 8 Imm, 9 ImmSE, 10 AtomicReq, 11 AtomicResp
//rfc:7306 EXT-4.1-03 Invalidate STag zero on send, ignored on receive
//rfc:7306 EXT-4.1-04 All four untagged: QN 0 (Imm), 1 (AtomicReq), 3 (AtomicResp)
//rfc:7306 EXT-5.2-01 Atomic requests share QN1 MSN space and IRD/ORD with reads
//rfc:7306 EXT-5.2.1-01 Atomic request header of 52 octets, AOpcode layout
//rfc:7306 EXT-5.2.1-02 Atomic request: reserved bits zero, ignored on receive
//rfc:7306 EXT-5.2.1-05 Unused compare fields: data zero, masks ones; ignored
//rfc:7306 EXT-5.2.2-01 Atomic response untagged, QN 3, MSN from 1
//rfc:7306 EXT-5.2.2-02 Atomic response header of 12 octets, as in the figure
//rfc:7306 EXT-6.3-01 Immediate uses untagged QN 0
//rfc:7306 EXT-6.3-04 Exactly 8 octets of immediate data sent
//rfc:7306 EXT-5.2.1-03 Codes FetchAdd 0, CmpSwap 2; all listed codes implemented
func TestExtensionsOfAppendixA(t *testing.T) {
	fetchAdd := FetchAdd(0xa1a2a3a4, 0x11223344, 0x8877665544332211, 0x0102030405060708, 0x8000000080000000)
	cmpSwap := CmpSwap(7, 0x11223344, 0x10, 0xc1c2c3c4c5c6c7c8, 0x5152535455565758, 0xff00ff00ff00ff00, 0x00ffffffffffffff)
	response := AtomicResponse{ID: 0xa1a2a3a4, Original: 0xf1f2f3f4f5f6f7f8}
	for _, tt := range []struct {
		name    string
		h       ddp.Header
		payload []byte
		hex     string
	}{
		{"A.1, FetchAdd", AtomicRequestHeader(9), fetchAdd.AppendTo(nil), `
			41 4a  00000000  00000001 00000009 00000000
			0000000 0  a1a2a3a4  11223344  8877665544332211
			0102030405060708  8000000080000000  0000000000000000  ffffffffffffffff`},
		{"A.1, CmpSwap", AtomicRequestHeader(10), cmpSwap.AppendTo(nil), `
			41 4a  00000000  00000001 0000000a 00000000
			0000000 2  00000007  11223344  0000000000000010
			5152535455565758  00ffffffffffffff  c1c2c3c4c5c6c7c8  ff00ff00ff00ff00`},
		{"A.2, Atomic Response", AtomicResponseHeader(3), response.AppendTo(nil), `
			41 4b  00000000  00000003 00000003 00000000
			a1a2a3a4  f1f2f3f4f5f6f7f8`},
		{"A.3, Immediate Data", ImmediateHeader(false, 5), AppendImmediate(nil, 0x0102030405060708), `
			41 48  00000000  00000000 00000005 00000000
			0102030405060708`},
		{"A.3, Immediate Data with SE", ImmediateHeader(true, 6), AppendImmediate(nil, 1), `
			41 49  00000000  00000000 00000006 00000000
			0000000000000001`},
	} {
		want := testkit.Unhex(t, tt.hex)
		if got := append(tt.h.AppendTo(nil), tt.payload...); !bytes.Equal(got, want) {
			t.Errorf("%s:\n%x, want\n%x", tt.name, got, want)
		}
		h, payload, err := ddp.Parse(want)
		if err != nil || h != tt.h || !bytes.Equal(payload, tt.payload) {
			t.Errorf("%s: parsed %+v, % x, %v", tt.name, h, payload, err)
		}
	}
	if got, err := ParseAtomicRequest(fetchAdd.AppendTo(nil)); err != nil || got != fetchAdd {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := ParseAtomicRequest(cmpSwap.AppendTo(nil)); err != nil || got != cmpSwap {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := ParseAtomicResponse(response.AppendTo(nil)); err != nil || got != response {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := ParseImmediate(AppendImmediate(nil, 0x0102030405060708)); err != nil || got != 0x0102030405060708 {
		t.Errorf("%#x, %v", got, err)
	}
}

// The 28 reserved bits above the operation's four are encoded separately from the operation.
//
//rfc:7306 EXT-5.2.1-02 Atomic request: reserved bits zero, ignored on receive
func TestAtomicReservedBits(t *testing.T) {
	octets := testkit.Unhex(t, "abcdef12 00000001 00000002 0000000000000003 0000000000000004 0000000000000005 0000000000000006 0000000000000007")
	want := AtomicRequest{Reserved: 0xabcdef1, Op: AtomicCmpSwap, ID: 1, STag: 2, TO: 3, Data: 4, Mask: 5, Compare: 6, CompareMask: 7}
	got, err := ParseAtomicRequest(octets)
	if err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if again := got.AppendTo(nil); !bytes.Equal(again, octets) {
		t.Errorf("written back as %x", again)
	}
}

// Each header is the whole payload of its message.
//
//rfc:7306 EXT-5.2.1-01 Atomic request header of 52 octets, AOpcode layout
//rfc:7306 EXT-5.2.2-02 Atomic response header of 12 octets, as in the figure
//rfc:7306 EXT-6.3-05 Receiver checks for exactly 8 octets of immediate data
func TestExtensionLengths(t *testing.T) {
	b := make([]byte, 64)
	code := func(n, length int, short, long string) string {
		switch {
		case n < length:
			return short
		case n > length:
			return long
		}
		return "ok"
	}
	for n := range len(b) {
		if _, err := ParseImmediate(b[:n]); wire(err) != code(n, ImmediateLen, "0/2/ff", "0/2/ff") {
			t.Errorf("Immediate Data of %d octets: %s", n, wire(err))
		}
		if _, err := ParseAtomicRequest(b[:n]); wire(err) != code(n, AtomicRequestLen, "0/2/ff", "1/2/05") {
			t.Errorf("an Atomic Request of %d octets: %s", n, wire(err))
		}
		if _, err := ParseAtomicResponse(b[:n]); wire(err) != code(n, AtomicResponseLen, "0/2/ff", "1/2/05") {
			t.Errorf("an Atomic Response of %d octets: %s", n, wire(err))
		}
	}
}

// maskedAdd is the pseudocode of RFC 7306 section 5.1.1.
func maskedAdd(original, add, mask uint64) (value uint64) {
	carry := uint64(0)
	for bit := range 64 {
		location := uint64(1) << bit
		sum := carry + original&location>>bit + add&location>>bit
		carry = sum & 2 >> 1
		if sum&1 != 0 {
			value |= location
		}
		if mask&location != 0 {
			carry = 0
		}
	}
	return value
}

// maskedSwap is the pseudocode of RFC 7306 section 5.1.2.
func maskedSwap(original, compare, swap, compareMask, swapMask uint64) uint64 {
	if (compare^original)&compareMask == 0 {
		return original&^swapMask | swap&swapMask
	}
	return original
}

//rfc:7306 EXT-5.1.1-03 Add mask 0 means plain 64-bit add
//rfc:7306 EXT-5.1.1-04 Mask bits are field tops: carry out of them dropped
//rfc:7306 EXT-5.1.2-01 CmpSwap compares under compare mask
//rfc:7306 EXT-5.1.2-02 On match swaps only bits in swap mask
//rfc:7306 EXT-5.1.2-03 On mismatch memory unchanged, original returned
func TestAtomicArithmetic(t *testing.T) {
	for _, tt := range []struct {
		name     string
		r        AtomicRequest
		original uint64
		want     uint64
	}{
		{"a plain sum", FetchAdd(0, 0, 0, 5, 0), 37, 42},
		{"a plain sum wraps", FetchAdd(0, 0, 0, 2, 0), math.MaxUint64, 1},
		{"a difference", FetchAdd(0, 0, 0, ^uint64(0), 0), 1, 0},
		{"two fields of 32 bits", FetchAdd(0, 0, 0, 0x00000001_00000001, 0x80000000_80000000), 0x7fffffff_ffffffff, 0x80000000_00000000},
		{"each bit a field", FetchAdd(0, 0, 0, 0xff, math.MaxUint64), 0xf0, 0x0f},
		{"the field at the top needs no bit", FetchAdd(0, 0, 0, 0x0000_0001_0000_0001, 0x80000000), 0xffffffff_ffffffff, 0},
		{"equal: swapped", CmpSwap(0, 0, 0, 1, 2, math.MaxUint64, math.MaxUint64), 1, 2},
		{"not equal: as it was", CmpSwap(0, 0, 0, 1, 2, math.MaxUint64, math.MaxUint64), 3, 3},
		{"equal where it counts, swapped where it counts", CmpSwap(0, 0, 0, 0xff01, 0xabcd, 0x00ff, 0xff00), 0x1101, 0xab01},
		{"compare mask 0: a plain swap", CmpSwap(0, 0, 0, 9, 2, 0, math.MaxUint64), 77, 2},
	} {
		if got := tt.r.Apply(tt.original); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(rapid.Uint64(), rapid.Just(uint64(0)), rapid.Just(uint64(math.MaxUint64)))
		original, a, b := number.Draw(t, "original"), number.Draw(t, "a"), number.Draw(t, "b")
		m, n := number.Draw(t, "mask"), number.Draw(t, "other mask")
		add := FetchAdd(0, 0, 0, a, m)
		if got, want := add.Apply(original), maskedAdd(original, a, m); got != want {
			t.Fatalf("FetchAdd: %#x, want %#x", got, want)
		}
		b = rapid.SampledFrom([]uint64{b, original, original ^ 1}).Draw(t, "compare")
		swap := CmpSwap(0, 0, 0, b, a, n, m)
		if got, want := swap.Apply(original), maskedSwap(original, b, a, n, m); got != want {
			t.Fatalf("CmpSwap: %#x, want %#x", got, want)
		}
	})
}

// One fault at a time, around a buffer of 64 octets at TO 0x10000.
//
//rfc:7306 EXT-5.2.1-04 Unsupported AOpcode surfaces an error
//rfc:7306 EXT-8.2-03 Atomic target STag/TO/rights validated as for ReadReq
//rfc:7306 EXT-8.2-04 8-octet range check TO..TO+7, no wrap, for atomics
func TestCheckAtomic(t *testing.T) {
	const base, size = 0x10000, 64
	good := ddp.Region{Valid: true, Associated: true, Allowed: true, Base: base, Len: size}
	invalid, foreign, readable, small := good, good, good, good
	invalid.Valid, foreign.Associated, readable.Allowed, small.Len = false, false, false, 7
	for _, tt := range []struct {
		name string
		r    ddp.Region
		op   AtomicOp
		to   uint64
		want string
	}{
		{"the first word", good, AtomicFetchAdd, base, "ok"},
		{"the last word", good, AtomicCmpSwap, base + size - 8, "ok"},
		{"alignment is not of the TO", good, AtomicFetchAdd, base + 1, "ok"},
		{"half of it beyond the buffer", good, AtomicFetchAdd, base + size - 4, "0/1/01"},
		{"before the buffer", good, AtomicFetchAdd, base - 8, "0/1/01"},
		{"a buffer too small for a word", small, AtomicFetchAdd, base, "0/1/01"},
		{"over the end of the numbers", good, AtomicFetchAdd, math.MaxUint64 - 7, "0/1/04"},
		{"the highest TO that does not wrap", good, AtomicFetchAdd, math.MaxUint64 - 8, "0/1/01"},
		{"no STag", invalid, AtomicFetchAdd, base, "0/1/00"},
		{"of another protection domain", foreign, AtomicFetchAdd, base, "0/1/03"},
		{"without the right", readable, AtomicFetchAdd, base, "0/1/02"},
		{"the reserved operation", good, 1, base, "0/2/06"},
		{"an unassigned operation", good, 3, base, "0/2/06"},
		{"the last unassigned operation", good, 15, base, "0/2/06"},
	} {
		if got := wire(CheckAtomic(&tt.r, &AtomicRequest{Op: tt.op, TO: tt.to})); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	for op := range AtomicOp(16) {
		if got, want := op.Defined(), op == 0 || op == 2; got != want {
			t.Errorf("operation %d (%v) is defined: %v", op, op, got)
		}
	}
}

// newExtended returns a stream with the extensions of RFC 7306.
func newExtended(t *testing.T, ird, ord int) *stream {
	s := newStream(t, ird, ord)
	s.r.Init(ReceiverConfig{Inbound: s.in, Outstanding: s.out, Extensions: true})
	return s
}

// Without the extensions their opcodes are reserved; 12 to 15 always are.
//
//rfc:7306 EXT-4.1-05 Opcodes 12-14 unassigned, 15 experimental rejected
//rfc:7306 EXT-8.2-01 DDP fields, opcode and version validated
func TestExtensionsAreOff(t *testing.T) {
	plain, extended := newStream(t, 4, 4), newExtended(t, 4, 4)
	headers := []struct {
		h ddp.Header
		n int
	}{
		{ImmediateHeader(false, 1), ImmediateLen}, {ImmediateHeader(true, 1), ImmediateLen},
		{AtomicRequestHeader(1), AtomicRequestLen}, {AtomicResponseHeader(1), AtomicResponseLen},
	}
	for _, x := range headers {
		plain.refuse("without extensions", "0/2/06", x.h, x.n)
	}
	for op := OpAtomicResponse + 1; op <= 15; op++ {
		for _, s := range []*stream{plain, extended} {
			s.refuse(op.String(), "0/2/06", untaggedHeader(op, 0, 1, 0, true), 8)
			s.refuse(op.String()+", tagged", "0/2/06", taggedHeader(op, 1, 0, true), 8)
		}
	}
	for _, x := range headers {
		old := with(x.h, func(h *ddp.Header) { h.ULPCtl &^= 0xc0 })
		extended.refuse("RV 0", "0/2/05", old, x.n)
		tagged := with(x.h, func(h *ddp.Header) { h.Tagged = true })
		extended.refuse("tagged", "0/2/06", tagged, x.n)
		for qn := range uint32(5) {
			if qn != x.h.QN {
				extended.refuse("another queue", "1/2/01", with(x.h, func(h *ddp.Header) { h.QN = qn }), x.n)
			}
		}
		extended.refuse("MSN 0", "1/2/03", with(x.h, func(h *ddp.Header) { h.MSN = 0 }), x.n)
		extended.refuse("MO 8", "1/2/04", with(x.h, func(h *ddp.Header) { h.MO = 8 }), x.n)
	}
}

// Immediate Data is in sequence with the Sends, and is one segment of eight octets. The field for
// an STag to invalidate is ignored.
//
//rfc:7306 EXT-4.1-03 Invalidate STag zero on send, ignored on receive
//rfc:7306 EXT-6.3-02 Immediate consumes one receive buffer
//rfc:7306 EXT-6.3-03 Immediates delivered in order with Sends
//rfc:7306 EXT-6.3-05 Receiver checks for exactly 8 octets of immediate data
func TestImmediateAmongSends(t *testing.T) {
	s := newExtended(t, 1, 1)
	take := Action{Kind: TakeImmediate, First: true}
	s.want("Immediate Data first", ImmediateHeader(false, 1), 8, take)
	s.want("a Send", SendHeader(OpSend, 0, 2, 0, true), 8, Action{Kind: PlaceSend, First: true})
	junk := with(ImmediateHeader(true, 3), func(h *ddp.Header) { h.ULP32 = 0xdeadbeef; h.ULPCtl |= 0x30 })
	s.want("Immediate Data with an STag in the header", junk, 8, take)
	s.refuse("its MSN is one of the Sends", "1/2/03", SendHeader(OpSend, 0, 3, 0, true), 1)
	for _, n := range []int{0, 4, 7, 9, 16, 1400} {
		s.refuse("another length", "0/2/ff", ImmediateHeader(false, 4), n)
	}
	s.refuse("not the last segment", "0/2/ff", with(ImmediateHeader(false, 4), func(h *ddp.Header) { h.Last = false }), 8)
	s.want("a Send begins", SendHeader(OpSend, 0, 4, 0, false), 8, Action{Kind: PlaceSend, First: true})
	s.refuse("Immediate Data inside of it", "0/2/06", with(ImmediateHeader(false, 4), func(h *ddp.Header) { h.MO = 8 }), 8)
	s.want("the Send ends", SendHeader(OpSend, 0, 4, 8, true), 8, Action{Kind: PlaceSend, MO: 8})
	s.want("Immediate Data after it", ImmediateHeader(false, 5), 8, take)
	s.r.End()
	if a, err := s.begin("when the stream has ended", ImmediateHeader(false, 9), 8); err != nil || a.Kind != Drop {
		t.Errorf("when the stream has ended: %+v, %v", a, err)
	}
}

// Immediate Data reports the Write before it, if the Write was the peer's previous message;
// responses do not count.
func TestImmediateBehindWrites(t *testing.T) {
	s := newExtended(t, 4, 1)
	s.out.Push(OutstandingRead{SinkSTag: 5, Size: 4})
	msn := uint32(1)
	imm := func(story string, after bool, written uint32) {
		t.Helper()
		s.want(story, ImmediateHeader(false, msn), 8, Action{Kind: TakeImmediate, First: true, AfterWrite: after, Written: written})
		msn++
	}
	write := func(n int, first, last bool) {
		t.Helper()
		s.want("a segment of a Write", WriteHeader(1, 0, last), n, Action{Kind: PlaceWrite, First: first})
	}
	imm("at first", false, 0)
	write(100, true, true)
	imm("after a Write", true, 100)
	imm("after Immediate Data", false, 0)
	write(1000, true, false)
	write(1000, false, false)
	write(7, false, true)
	imm("after a Write of three segments", true, 2007)
	write(0, true, true)
	imm("after a Write of nothing", true, 0)
	write(1, true, true)
	write(2, true, true)
	imm("after two Writes", true, 2)
	write(3, true, true)
	s.want("a response", ReadResponseHeader(5, 0, true), 4, Action{Kind: PlaceReadResponse, First: true, Read: *s.out.Front()})
	imm("after a Write and a response", true, 3)
	write(3, true, true)
	s.want("a Send", SendHeader(OpSend, 0, msn, 0, true), 1, Action{Kind: PlaceSend, First: true})
	msn++
	imm("after a Write and a Send", false, 0)
	write(3, true, true)
	s.want("a Read Request", ReadRequestHeader(1), ReadRequestLen, Action{Kind: TakeReadRequest, First: true})
	imm("after a Write and a Read Request", false, 0)
	write(3, true, false)
	imm("inside of a Write", false, 0)

	// Payload that is placed without an Action counts too.
	one, two := WriteHeader(1, 0, false), WriteHeader(1, 9, true)
	s = newExtended(t, 0, 0)
	msn = 1
	for _, h := range []ddp.Header{one, two} {
		g, payload, ok := s.r.BeginWrite(append(h.AppendTo(nil), make([]byte, 9)...))
		if !ok {
			t.Fatal("not a Write")
		}
		s.r.CommitWrite(g, len(payload))
	}
	imm("after a Write of two segments", true, 18)
	g, payload, _ := s.r.BeginWrite(append(two.AppendTo(nil), 1))
	s.r.CommitWrite(g, len(payload))
	s.r.CommitSend(OpSend)
	msn++
	imm("after a Write and a Send", false, 0)
}

// Atomic Requests share MSNs and places with Read Requests.
//
//rfc:7306 EXT-5.2-01 Atomic requests share QN1 MSN space and IRD/ORD with reads
//rfc:7306 EXT-5.2.1-06 Atomic request consumes one QN1 buffer
//rfc:7306 EXT-5.2.2-03 Responder has QN1 buffers for reads plus atomics
func TestAtomicRequestsAmongReads(t *testing.T) {
	s := newExtended(t, 3, 0)
	take := Action{Kind: TakeAtomicRequest, First: true}
	s.want("an Atomic Request", AtomicRequestHeader(1), AtomicRequestLen, take)
	s.in.Push(InboundAtomic(1, AtomicResponse{ID: 5, Original: 6}))
	s.want("a Read Request", ReadRequestHeader(2), ReadRequestLen, Action{Kind: TakeReadRequest, First: true})
	s.in.Push(InboundRead{MSN: 2})
	s.refuse("a short one", "0/2/ff", AtomicRequestHeader(3), AtomicRequestLen-1)
	s.refuse("a long one", "1/2/05", AtomicRequestHeader(3), AtomicRequestLen+1)
	s.refuse("one that goes on", "1/2/05", with(AtomicRequestHeader(3), func(h *ddp.Header) { h.Last = false }), AtomicRequestLen)
	s.want("a third fits", AtomicRequestHeader(3), AtomicRequestLen, take)
	s.in.Push(InboundAtomic(3, AtomicResponse{ID: 7, Original: 8}))
	s.refuse("a fourth request is one too many", "1/2/02", AtomicRequestHeader(4), AtomicRequestLen)
	s.refuse("whichever it is", "1/2/02", ReadRequestHeader(4), ReadRequestLen)
	if r, ok := s.in.Front().Atomic(); !ok || r != (AtomicResponse{ID: 5, Original: 6}) {
		t.Errorf("the oldest is %+v, %v", r, ok)
	}
	s.in.Pop()
	if _, ok := s.in.Front().Atomic(); ok {
		t.Error("a Read is taken for an atomic operation")
	}
	s.want("answered, there is room again", AtomicRequestHeader(4), AtomicRequestLen, take)
}

// Responses answer Reads and atomic operations in the order of the requests.
//
//rfc:7306 EXT-5.2.2-04 Requester has QN3 buffers for all outstanding atomics
//rfc:7306 EXT-5.2.2-06 Invalid atomic response surfaces an error
func TestAtomicResponsesInOrder(t *testing.T) {
	s := newExtended(t, 0, 4)
	s.refuse("nobody asked", "0/2/06", AtomicResponseHeader(1), AtomicResponseLen)
	first := OutstandingRead{Atomic: true, ID: 77, Size: 8, Cookie: 1}
	read := OutstandingRead{SinkSTag: 5, Size: 10, Cookie: 2}
	third := OutstandingRead{Atomic: true, ID: 78, Size: 8, Cookie: 3}
	for _, r := range []OutstandingRead{first, read, third} {
		s.out.Push(r)
	}
	for msn, want := range map[uint32]*OutstandingRead{0: nil, 1: &first, 2: &read, 3: &third, 4: nil, math.MaxUint32: nil} {
		if got := s.out.WithMSN(msn); (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("MSN %d: %+v, want %+v", msn, got, want)
		}
	}
	s.refuse("the Read's response is not due", "0/2/06", ReadResponseHeader(5, 0, true), 10)
	s.refuse("one that is short", "0/2/ff", AtomicResponseHeader(1), AtomicResponseLen-1)
	s.refuse("one that is long, as section 4 of the RFC has it", "1/2/05", AtomicResponseHeader(1), 32)
	s.refuse("one that goes on", "1/2/05", with(AtomicResponseHeader(1), func(h *ddp.Header) { h.Last = false }), AtomicResponseLen)
	s.want("the first response", AtomicResponseHeader(1), AtomicResponseLen, Action{Kind: TakeAtomicResponse, First: true, Read: first})
	if s.out.WithMSN(1) != nil || s.out.Len() != 2 {
		t.Error("it is still outstanding")
	}
	s.refuse("the second is not due", "0/2/06", AtomicResponseHeader(2), AtomicResponseLen)
	s.want("half of the Read's", ReadResponseHeader(5, 0, false), 4, Action{Kind: PlaceReadResponse, First: true, Read: read})
	s.refuse("still not", "0/2/06", AtomicResponseHeader(2), AtomicResponseLen)
	s.want("all of it", ReadResponseHeader(5, 4, true), 6, Action{Kind: PlaceReadResponse, MO: 4, Read: read})
	s.want("now it is", AtomicResponseHeader(2), AtomicResponseLen, Action{Kind: TakeAtomicResponse, First: true, Read: third})
	if s.out.Len() != 0 {
		t.Errorf("%d are outstanding", s.out.Len())
	}
}

func TestExtensionsAllocateNothing(t *testing.T) {
	buf := make([]byte, 0, 128)
	s := newExtended(t, 1, 1)
	s.in.Push(InboundRead{}) // makes the ring
	s.in.Pop()
	region := ddp.Region{Valid: true, Associated: true, Allowed: true, Len: 8}
	msn := uint32(1)
	n := testing.AllocsPerRun(100, func() {
		h := AtomicRequestHeader(msn)
		msn++
		req := FetchAdd(1, 2, 0, 4, 5)
		buf = req.AppendTo(h.AppendTo(buf[:0]))
		got, err := ParseAtomicRequest(buf[ddp.UntaggedHeaderLen:])
		if err != nil || CheckAtomic(&region, &got) != nil {
			t.Fatal(err)
		}
		a, err := s.r.Begin(&h, AtomicRequestLen)
		if err != nil {
			t.Fatal(err)
		}
		s.r.Commit(&a)
		s.in.Push(InboundAtomic(a.MSN, AtomicResponse{ID: got.ID, Original: got.Apply(3)}))
		s.in.Pop()
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzParseExtensions: a parsed header is written back octet for octet.
func FuzzParseExtensions(f *testing.F) {
	req := CmpSwap(1, 2, 3, 4, 5, 6, 7)
	f.Add(req.AppendTo(nil))
	f.Add(make([]byte, AtomicResponseLen))
	f.Add(make([]byte, ImmediateLen))
	f.Add(make([]byte, AtomicRequestLen+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		back := func(what string, length int, err error, out []byte) {
			if (err == nil) != (len(b) == length) {
				t.Fatalf("%s of %d octets: %v", what, len(b), err)
			}
			if err == nil && !bytes.Equal(out, b) {
				t.Fatalf("%s: % x came back as % x", what, b, out)
			}
		}
		r, err := ParseAtomicRequest(b)
		back("Atomic Request", AtomicRequestLen, err, r.AppendTo(nil))
		p, err := ParseAtomicResponse(b)
		back("Atomic Response", AtomicResponseLen, err, p.AppendTo(nil))
		v, err := ParseImmediate(b)
		back("Immediate Data", ImmediateLen, err, AppendImmediate(nil, v))
	})
}

// FuzzExtendedReceiver feeds a receiver with extensions a stream of ULPDUs made from the input: an
// octet of length, then that many octets. Nothing panics, an uncommitted segment changes nothing,
// and messages of the extensions obey the protocol.
func FuzzExtendedReceiver(f *testing.F) {
	var seed []byte
	for _, x := range []struct {
		h ddp.Header
		n int
	}{
		{ImmediateHeader(false, 1), ImmediateLen}, {SendHeader(OpSend, 0, 2, 0, true), 4}, {ImmediateHeader(true, 3), ImmediateLen},
		{AtomicResponseHeader(1), AtomicResponseLen}, {ReadResponseHeader(1, 0, true), 8}, {AtomicResponseHeader(2), AtomicResponseLen},
		{ReadRequestHeader(1), ReadRequestLen}, {AtomicRequestHeader(2), AtomicRequestLen}, {AtomicRequestHeader(3), AtomicRequestLen},
	} {
		ulpdu := append(x.h.AppendTo(nil), make([]byte, x.n)...)
		seed = append(append(seed, byte(len(ulpdu))), ulpdu...)
	}
	f.Add(seed)
	f.Add(seed[:len(seed)-1])

	f.Fuzz(func(t *testing.T, octets []byte) {
		in, out := NewInboundReads(2), NewOutstandingReads(4)
		out.Push(OutstandingRead{Atomic: true, ID: 1, Size: 8})
		out.Push(OutstandingRead{SinkSTag: 1, Size: 8})
		out.Push(OutstandingRead{Atomic: true, ID: 2, Size: 8})
		r := NewReceiver(ReceiverConfig{Inbound: in, Outstanding: out, Extensions: true})
		sends, requests, responses := uint32(1), uint32(1), uint32(1)
		for len(octets) > 0 {
			n := int(octets[0])
			octets = octets[1:]
			ulpdu := octets[:min(n, len(octets))]
			octets = octets[len(ulpdu):]
			h, payload, err := ddp.Parse(ulpdu)
			if err != nil {
				continue
			}
			before, outLen := *r, out.Len()
			a, err := r.Begin(&h, len(payload))
			if *r != before || out.Len() != outLen {
				t.Fatal("Begin changed the receiver")
			}
			if err != nil {
				if wire(err) == "ok" || a != (Action{}) {
					t.Fatalf("%+v, %v", a, err)
				}
				continue
			}
			oldest := out.Front()
			switch a.Kind {
			case PlaceSend:
				if a.MSN != sends {
					t.Fatalf("%+v, want Send %d", a, sends)
				}
				if a.Last {
					sends++
				}
			case TakeImmediate:
				if len(payload) != ImmediateLen || a.MSN != sends || !a.Last || before.send.Open() {
					t.Fatalf("%+v, want Send %d", a, sends)
				}
				sends++
			case TakeReadRequest, TakeAtomicRequest:
				if a.MSN != requests || in.Full() {
					t.Fatalf("%+v, want request %d with %d waiting", a, requests, in.Len())
				}
				if a.Kind == TakeAtomicRequest && len(payload) != AtomicRequestLen {
					t.Fatalf("%+v", a)
				}
				requests++
				in.Push(InboundAtomic(a.MSN, AtomicResponse{}))
			case PlaceReadResponse:
				if oldest.Atomic {
					t.Fatalf("%+v answers an atomic operation", a)
				}
			case TakeAtomicResponse:
				if len(payload) != AtomicResponseLen || a.MSN != responses || !oldest.Atomic || a.Read != *oldest {
					t.Fatalf("%+v, want response %d to %+v", a, responses, oldest)
				}
				responses++
			}
			last := a.Kind == TakeAtomicResponse || a.Kind == PlaceReadResponse && a.Last
			r.Commit(&a)
			if popped := out.Len() != outLen; popped != last {
				t.Fatalf("%+v: %d outstanding of %d", a, out.Len(), outLen)
			}
		}
	})
}
