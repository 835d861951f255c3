package ddp

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// all cuts a whole message with one MULPDU.
func all(length uint32, tagged bool, mulpdu int) []Segment {
	s := NewSegmenter(length, tagged)
	var segs []Segment
	for {
		seg, ok := s.Next(mulpdu)
		if !ok {
			return segs
		}
		segs = append(segs, seg)
	}
}

// The two examples that RFC 5041 section 5.2 works out.
//
//rfc:5041 DDP-5.2-05 Untagged MO = offset of first payload octet
//rfc:5041 DDP-5.2-06 Tagged TO = initial TO + offset
func TestSegmentationExamples(t *testing.T) {
	untagged := all(2048, false, 1500)
	if want := []Segment{{0, 1482, false}, {1482, 566, true}}; !slices.Equal(untagged, want) {
		t.Errorf("untagged 2048 octets at MULPDU 1500: %v, want %v", untagged, want)
	}
	if got := untagged[1].MO(); got != 1482 {
		t.Errorf("MO of the second segment = %d, want 1482", got)
	}
	tagged := all(2048, true, 1500)
	if want := []Segment{{0, 1486, false}, {1486, 562, true}}; !slices.Equal(tagged, want) {
		t.Errorf("tagged 2048 octets at MULPDU 1500: %v, want %v", tagged, want)
	}
	if a, b := tagged[0].TO(16384), tagged[1].TO(16384); a != 16384 || b != 17870 {
		t.Errorf("TO = %d, %d; want 16384, 17870", a, b)
	}
}

//rfc:5041 DDP-5.2-08 Zero-length message uses exactly one segment
func TestSegmentationEdges(t *testing.T) {
	for _, tt := range []struct {
		name   string
		length uint32
		tagged bool
		mulpdu int
		want   []Segment
	}{
		{"a message without octets is one segment", 0, false, 1500, []Segment{{0, 0, true}}},
		{"even with no room for payload", 0, true, TaggedHeaderLen, []Segment{{0, 0, true}}},
		{"one octet", 1, true, 1500, []Segment{{0, 1, true}}},
		{"exactly one segment", 1482, false, 1500, []Segment{{0, 1482, true}}},
		{"one octet more", 1483, false, 1500, []Segment{{0, 1482, false}, {1482, 1, true}}},
		{"exactly two", 2972, true, 1500, []Segment{{0, 1486, false}, {1486, 1486, true}}},
		{"room for one octet", 3, false, UntaggedHeaderLen + 1, []Segment{{0, 1, false}, {1, 1, false}, {2, 1, true}}},
		{"no room", 3, false, UntaggedHeaderLen, nil},
		{"less than no room", 3, false, -1, nil},
		{"the longest message", math.MaxUint32, true, 1<<30 + TaggedHeaderLen, []Segment{
			{0, 1 << 30, false}, {1 << 30, 1 << 30, false}, {2 << 30, 1 << 30, false}, {3 << 30, 1<<30 - 1, true},
		}},
	} {
		if got := all(tt.length, tt.tagged, tt.mulpdu); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A MULPDU without room leaves the segmenter unchanged: it is not done, and continues when there is
// room.
func TestSegmenterWaitsForRoom(t *testing.T) {
	s := NewSegmenter(100, false)
	if seg, ok := s.Next(10); ok || s.Done() || s.Remaining() != 100 {
		t.Fatalf("Next(10) = %v, %v, Done %v", seg, ok, s.Done())
	}
	if seg, ok := s.Next(MinMULPDU); !ok || seg != (Segment{0, 100, true}) || !s.Done() || s.Remaining() != 0 {
		t.Fatalf("Next(%d) = %v, %v", MinMULPDU, seg, ok)
	}
	if seg, ok := s.Next(MinMULPDU); ok {
		t.Fatalf("a segment after the last: %v", seg)
	}
}

// However the MULPDU changes, the segments are without gaps, in order, no larger than allowed,
// cover the message, and only the last has L set.
//
//rfc:5041 DDP-3-01 A change of MULPDU re-segments nothing already posted
//rfc:5041 DDP-4.1-04 L=1 on the last segment of each message
//rfc:5041 DDP-4.1-05 L=0 on all segments but the last
//rfc:5041 DDP-4.1-07 L segment of an untagged message has the highest MO
//rfc:5041 DDP-5.2-01 Segments no larger than MULPDU
//rfc:5041 DDP-5.2-03 All data is sent
//rfc:5041 DDP-5.3-02 Segments sent in rising MO/TO order
func TestSegmentationProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.Uint32Range(0, 20000).Draw(t, "length")
		tagged := rapid.Bool().Draw(t, "tagged")
		header := HeaderLen(map[bool]byte{true: ctlTagged}[tagged])
		s := NewSegmenter(length, tagged)
		var next uint32
		for !s.Done() {
			mulpdu := rapid.IntRange(MinMULPDU, 9000).Draw(t, "MULPDU")
			seg, ok := s.Next(mulpdu)
			switch {
			case !ok:
				t.Fatal("no segment though the message is not done")
			case seg.Offset != next:
				t.Fatalf("segment at %d, want %d", seg.Offset, next)
			case header+seg.Len > mulpdu:
				t.Fatalf("segment of %d octets at MULPDU %d", header+seg.Len, mulpdu)
			case !seg.Last && header+seg.Len != mulpdu:
				t.Fatalf("segment of %d octets wastes room at MULPDU %d", header+seg.Len, mulpdu)
			case seg.Last != (seg.Offset+uint32(seg.Len) == length):
				t.Fatalf("Last is %v at %d of %d", seg.Last, seg.Offset+uint32(seg.Len), length)
			}
			next += uint32(seg.Len)
		}
		if next != length {
			t.Fatalf("%d of %d octets were cut", next, length)
		}
	})
}

func TestSegmenterAllocatesNothing(t *testing.T) {
	n := testing.AllocsPerRun(100, func() {
		s := NewSegmenter(100000, true)
		for {
			if _, ok := s.Next(1500); !ok {
				break
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per message", n)
	}
}

// BenchmarkSegmenter cuts 1 MiB into segments for Ethernet.
func BenchmarkSegmenter(b *testing.B) {
	const length, mulpdu = 1 << 20, 1440
	b.ReportAllocs()
	for b.Loop() {
		s := NewSegmenter(length, true)
		for !s.Done() {
			s.Next(mulpdu)
		}
	}
}
