package ddp

import (
	"bytes"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// script is one queue and the segments that reach it, in order.
type script struct {
	t *testing.T
	q UntaggedQueue
}

func (s *script) segment(msn, mo uint32, last bool) Header {
	return Header{Last: last, Version: 1, QN: s.q.QN(), MSN: msn, MO: mo}
}

// good sends a segment with a good FPDU.
func (s *script) good(story string, msn, mo uint32, n int, last bool) {
	s.t.Helper()
	h := s.segment(msn, mo, last)
	if err := s.q.Check(&h, n); err != nil {
		s.t.Fatalf("%s: %v", story, err)
	}
	s.q.Commit(last, n)
}

// bad sends a segment that must be refused with a code and change nothing.
func (s *script) bad(story, want string, h Header, n int) {
	s.t.Helper()
	before := s.q
	if got := wire(s.q.Check(&h, n)); got != want {
		s.t.Errorf("%s: %s, want %s", story, got, want)
	}
	if s.q != before {
		s.t.Errorf("%s: Check changed the queue from %+v to %+v", story, before, s.q)
	}
}

//rfc:5041 DDP-4.3-05 MSN starts at 1 per QN
//rfc:5041 DDP-4.3-06 MSN increments by 1 per message per QN
//rfc:5041 DDP-5.2-10 Zero-length segment with L=0 does not confuse reassembly
//rfc:5041 DDP-5.3-05 Message delivered at most once
//rfc:5041 DDP-5.3-06 Delivery in send order
//rfc:5041 DDP-7.1u1-01 Untagged: QN valid
//rfc:5041 DDP-7.1u3-01 Untagged: MO within buffer
//rfc:5041 DDP-7.1u5-01 Untagged: MSN in legal range
func TestUntaggedQueueStory(t *testing.T) {
	s := &script{t, NewUntaggedQueue(0, FirstMSN)}
	s.bad("the first message has MSN 1, not 0", "1/2/03", s.segment(0, 0, true), 10)
	s.bad("nor 2", "1/2/03", s.segment(2, 0, true), 10)
	s.bad("a message starts at MO 0", "1/2/04", s.segment(1, 1, true), 10)
	s.bad("another queue's segment is not for this one", "1/2/01", Header{Version: 1, QN: 1, MSN: 1}, 10)
	s.good("a message of one segment", 1, 0, 10, true)
	s.bad("it can't come again", "1/2/03", s.segment(1, 0, true), 10)
	s.good("a message of three segments starts", 2, 0, 1482, false)
	s.bad("its first segment can't come again", "1/2/04", s.segment(2, 0, false), 1482)
	s.bad("nor is there a gap", "1/2/04", s.segment(2, 1483, false), 1482)
	s.bad("nor an overlap", "1/2/04", s.segment(2, 1481, false), 1482)
	s.bad("nor the next message before this one ends", "1/2/03", s.segment(3, 0, true), 10)
	s.good("an empty segment in the middle", 2, 1482, 0, false)
	s.good("the second with payload", 2, 1482, 1482, false)
	if !s.q.Open() || s.q.Offset() != 2964 || s.q.MSN() != 2 {
		t.Errorf("open %v, offset %d, MSN %d; want the middle of message 2 at 2964", s.q.Open(), s.q.Offset(), s.q.MSN())
	}
	s.good("the last", 2, 2964, 1, true)
	s.good("an empty message", 3, 0, 0, true)
	s.good("an empty segment opens a message", 4, 0, 0, false)
	if !s.q.Open() {
		t.Error("an empty first segment did not open the message")
	}
	s.good("an empty segment ends it", 4, 0, 0, true)
	if s.q.Open() || s.q.MSN() != 5 {
		t.Errorf("open %v, MSN %d; want message 5 next", s.q.Open(), s.q.MSN())
	}
}

//rfc:5041 DDP-4.3-07 MSN wraps 0xFFFFFFFF to 0
func TestMSNWraps(t *testing.T) {
	s := &script{t, NewUntaggedQueue(1, math.MaxUint32-1)}
	s.good("2^32 - 2", math.MaxUint32-1, 0, 28, true)
	s.good("2^32 - 1", math.MaxUint32, 0, 28, true)
	s.bad("1 does not follow 2^32 - 1", "1/2/03", s.segment(1, 0, true), 28)
	s.good("0 does", 0, 0, 28, true)
	s.good("then 1", 1, 0, 28, true)
}

//rfc:5041 DDP-7.1u-01 Untagged: MO+len does not wrap 2^32
func TestMessageLengthEndsAt32Bits(t *testing.T) {
	s := &script{t, NewUntaggedQueue(0, FirstMSN)}
	for mo := uint64(0); mo+65517 <= math.MaxUint32; mo += 65517 {
		s.good("65517 octets more", 1, uint32(mo), 65517, false)
	}
	left := int(math.MaxUint32 - s.q.Offset())
	s.bad("one octet beyond 2^32 - 1", "1/2/05", s.segment(1, s.q.Offset(), true), left+1)
	s.good("2^32 - 1 octets are a message", 1, s.q.Offset(), left, true)
}

// FuzzUntaggedQueue: the queue accepts exactly the random segments that continue it, and Check
// never changes it.
func FuzzUntaggedQueue(f *testing.F) {
	f.Add(uint32(0), uint32(1), uint32(0), uint16(10), true)
	f.Add(uint32(0), uint32(1), uint32(0), uint16(10), false)
	f.Add(uint32(2), uint32(0), uint32(0xffffffff), uint16(0xffff), true)
	f.Fuzz(func(t *testing.T, qn, msn, mo uint32, n uint16, last bool) {
		q := NewUntaggedQueue(0, FirstMSN)
		q.Commit(false, 100)
		before := q
		h := Header{Last: last, Version: 1, QN: qn, MSN: msn, MO: mo}
		err := q.Check(&h, int(n))
		if q != before {
			t.Fatal("Check changed the queue")
		}
		if continues := qn == 0 && msn == 1 && mo == 100; continues != (err == nil) {
			t.Fatalf("%+v: %v", h, err)
		}
	})
}

// A receiver of a segmenter's segments receives every message whole.
func TestQueueFollowsSegmenter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.Uint32().Draw(t, "first MSN")
		q := NewUntaggedQueue(0, first)
		for i, length := range rapid.SliceOfN(rapid.Uint32Range(0, 5000), 1, 5).Draw(t, "messages") {
			msn := first + uint32(i)
			s := NewSegmenter(length, false)
			for seg, ok := s.Next(600); ok; seg, ok = s.Next(600) {
				h := Header{Last: seg.Last, Version: 1, MSN: msn, MO: seg.MO()}
				if err := q.Check(&h, seg.Len); err != nil {
					t.Fatalf("message %d of %d octets, %+v: %v", i, length, seg, err)
				}
				q.Commit(seg.Last, seg.Len)
			}
			if q.Open() || q.MSN() != msn+1 {
				t.Fatalf("message %d did not end", i)
			}
		}
	})
}

func TestChecksAllocateNothing(t *testing.T) {
	q := NewUntaggedQueue(0, FirstMSN)
	r := Region{Valid: true, Associated: true, Allowed: true, Len: 10}
	goodH, badH := Header{Version: 1, MSN: 1}, Header{Version: 2, MSN: 9}
	n := testing.AllocsPerRun(100, func() {
		for _, h := range []*Header{&goodH, &badH} {
			_ = CheckVersion(h, Version)
			_ = q.Check(h, 10)
		}
		_ = CheckTagged(&r, 0, 10)
		_ = CheckTagged(&r, 1, 10)
		_ = CheckUntagged(0, 10, true, 5)
		q.Commit(false, 0)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestWholeAgreesWithCheck: with any bit or octet of the header changed, Whole accepts a ULPDU
// exactly if Parse and Check find the next message of the queue in one segment.
//
//rfc:5041 DDP-4.1-14 Unknown DV, untagged: error 1/2/0x06
//rfc:5041 DDP-7.1u1-01 Untagged: QN valid
//rfc:5041 DDP-7.1u3-01 Untagged: MO within buffer
//rfc:5041 DDP-7.1u5-01 Untagged: MSN in legal range
func TestWholeAgreesWithCheck(t *testing.T) {
	q := NewUntaggedQueue(0, 7)
	h := Header{Last: true, Version: Version, ULPCtl: 0x43, MSN: 7}
	good := append(h.AppendTo(nil), "payload"...)
	taken := 0
	try := func(at int, change byte) {
		ulpdu := bytes.Clone(good)
		ulpdu[at] ^= change
		payload, ctl, ok := q.Whole(ulpdu)
		h, want, err := Parse(ulpdu)
		next := err == nil && !h.Tagged && h.Last && CheckVersion(&h, Version) == nil && q.Check(&h,
			len(want)) == nil
		if ok != next || ok && (ctl != h.ULPCtl || !bytes.Equal(payload, want)) {
			t.Errorf("octet %d changed by %#02x: Whole returns %v, Check %v", at, change, ok, next)
		}
		if ok {
			taken++
		}
	}
	for at := range UntaggedHeaderLen {
		for change := range 256 {
			try(at, byte(change))
		}
	}
	// The unchanged header, the reserved bits, and RDMAP's octets.
	if want := UntaggedHeaderLen + 15 + 5*255; taken != want {
		t.Errorf("%d ULPDUs were taken, want %d", taken, want)
	}
}
